// The batch on its way to the device, and attention over it.
#include <algorithm>
#include <bit>
#include <cstring>
#include <span>
#include <vector>

#include "model/cuda_impl.hpp"

namespace accord::model {
namespace {

namespace cuda = kernels::cuda;
using cuda::AttentionTile;

constexpr int32_t kMaxTiles = 65535;  // of one launch

int64_t pages_of(const Segment& s) {
  return (int64_t{s.first_position} + s.num_rows + kPageSize - 1) / kPageSize;
}

// Segments of one row at the start of the batch: a decode step's sequences come first.
size_t decoding(const Batch& batch) {
  size_t count = 0;
  int32_t row = 0;
  for (const Segment& s : batch.segments) {
    if (s.num_rows != 1 || s.row_begin != row) break;
    ++row;
    ++count;
  }
  return count;
}

// The batch's arrays, in the layout that goes to the device as one block of int32.
struct Layout {
  Layout(const Batch& batch, int32_t tile_rows) : decode(decoding(batch)) {
    for (size_t i = 0; i < batch.segments.size(); ++i) {
      pages += pages_of(batch.segments[i]);
      if (i >= decode) tiles += (batch.segments[i].num_rows + tile_rows - 1) / tile_rows;
    }
  }
  size_t decode;      // segments, one tile each
  int64_t tiles = 0;  // of the other segments
  int64_t pages = 0;
};

constexpr int64_t kTileWords = sizeof(AttentionTile) / sizeof(int32_t);

int64_t aligned(int64_t words) { return (words + 3) / 4 * 4; }

// Blocks of attention beyond a row's context end at once.
int32_t splits_of(int32_t context) {
  const auto splits =
      static_cast<uint32_t>((context + kernels::kAttentionSplit - 1) / kernels::kAttentionSplit);
  return static_cast<int32_t>(std::bit_ceil(splits));
}

}  // namespace

Status CudaModel::reserve(int64_t rows, int64_t positions) {
  Impl& m = *impl_;
  ACCORD_RETURN_IF_ERROR(m.reserve(rows));
  // Fewer rows may ask for more tiles of experts, as tiles are smaller then.
  for (int64_t fewer = rows / 2; fewer > 0 && m.config.num_experts > 0; fewer /= 2) {
    ACCORD_RETURN_IF_ERROR(m.reserve(fewer));
  }
  ACCORD_RETURN_IF_ERROR(m.reserve_head(rows, /*own_normed=*/true));
  ACCORD_RETURN_IF_ERROR(m.ensure_rope(positions));
  // Tokens, positions, places in the cache, a tile a row, and page lists: very long ones may grow later.
  constexpr int64_t kMaxPageBytes = int64_t{8} << 20;
  const int64_t pages = rows * ((positions + kPageSize - 1) / kPageSize);
  const int64_t page_bytes = std::min<int64_t>(pages * sizeof(int32_t), kMaxPageBytes);
  const auto bytes = static_cast<size_t>(aligned(rows) * (3 + kTileWords) * sizeof(int32_t)) +
                     static_cast<size_t>(page_bytes);
  ACCORD_RETURN_IF_ERROR(m.batch.staging.ensure(m.device, bytes, MemoryKind::kPinned));
  return m.batch.memory.ensure(m.device, bytes);
}

Status CudaModel::set_batch(const Batch& batch) {
  Impl& m = *impl_;
  CudaBatch& b = m.batch;
  ACCORD_RETURN_IF_ERROR(m.reserve(batch.num_rows()));
  const int32_t tile_rows = cuda::attention_tile_rows(m.attention_dims(), /*few_rows=*/false);
  const Layout layout(batch, tile_rows);
  const int64_t rows = aligned(batch.num_rows());
  const int64_t tiles = static_cast<int64_t>(layout.decode) + layout.tiles;
  const int64_t words = 3 * rows + tiles * kTileWords + layout.pages;
  const size_t bytes = static_cast<size_t>(words) * sizeof(int32_t);
  if (b.in_flight) ACCORD_RETURN_IF_ERROR(b.copied.synchronize());
  b.in_flight = false;
  ACCORD_RETURN_IF_ERROR(b.staging.ensure(m.device, bytes, MemoryKind::kPinned));
  ACCORD_RETURN_IF_ERROR(b.memory.ensure(m.device, bytes));

  auto* const host = b.staging.as<int32_t>();
  const auto* const on_device = b.memory.as<int32_t>();
  const auto put = [&](std::span<const int32_t> values, int64_t at) {
    std::copy(values.begin(), values.end(), host + at);
    return on_device + at;
  };
  b.rows = batch.num_rows();
  b.tokens = put(batch.tokens, 0);
  b.positions = put(batch.positions, rows);
  b.kv_rows = put(batch.kv_rows, 2 * rows);
  const int64_t tile_at = 3 * rows;
  int64_t page_at = tile_at + tiles * kTileWords;
  b.pages = on_device + page_at;
  b.decode_tiles = reinterpret_cast<const AttentionTile*>(on_device + tile_at);
  b.tiles = b.decode_tiles + layout.decode;
  b.num_decode_tiles = static_cast<int32_t>(layout.decode);
  b.num_tiles = static_cast<int32_t>(layout.tiles);
  b.decode_rows = static_cast<int64_t>(layout.decode);
  std::vector<AttentionTile> all;
  all.reserve(static_cast<size_t>(tiles));
  int32_t longest = 0;
  int32_t page_begin = 0;
  for (size_t i = 0; i < batch.segments.size(); ++i) {
    const Segment& s = batch.segments[i];
    const bool decode = i < layout.decode;
    if (decode) longest = std::max(longest, s.first_position + 1);
    const int32_t step = decode ? 1 : tile_rows;
    for (int32_t row = 0; row < s.num_rows; row += step) {
      all.push_back(
          {s.row_begin + row, std::min(step, s.num_rows - row), s.first_position + row, page_begin});
    }
    const int64_t pages = pages_of(s);
    std::copy_n(s.pages, pages, host + page_at);
    page_at += pages;
    page_begin += static_cast<int32_t>(pages);
  }
  std::stable_sort(all.begin() + static_cast<std::ptrdiff_t>(layout.decode), all.end(),
                   [](const AttentionTile& x, const AttentionTile& y) {
                     return x.first_position + x.num_rows >
                            y.first_position + y.num_rows;  // the longest first
                   });
  if (!all.empty()) std::memcpy(host + tile_at, all.data(), all.size() * sizeof(AttentionTile));
  b.decode_splits = longest == 0 ? 1 : splits_of(longest);
  if (b.decode_splits > 1) {
    ACCORD_RETURN_IF_ERROR(
        m.partials.ensure(m.device, static_cast<size_t>(cuda::attention_partials_bytes(
                                        m.attention_dims(), b.decode_rows, b.decode_splits))));
  }
  int32_t last_position = 0;
  for (const int32_t p : batch.positions) last_position = std::max(last_position, p);
  ACCORD_RETURN_IF_ERROR(m.ensure_rope(int64_t{last_position} + 1));
  if (bytes == 0) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(m.stream.copy(b.memory.data(), b.staging.data(), bytes));
  b.in_flight = true;
  return b.copied.record(m.stream);
}

Status CudaModel::Impl::ensure_rope(int64_t positions) {
  if (positions <= rope_positions) return absl::OkStatus();
  // In steps, so that a growing context does not copy the table each time.
  constexpr int64_t kStep = 4096;
  const int64_t wanted = (std::max(positions, 2 * rope_positions) + kStep - 1) / kStep * kStep;
  const int64_t count = config.max_position_embeddings > positions
                            ? std::min(wanted, config.max_position_embeddings)
                            : positions;
  rope.ensure(count);
  const size_t bytes = static_cast<size_t>(count * (rope.head_dim() / 2)) * sizeof(float);
  ACCORD_RETURN_IF_ERROR(rope_memory.ensure(device, 2 * bytes));
  rope_positions = count;
  ACCORD_RETURN_IF_ERROR(stream.copy(rope_memory.data(), rope.cos(0), bytes));
  ACCORD_RETURN_IF_ERROR(stream.copy(rope_memory.as<std::byte>() + bytes, rope.sin(0), bytes));
  return stream.synchronize();  // the table may be replaced by the next call
}

kernels::cuda::RopeTableView CudaModel::Impl::rope_view() const {
  const int64_t half = rope.head_dim() / 2;
  const auto* cos = rope_memory.as<float>();
  return {cos, cos + rope_positions * half, half};
}

cuda::AttentionDims CudaModel::Impl::attention_dims() const {
  const auto scale = static_cast<float>(attention_scale(config));
  const auto dims = [&](int64_t kv_heads, int64_t head_dim, int64_t v_head_dim) {
    return cuda::AttentionDims{static_cast<int32_t>(config.num_heads), static_cast<int32_t>(kv_heads),
                               static_cast<int32_t>(head_dim), static_cast<int32_t>(v_head_dim), scale};
  };
  const MlaConfig& mla = config.mla;
  if (config.absorbed()) return dims(1, mla.kv_lora_rank + mla.qk_rope_head_dim, mla.kv_lora_rank);
  if (config.has_mla()) return dims(config.num_heads, mla.qk_head_dim(), mla.v_head_dim);
  return dims(config.num_kv_heads, config.head_dim, config.head_dim);
}

void CudaModel::Impl::attend(MatrixView query, const KvLayer& kv, MatrixView out, float* lse) {
  cuda::AttentionForward a;
  a.dims = attention_dims();
  a.q = static_cast<const BF16*>(query.data);
  a.q_stride = query.stride;
  a.k = static_cast<const BF16*>(kv.k.data);
  a.k_stride = kv.k.stride;
  a.v = static_cast<const BF16*>(kv.v.data);
  a.v_stride = kv.v.stride;
  a.out = static_cast<BF16*>(out.data);
  a.out_stride = out.stride;
  a.lse = lse;
  a.pages = batch.pages;
  const auto launch = [&](const AttentionTile* tiles, int32_t count) {
    for (int32_t begin = 0; begin < count; begin += kMaxTiles) {
      a.tiles = tiles + begin;
      a.num_tiles = std::min(kMaxTiles, count - begin);
      cuda::attention_forward(a, handle());
    }
  };
  a.num_rows = batch.rows;
  launch(batch.tiles, batch.num_tiles);
  a.few_rows = true;
  a.num_rows = batch.decode_rows;  // rows [0, decode_rows) are this launch's
  if (batch.decode_splits > 1 && batch.num_decode_tiles <= kMaxTiles) {
    a.max_splits = batch.decode_splits;
    a.positions = batch.positions;
    a.partials = partials.data();
  }
  launch(batch.decode_tiles, batch.num_decode_tiles);
}

}  // namespace accord::model
