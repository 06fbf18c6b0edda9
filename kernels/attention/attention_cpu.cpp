#include <algorithm>
#include <cassert>
#include <cmath>
#include <limits>

#include "kernels/attention/attention.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/math/math.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {
namespace {

// Query vectors (rows times heads of the group) that share one load of a key/value block.
constexpr int64_t kMaxQueries = 48;
// Up to this many, keys and values are read from the cache as they are; above, widened once per block.
constexpr int64_t kDirectQueries = 3;
constexpr int64_t kQueryTile = 3;
constexpr float kMinusInfinity = -std::numeric_limits<float>::infinity();

// Per query vector: the running maximum and sum of the split and of the merged context, the position of the
// query, and how many keys of the current block it sees.
struct QueryState {
  float split_max = kMinusInfinity;
  float split_sum = 0.0F;
  float max = kMinusInfinity;
  float sum = 0.0F;
  int64_t position = 0;
  int64_t visible = 0;
};

// Scratch of one tile, carved out of two buffers.
struct TileMemory {
  float* q = nullptr;          // [queries, padded d]
  float* scores = nullptr;     // [queries, block]
  float* split_acc = nullptr;  // [queries, value d]
  float* acc = nullptr;        // [queries, value d]
  float* keys = nullptr;       // [block, padded d]
  float* values = nullptr;     // [block, value d]
};

TileMemory carve(Workspace& scratch, int64_t d, int64_t vd) {
  const int64_t dp = padded_k(d);
  const int64_t per_query = dp + kAttentionBlock + 2 * vd;
  scratch.attention.ensure(static_cast<size_t>(kMaxQueries * per_query) * sizeof(float));
  scratch.attention_kv.ensure(static_cast<size_t>(kAttentionBlock * (dp + vd)) * sizeof(float));
  TileMemory m;
  m.q = scratch.attention.as<float>();
  m.scores = m.q + kMaxQueries * dp;
  m.split_acc = m.scores + kMaxQueries * kAttentionBlock;
  m.acc = m.split_acc + kMaxQueries * vd;
  m.keys = scratch.attention_kv.as<float>();
  m.values = m.keys + kAttentionBlock * dp;
  return m;
}

// Turns raw dots into p_j, and rescales the accumulator: one block of one query.
void softmax_block(QueryState& state, float scale, float* scores, float* acc, int64_t d) {
  const int64_t n = state.visible;
  const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
  F8 running = f8(state.split_max);
  for (int64_t j = 0; j < n; j += 8) {
    F8 s = _mm256_mul_ps(load8(scores + j), f8(scale));
    if (j + 8 > n) {
      const __m256i hidden = _mm256_cmpgt_epi32(lane, _mm256_set1_epi32(static_cast<int32_t>(n - j - 1)));
      s = _mm256_blendv_ps(s, f8(kMinusInfinity), _mm256_castsi256_ps(hidden));
    }
    store8(scores + j, s);
    running = max_ignoring_nan(running, s);
  }
  const float max = reduce_max8(running);
  F8 lanes[2] = {f8_zero(), f8_zero()};
  for (int64_t j = 0; j < n; j += 8) {
    const F8 p = exp8(_mm256_sub_ps(load8(scores + j), f8(max)));
    store8(scores + j, p);
    lanes[(j >> 3) & 1] = _mm256_add_ps(lanes[(j >> 3) & 1], p);
  }
  const float alpha = exp_f32(state.split_max - max);
  state.split_sum = std::fma(state.split_sum, alpha, reduce8(_mm256_add_ps(lanes[0], lanes[1])));
  state.split_max = max;
  for (int64_t i = 0; i < d; i += 8) {
    store8(acc + i, _mm256_mul_ps(load8(acc + i), f8(alpha)));
  }
}

// acc[q][i..i+8W) += sum over j in [begin, end) of p[q][j] v[j][i..], j ascending.
template <int Q, int W, class V>
void weigh_columns(const float* p, const V* const* v, int64_t begin, int64_t end, int64_t i, float* acc,
                   int64_t d) {
  F8 sum[Q][W];
  for (int q = 0; q < Q; ++q) {
    for (int w = 0; w < W; ++w) sum[q][w] = load8(acc + q * d + i + 8 * w);
  }
  for (int64_t j = begin; j < end; ++j) {
    F8 row[W];
#pragma GCC unroll 4
    for (int w = 0; w < W; ++w) row[w] = load8(v[j] + i + 8 * w);
#pragma GCC unroll 4
    for (int q = 0; q < Q; ++q) {
      const F8 weight = f8(p[q * kAttentionBlock + j]);
#pragma GCC unroll 4
      for (int w = 0; w < W; ++w) sum[q][w] = _mm256_fmadd_ps(weight, row[w], sum[q][w]);
    }
  }
  for (int q = 0; q < Q; ++q) {
    for (int w = 0; w < W; ++w) store8(acc + q * d + i + 8 * w, sum[q][w]);
  }
}

template <int Q, class V>
void weigh_values(const float* p, const V* const* v, int64_t begin, int64_t end, float* acc, int64_t d) {
  int64_t i = 0;
  for (; i + 32 <= d; i += 32) {
    weigh_columns<Q, 4>(p, v, begin, end, i, acc, d);
  }
  for (; i + 8 <= d; i += 8) {
    weigh_columns<Q, 1>(p, v, begin, end, i, acc, d);
  }
}

// All queries of a tile against one block of keys and values.
template <class KV>
void attend_block(const float* const* q, QueryState* states, int64_t queries, const KV* const* k,
                  const KV* const* v, int64_t keys, int64_t dp, int64_t d, float scale, const TileMemory& m) {
  gemm_rows(q, queries, k, keys, dp, m.scores, kAttentionBlock);
  for (int64_t i = 0; i < queries; ++i) {
    if (states[i].visible > 0) {
      softmax_block(states[i], scale, m.scores + i * kAttentionBlock, m.split_acc + i * d, d);
    }
  }
  for (int64_t i = 0; i < queries; i += kQueryTile) {
    const int64_t count = std::min(kQueryTile, queries - i);
    const float* p = m.scores + i * kAttentionBlock;
    float* acc = m.split_acc + i * d;
    int64_t common = states[i].visible;
    for (int64_t t = 1; t < count; ++t) {
      common = std::min(common, states[i + t].visible);
    }
    if (count == 3) {
      weigh_values<3>(p, v, 0, common, acc, d);
    } else if (count == 2) {
      weigh_values<2>(p, v, 0, common, acc, d);
    } else {
      weigh_values<1>(p, v, 0, common, acc, d);
    }
    for (int64_t t = 0; t < count; ++t) {  // keys that only the later rows see
      weigh_values<1>(p + t * kAttentionBlock, v, common, states[i + t].visible, acc + t * d, d);
    }
  }
}

void begin_split(QueryState* states, int64_t queries, int64_t d, const TileMemory& m) {
  for (int64_t i = 0; i < queries; ++i) {
    states[i].split_max = kMinusInfinity;
    states[i].split_sum = 0.0F;
  }
  std::fill(m.split_acc, m.split_acc + queries * d, 0.0F);
}

void merge_split(QueryState* states, int64_t queries, int64_t split, int64_t d, const TileMemory& m) {
  for (int64_t i = 0; i < queries; ++i) {
    QueryState& s = states[i];
    if (s.position < split) {
      continue;  // sees nothing of this split
    }
    const float max = s.split_max > s.max ? s.split_max : s.max;
    const float a = exp_f32(s.max - max);
    const float b = exp_f32(s.split_max - max);
    s.sum = std::fma(s.split_sum, b, s.sum * a);
    s.max = max;
    float* acc = m.acc + i * d;
    const float* part = m.split_acc + i * d;
    for (int64_t j = 0; j < d; j += 8) {
      store8(acc + j, _mm256_fmadd_ps(load8(part + j), f8(b), _mm256_mul_ps(load8(acc + j), f8(a))));
    }
  }
}

void widen_row(const BF16* x, int64_t d, float* out) { formats::decode_bf16_row(x, d, out); }
void widen_row(const float* x, int64_t d, float* out) { std::copy(x, x + d, out); }

template <class T>
class Tile {
 public:
  Tile(const KvLayer& kv, const Segment& segment, int64_t kv_head, const AttentionShape& shape,
       Workspace& scratch)
      : kv_(kv),
        segment_(segment),
        d_(shape.head_dim),
        vd_(shape.v_head_dim > 0 ? shape.v_head_dim : shape.head_dim),
        k_column_(kv_head * d_),
        v_column_(kv_head * vd_),
        scale_(shape.scale != 0.0F ? shape.scale : 1.0F / std::sqrt(static_cast<float>(d_))),
        m_(carve(scratch, d_, vd_)) {}

