#include "kernels/attention/attention_backward.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/math/simd.hpp"

namespace accord::kernels {

namespace {

constexpr int64_t kTile = 64;  // rows of a query tile and of a key tile: two 64x64 fp32 tiles stay in L1
constexpr int64_t kVector = 8;

constexpr int64_t round_up(int64_t x, int64_t to) { return (x + to - 1) / to * to; }

// c[M,N] (+)= a[M,L] b[L,N]; a(m,l) = a[m * a_row + l * a_col], so that a may be read transposed.
struct TileProduct {
  const float* a;
  int64_t a_row, a_col;
  const float* b;
  int64_t ldb;
  float* c;
  int64_t ldc;
  int64_t m, l, n;  // n a multiple of 8
};

template <int kRows, int kVectors>
void micro_product(const TileProduct& p, int64_t row, int64_t col, bool accumulate) {
  F8 acc[kRows][kVectors];
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) {
      acc[i][j] = accumulate ? load8(p.c + (row + i) * p.ldc + col + j * kVector) : f8_zero();
    }
  }
  const float* a = p.a + row * p.a_row;
  const float* b = p.b + col;
  for (int64_t l = 0; l < p.l; ++l, a += p.a_col, b += p.ldb) {
    F8 b8[kVectors];
    for (int j = 0; j < kVectors; ++j) b8[j] = load8(b + j * kVector);
    for (int i = 0; i < kRows; ++i) {
      const F8 a8 = f8(a[i * p.a_row]);
      for (int j = 0; j < kVectors; ++j) acc[i][j] = _mm256_fmadd_ps(a8, b8[j], acc[i][j]);
    }
  }
  for (int i = 0; i < kRows; ++i) {
    for (int j = 0; j < kVectors; ++j) store8(p.c + (row + i) * p.ldc + col + j * kVector, acc[i][j]);
  }
}

template <int kRows>
void row_band(const TileProduct& p, int64_t row, bool accumulate) {
  int64_t col = 0;
  for (; col + 2 * kVector <= p.n; col += 2 * kVector) micro_product<kRows, 2>(p, row, col, accumulate);
  if (col < p.n) micro_product<kRows, 1>(p, row, col, accumulate);
}

// Sums over l ascending, one fused multiply-add each, whatever the blocking.
void tile_product(const TileProduct& p, bool accumulate) {
  int64_t row = 0;
  for (; row + 6 <= p.m; row += 6) row_band<6>(p, row, accumulate);
  for (; row + 2 <= p.m; row += 2) row_band<2>(p, row, accumulate);
  if (row < p.m) row_band<1>(p, row, accumulate);
}

// One head's columns as contiguous fp32 rows of `padded` columns (zeros past head_dim).
template <class T>
void load_head(const T* base, int64_t stride, int64_t rows, int64_t head_dim, int64_t padded, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t d = 0; d < head_dim; ++d) out[r * padded + d] = to_float(base[r * stride + d]);
    std::fill(out + r * padded + head_dim, out + (r + 1) * padded, 0.0F);
  }
}

void load_head(MatrixView view, int64_t head, int64_t head_dim, int64_t padded, float* out) {
  const MatrixView columns = view.slice_cols(head * head_dim, head_dim);
  if (view.dtype == Dtype::kBF16) {
    load_head(columns.row<BF16>(0), view.stride, view.rows, head_dim, padded, out);
  } else {
    load_head(columns.row<float>(0), view.stride, view.rows, head_dim, padded, out);
  }
}

void store_head(const float* in, int64_t rows, int64_t head_dim, int64_t padded, int64_t stride, float* out) {
  for (int64_t r = 0; r < rows; ++r) {
    std::memcpy(out + r * stride, in + r * padded, static_cast<size_t>(head_dim) * sizeof(float));
  }
}

// [rows, padded] -> [padded, ld], zeros past `rows`.
void transpose(const float* in, int64_t rows, int64_t padded, int64_t ld, float* out) {
  for (int64_t d = 0; d < padded; ++d) {
    for (int64_t r = 0; r < rows; ++r) out[d * ld + r] = in[r * padded + d];
    std::fill(out + d * ld + rows, out + (d + 1) * ld, 0.0F);
  }
}

struct Scratch {
  int64_t padded;  // head_dim rounded up to whole vectors
  int64_t ld;      // rows rounded up to whole tiles
  float *k, *k_t, *v_t, *q, *dout, *dq, *dk, *dv, *dot, *lse, *p, *ds;

  Scratch(float* base, int64_t rows, int64_t head_dim)
      : padded(round_up(head_dim, kVector)), ld(round_up(rows, kTile)) {
    const int64_t plane = padded * ld;
    for (float** pointer : {&k, &k_t, &v_t, &q, &dout, &dq, &dk, &dv}) {
      *pointer = base;
      base += plane;
    }
    dot = base;
    lse = dot + ld;
    p = lse + ld;
    ds = p + kTile * kTile;
  }
};

