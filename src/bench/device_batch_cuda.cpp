#include <algorithm>
#include <numeric>

#include "bench/device_batch.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/router/router.hpp"
#include "kernels/router/router_cuda.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

constexpr int32_t kBackwardTileRows = 64;

}  // namespace

cuda::AttentionDims attention_dims(const ModelConfig& c) {
  return {static_cast<int32_t>(c.num_heads), static_cast<int32_t>(c.num_kv_heads),
          static_cast<int32_t>(c.head_dim), static_cast<int32_t>(c.head_dim),
          static_cast<float>(attention_scale(c))};
}

HostBatch::HostBatch(const ModelConfig& config, const Phase& phase)
    : pages_each(static_cast<int32_t>(phase.length / kernels::kPageSize)) {
  const auto length = static_cast<int32_t>(phase.length);
  for (int32_t r = 0; r < static_cast<int32_t>(phase.rows); ++r) {
    tokens.push_back(static_cast<int32_t>((int64_t{r} * 7919 + 1) % config.vocab_size));
    positions.push_back(phase.decode ? length - 1 : r % length);
    rows.push_back(phase.decode ? r * length + length - 1 : r);
  }
  const auto count = static_cast<int32_t>(phase.sequences()) * pages_each;
  for (int32_t page = 0; page < count; ++page) pages.push_back(page * kernels::kPageSize);
}

DeviceBatch::DeviceBatch(const Gpu& gpu, const ModelConfig& config, const Phase& phase) {
  const HostBatch host(config, phase);
  const auto length = static_cast<int32_t>(phase.length);
  const int32_t step = phase.decode ? 1 : cuda::attention_tile_rows(attention_dims(config), false);
  std::vector<int32_t> row_id(static_cast<size_t>(phase.rows));
  std::iota(row_id.begin(), row_id.end(), 0);
  std::vector<cuda::AttentionTile> tile;
  std::vector<cuda::AttentionBackwardTile> backward_tile;
  for (int32_t s = 0; s < static_cast<int32_t>(phase.sequences()); ++s) {
    const int32_t page_begin = s * host.pages_each;
    if (phase.decode) {
      tile.push_back({s, 1, length - 1, page_begin});
      continue;
    }
    for (int32_t at = 0; at < length; at += step) {
      tile.push_back({s * length + at, std::min(step, length - at), at, page_begin});
    }
  }
  for (int32_t at = 0; !phase.decode && at < length; at += kBackwardTileRows) {  // the most work first
    for (int32_t s = 0; s < static_cast<int32_t>(phase.sequences()); ++s) {
      backward_tile.push_back({s * length, length, at});
    }
  }
  std::stable_sort(tile.begin(), tile.end(), [](const cuda::AttentionTile& x, const cuda::AttentionTile& y) {
    return x.first_position > y.first_position;  // the longest first
  });
  tokens = gpu.upload(host.tokens);
  positions = gpu.upload(host.positions);
  rows = gpu.upload(host.rows);
  row_ids = gpu.upload(row_id);
  pages = gpu.upload(host.pages);
  tiles = gpu.upload(tile);
  num_tiles = static_cast<int32_t>(tile.size());
  backward_tiles = gpu.upload(backward_tile);
  num_backward_tiles = static_cast<int32_t>(backward_tile.size());
  if (phase.decode) {
    max_splits =
        static_cast<int32_t>((phase.length + kernels::kAttentionSplit - 1) / kernels::kAttentionSplit);
  }
}

Routed::Routed(DeviceBench& bench, const ModelConfig& config, const Sizes& s)
    : rule(kernels::router_rule(config)) {
  const Gpu& gpu = bench.gpu();
  const auto ints = [&](int64_t count) {
    return must(Memory::allocate(gpu.device(), static_cast<size_t>(count) * sizeof(int32_t)));
  };
  scores = ints(s.rows * s.experts);
  weights = ints(s.sorted);
  ids = ints(s.sorted);
  offsets = ints(s.experts + 1);
  tokens = ints(s.sorted);
  slots = ints(s.sorted);
  slot_rows = ints(s.sorted);
  scratch = ints(cuda::sort_scratch(s.sorted, s.experts));
  groups.tile_rows = cuda::group_tile_rows(s.sorted, s.experts);
  groups.max_tiles = cuda::group_tiles_bound(s.sorted, s.experts, groups.tile_rows);
  list_size = cuda::group_list_size(s.sorted, s.experts, groups.tile_rows);
  tiles = must(Memory::allocate(gpu.device(), static_cast<size_t>(list_size) * sizeof(cuda::GroupTile)));
  num_tiles = ints(1);
  groups.tiles = tiles.as<cuda::GroupTile>();
  groups.num_tiles = num_tiles.as<int32_t>();
  cuda::route(rule, bench.f32(s.rows * s.experts), s.rows, nullptr, false, scores.as<float>(),
              ids.as<int32_t>(), weights.as<float>(), bench.stream());
  cuda::sort_by_expert(
      ids.as<int32_t>(), s.sorted, s.experts, s.slots,
      {offsets.as<int32_t>(), tokens.as<int32_t>(), slots.as<int32_t>(), slot_rows.as<int32_t>()},
      scratch.as<int32_t>(), bench.stream());
  cuda::build_group_tiles(offsets.as<int32_t>(), static_cast<int32_t>(s.experts), groups.tile_rows,
                          tiles.as<cuda::GroupTile>(), num_tiles.as<int32_t>(), bench.stream());
  begins = gpu.download<int32_t>(offsets, static_cast<size_t>(s.experts) + 1);
  for (size_t e = 0; e + 1 < begins.size(); ++e) used_experts += begins[e + 1] > begins[e] ? 1 : 0;
}

}  // namespace accord::bench