  // Rows [row, row + rows) of the batch, `group` heads from `head` on.
  void run(MatrixView q, int64_t row, int64_t rows, int64_t head, int64_t group, MatrixView out, float* lse,
           int64_t num_heads) {
    const int64_t queries = rows * group;
    const int64_t dp = padded_k(d_);
    QueryState states[kMaxQueries];
    const float* q_rows[kMaxQueries];
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t r = row + i / group;
      float* to = m_.q + i * dp;
      widen_row(q.row<T>(r) + (head + i % group) * d_, d_, to);
      std::fill(to + d_, to + dp, 0.0F);
      q_rows[i] = to;
      states[i].position = segment_.first_position + (r - segment_.row_begin);
    }
    std::fill(m_.acc, m_.acc + queries * vd_, 0.0F);
    const int64_t end = states[queries - 1].position + 1;
    for (int64_t split = 0; split < end; split += kAttentionSplit) {
      begin_split(states, queries, vd_, m_);
      const int64_t split_end = std::min(end, split + kAttentionSplit);
      for (int64_t block = split; block < split_end; block += kAttentionBlock) {
        const int64_t keys = std::min(kAttentionBlock, split_end - block);
        for (int64_t i = 0; i < queries; ++i) {
          states[i].visible = std::clamp<int64_t>(states[i].position + 1 - block, 0, keys);
        }
        attend(q_rows, states, queries, block, keys);
      }
      merge_split(states, queries, split, vd_, m_);
    }
    for (int64_t i = 0; i < queries; ++i) {
      const int64_t r = row + i / group;
      const int64_t h = head + i % group;
      const float inverse = 1.0F / states[i].sum;
      T* to = out.row<T>(r) + h * vd_;
      for (int64_t j = 0; j < vd_; j += 8) {
        store8(to + j, _mm256_mul_ps(load8(m_.acc + i * vd_ + j), f8(inverse)));
      }
      lse[r * num_heads + h] = states[i].max + log_f32(states[i].sum);
    }
  }