// p and ds of one tile from the scores (in p) and dp (in ds); query rows q0.., key rows k0...
void softmax_backward_tile(const Scratch& s, int64_t q0, int64_t q_rows, int64_t k0, int64_t k_padded,
                           float scale) {
  for (int64_t i = 0; i < q_rows; ++i) {
    float* p = s.p + i * kTile;
    float* ds = s.ds + i * kTile;
    const F8 lse = f8(s.lse[q0 + i]);
    const F8 dot = f8(s.dot[q0 + i]);
    const int64_t visible = q0 + i - k0 + 1;  // keys of this tile that the row sees; may exceed the tile
    for (int64_t j = 0; j < k_padded; j += kVector) {
      F8 p8 = exp8(load8(p + j) * f8(scale) - lse);
      F8 ds8 = p8 * (load8(ds + j) - dot) * f8(scale);
      if (j + kVector > visible) {
        // Masked with a bitwise and: a hidden position is 0 even where its score is not finite.
        const __m256i limit = _mm256_set1_epi32(static_cast<int32_t>(std::max<int64_t>(visible - j, 0)));
        const __m256i lane = _mm256_setr_epi32(0, 1, 2, 3, 4, 5, 6, 7);
        const F8 seen = _mm256_castsi256_ps(_mm256_cmpgt_epi32(limit, lane));
        p8 = _mm256_and_ps(seen, p8);
        ds8 = _mm256_and_ps(seen, ds8);
      }
      store8(ds + j, ds8);
      store8(p + j, p8);
    }
  }
}

void backward_query_head(const Scratch& s, int64_t rows, float scale) {
  const int64_t d = s.padded;
  for (int64_t k0 = 0; k0 < rows; k0 += kTile) {
    const int64_t k_rows = std::min(kTile, rows - k0);
    const int64_t k_padded = round_up(k_rows, kVector);
    for (int64_t q0 = k0; q0 < rows; q0 += kTile) {
      const int64_t q_rows = std::min(kTile, rows - q0);
      const float* q = s.q + q0 * d;
      const float* dout = s.dout + q0 * d;
      tile_product({q, d, 1, s.k_t + k0, s.ld, s.p, kTile, q_rows, d, k_padded}, false);
      tile_product({dout, d, 1, s.v_t + k0, s.ld, s.ds, kTile, q_rows, d, k_padded}, false);
      softmax_backward_tile(s, q0, q_rows, k0, k_padded, scale);
      tile_product({s.p, 1, kTile, dout, d, s.dv + k0 * d, d, k_rows, q_rows, d}, true);
      tile_product({s.ds, 1, kTile, q, d, s.dk + k0 * d, d, k_rows, q_rows, d}, true);
      tile_product({s.ds, kTile, 1, s.k + k0 * d, d, s.dq + q0 * d, d, q_rows, k_rows, d}, true);
    }
  }
}

}  // namespace

int64_t attention_backward_scratch(int64_t num_rows, int64_t head_dim) {
  const int64_t ld = round_up(num_rows, kTile);
  return 8 * ld * round_up(head_dim, kVector) + 2 * ld + 2 * kTile * kTile;
}

void attention_backward(const AttentionBackward& args, int64_t kv_head, float* scratch) {
  const int64_t rows = args.q_NQ.rows;
  const int64_t head_dim = args.head_dim;
  const int64_t v_dim = args.v_head_dim > 0 ? args.v_head_dim : head_dim;
  const int64_t q_width = args.num_heads * head_dim;
  const int64_t out_width = args.num_heads * v_dim;
  const int64_t group = args.num_heads / args.num_kv_heads;
  const Scratch s(scratch, rows, std::max(head_dim, v_dim));  // the narrower has zeros up to the wider
  const size_t plane_bytes = static_cast<size_t>(s.padded * s.ld) * sizeof(float);

  load_head(args.v_NC, kv_head, v_dim, s.padded, s.k);  // k's place holds v until v is transposed
  transpose(s.k, rows, s.padded, s.ld, s.v_t);
  load_head(args.k_NC, kv_head, head_dim, s.padded, s.k);
  transpose(s.k, rows, s.padded, s.ld, s.k_t);
  std::memset(s.dk, 0, plane_bytes);
  std::memset(s.dv, 0, plane_bytes);
  for (int64_t head = kv_head * group; head < (kv_head + 1) * group; ++head) {
    load_head(args.out_NQ, head, v_dim, s.padded, s.q);
    load_head(args.dout_NQ + head * v_dim, out_width, rows, v_dim, s.padded, s.dout);
    for (int64_t r = 0; r < rows; ++r) {
      F8 sum = f8_zero();
      for (int64_t d = 0; d < s.padded; d += kVector) {
        sum = _mm256_fmadd_ps(load8(s.q + r * s.padded + d), load8(s.dout + r * s.padded + d), sum);
      }
      s.dot[r] = reduce8(sum);
      s.lse[r] = args.lse[r * args.num_heads + head];
    }
    load_head(args.q_NQ, head, head_dim, s.padded, s.q);
    std::memset(s.dq, 0, plane_bytes);
    backward_query_head(s, rows, args.scale);
    store_head(s.dq, rows, head_dim, s.padded, q_width, args.dq_NQ + head * head_dim);
  }
  store_head(s.dk, rows, head_dim, s.padded, args.num_kv_heads * head_dim, args.dk_NC + kv_head * head_dim);
  store_head(s.dv, rows, v_dim, s.padded, args.num_kv_heads * v_dim, args.dv_NC + kv_head * v_dim);
}

}  // namespace accord::kernels