 private:
  void attend(const float* const* q, QueryState* states, int64_t queries, int64_t block, int64_t keys) {
    const T* k[kAttentionBlock];
    const T* v[kAttentionBlock];
    for (int64_t j = 0; j < keys; ++j) {
      const int64_t p = block + j;
      const int64_t cache_row = segment_.pages[p / kPageSize] + p % kPageSize;
      k[j] = kv_.k.row<T>(cache_row) + k_column_;
      v[j] = kv_.v.row<T>(cache_row) + v_column_;
    }
    const int64_t dp = padded_k(d_);
    if (dp == d_ && (queries <= kDirectQueries || sizeof(T) == sizeof(float))) {
      attend_block<T>(q, states, queries, k, v, keys, dp, vd_, scale_, m_);
      return;
    }
    const float* wide_k[kAttentionBlock];
    const float* wide_v[kAttentionBlock];
    for (int64_t j = 0; j < keys; ++j) {
      widen_row(k[j], d_, m_.keys + j * dp);
      std::fill(m_.keys + j * dp + d_, m_.keys + (j + 1) * dp, 0.0F);
      widen_row(v[j], vd_, m_.values + j * vd_);
      wide_k[j] = m_.keys + j * dp;
      wide_v[j] = m_.values + j * vd_;
    }
    attend_block<float>(q, states, queries, wide_k, wide_v, keys, dp, vd_, scale_, m_);
  }

  const KvLayer& kv_;
  const Segment& segment_;
  const int64_t d_;
  const int64_t vd_;
  const int64_t k_column_;
  const int64_t v_column_;
  const float scale_;
  TileMemory m_;
};

template <class T>
void run_tiles(MatrixView q, const KvLayer& kv, const Segment& segment, int64_t row_begin, int64_t row_end,
               int64_t kv_head, const AttentionShape& shape, MatrixView out, float* lse, Workspace& scratch) {
  const int64_t group = shape.num_heads / shape.num_kv_heads;
  Tile<T> tile(kv, segment, kv_head, shape, scratch);
  // A group wider than a tile is taken in parts, one row at a time.
  const int64_t heads_at_once = std::min(group, kMaxQueries);
  const int64_t rows_at_once = std::max<int64_t>(1, kMaxQueries / group);
  for (int64_t row = row_begin; row < row_end; row += rows_at_once) {
    const int64_t rows = std::min(rows_at_once, row_end - row);
    for (int64_t h = 0; h < group; h += heads_at_once) {
      const int64_t heads = std::min(heads_at_once, group - h);
      tile.run(q, row, rows, kv_head * group + h, heads, out, lse, shape.num_heads);
    }
  }
}

}  // namespace

void attention(MatrixView q, const KvLayer& kv, const Segment& segment, int64_t row_begin, int64_t row_end,
               int64_t kv_head, const AttentionShape& shape, MatrixView out, float* lse, Workspace& scratch) {
  assert(row_begin >= segment.row_begin && row_end <= segment.row_begin + segment.num_rows);
  assert(shape.head_dim % 8 == 0 && shape.v_head_dim % 8 == 0 && q.dtype == kv.k.dtype &&
         q.dtype == out.dtype);
  if (q.dtype == Dtype::kBF16) {
    run_tiles<BF16>(q, kv, segment, row_begin, row_end, kv_head, shape, out, lse, scratch);
  } else {
    run_tiles<float>(q, kv, segment, row_begin, row_end, kv_head, shape, out, lse, scratch);
  }
}

}  // namespace accord::kernels
