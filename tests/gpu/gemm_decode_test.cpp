// Grouped products at the shapes that the kernels for decoding and for many rows of experts take, against the
// CPU's exact mode, bit for bit: tiles that several blocks share, blocks that pass from tile to tile, experts
// without rows.
#include <algorithm>

#include "base/philox.hpp"
#include "exact_reference.hpp"
#include "gpu.hpp"
#include "kernels/gemm/fragments.hpp"
#include "kernels/gemm/fragments_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace gpu_test;
using kernels::cuda::GemmForward;
using kernels::cuda::GemmGroups;
using kernels::cuda::GemmWeight;
using kernels::cuda::GroupTile;

namespace {

// Without output and fragments.
GemmForward grouped_product(WeightFormat format, int64_t m, int64_t n, int64_t k, const Memory& a,
                            const Memory& a_outer, const GemmGroups& groups) {
  GemmForward g;
  g.format = format;
  g.m = m;
  g.n = n;
  g.k = k;
  g.a = a.as<BF16>();
  g.lda = k;
  g.a_outer = a_outer.as<float>();
  g.groups = &groups;
  return g;
}

// Products of every expert's rows, gathered from `tokens` rows; into fp32 and bf16.
void check_groups(const Gpu& gpu, WeightFormat format, Data data, const std::vector<int32_t>& counts,
                  int64_t tokens, int64_t n, int64_t k, int32_t tile_rows) {
  const auto experts = static_cast<int32_t>(counts.size());
  std::vector<int32_t> offsets = {0};
  for (const int32_t c : counts) offsets.push_back(offsets.back() + c);
  const int64_t total = offsets.back();
  PhiloxStream random(11, static_cast<uint64_t>(n * k));
  std::vector<int32_t> gather;
  for (int64_t i = 0; i < total; ++i) {
    gather.push_back(static_cast<int32_t>(random.next_below(static_cast<uint64_t>(tokens))));
  }
  const TestActivations a = make_activations(format, make_data(data, tokens, k, 11), tokens, k);
  std::vector<DeviceWeight> weights;
  std::vector<Memory> fragments;
  std::vector<GemmWeight> table;
  const bool takes_fragments = tile_rows == 16 && kernels::takes_fragments(format, n, k);
  std::vector<float> expected;
  for (int32_t e = 0; e < experts; ++e) {
    const TestWeight w = make_weight(format, make_data(data, n, k, 20 + static_cast<uint64_t>(e)), n, k);
    weights.push_back(upload(gpu, w));
    table.push_back(weights.back().weight());
    if (takes_fragments) {
      fragments.push_back(gpu.allocate(static_cast<size_t>(kernels::fragments_bytes(format, n, k))));
      table.back().fragments = fragments.back().data();
    }
    const int32_t count = counts[static_cast<size_t>(e)];
    if (count == 0) continue;
    std::vector<BF16> part;
    std::vector<float> outer;
    for (int32_t i = 0; i < count; ++i) {
      const int32_t t = gather[static_cast<size_t>(offsets[static_cast<size_t>(e)]) + static_cast<size_t>(i)];
      part.insert(part.end(), a.decoded.begin() + t * k, a.decoded.begin() + (t + 1) * k);
      if (!a.outer.empty()) outer.push_back(a.outer[static_cast<size_t>(t)]);
    }
    std::vector<float> c = exact_products(part, w.decoded, count, n, k);
    if (format == WeightFormat::kNVFP4) nvfp4_epilogue(c, count, n, outer, w.outer);
    expected.insert(expected.end(), c.begin(), c.end());
  }
  const Memory device_offsets = gpu.upload(offsets);
  const Memory device_gather = gpu.upload(gather);
  const Memory device_table = gpu.upload(table);
  const Memory rows_of_a = gpu.upload(a.decoded);
  const Memory outer = gpu.upload(a.outer);
  const int32_t bound = kernels::cuda::group_tiles_bound(total, experts, tile_rows);
  const int32_t list_size = kernels::cuda::group_list_size(total, experts, tile_rows);
  const Memory tiles = gpu.allocate(static_cast<size_t>(list_size) * sizeof(GroupTile));
  const Memory num_tiles = gpu.allocate(4);
  kernels::cuda::build_group_tiles(device_offsets.as<int32_t>(), experts, tile_rows, tiles.as<GroupTile>(),
                                   num_tiles.as<int32_t>(), gpu.handle());
  GemmGroups groups;
  groups.tiles = tiles.as<GroupTile>();
  groups.num_tiles = num_tiles.as<int32_t>();
  groups.max_tiles = bound;
  groups.tile_rows = tile_rows;
  groups.experts = device_table.as<GemmWeight>();
  groups.gather = device_gather.as<int32_t>();
  GemmForward g = grouped_product(format, total, n, k, rows_of_a, outer, groups);
  REQUIRE(kernels::cuda::gemm_forward_takes(g));
  std::vector<BF16> expected_rounded;
  expected_rounded.reserve(expected.size());
  for (const float x : expected) expected_rounded.push_back(accord::to_bf16(x));
  if (takes_fragments)
    kernels::cuda::to_fragments(format, n, k, device_table.as<GemmWeight>(), experts, gpu.handle());
  for (const bool from_fragments : {false, true}) {
    if (from_fragments && !takes_fragments) break;
    const Memory exact = gpu.upload(std::vector<float>(expected.size(), -1.0F));
    const Memory rounded = gpu.upload(std::vector<BF16>(expected.size()));
    g.fragments = from_fragments;
    g.b_at_rest = groups.at_rest = false;
    g.c = {exact.data(), n, false, false};
    kernels::cuda::gemm_forward(g, gpu.handle());
    g.b_at_rest = groups.at_rest = true;  // what comes before it is a product
    g.c = {rounded.data(), n, true, false};
    kernels::cuda::gemm_forward(g, gpu.handle());
    report("experts",
           std::string(name_of(format)) + " " + name_of(data) + " tile " + std::to_string(tile_rows) +
               " N=" + std::to_string(n) + " K=" + std::to_string(k) + (from_fragments ? " fragments" : ""),
           different(gpu.download<float>(exact, expected.size()), expected) +
               different(gpu.download<BF16>(rounded, expected.size()), expected_rounded),
           2 * expected.size());
  }
}

// Products of the same rows with two tables of experts, in one call and one by one, into bf16 or fp32.
void check_pairs(const Gpu& gpu, WeightFormat format, const std::vector<int32_t>& counts, int64_t n,
                 int64_t k, int32_t tile_rows) {
  const auto experts = static_cast<int32_t>(counts.size());
  std::vector<int32_t> offsets = {0};
  for (const int32_t c : counts) offsets.push_back(offsets.back() + c);
  const int64_t total = offsets.back();
  const int64_t tokens = 50;
  PhiloxStream random(11, static_cast<uint64_t>(n * k));
  std::vector<int32_t> gather;
  gather.reserve(static_cast<size_t>(total));
  for (int64_t i = 0; i < total; ++i) gather.push_back(static_cast<int32_t>(random.next_below(tokens)));
  const TestActivations a = make_activations(format, make_data(Data::kNormal, tokens, k, 11), tokens, k);
  std::vector<DeviceWeight> weights;
  std::vector<Memory> fragments;
  const bool takes_fragments = kernels::takes_fragments(format, n, k);
  for (uint64_t i = 0; i < 3; ++i) {
    weights.push_back(upload(gpu, make_weight(format, make_data(Data::kNormal, n, k, 20 + i), n, k)));
    const int64_t bytes = takes_fragments ? kernels::fragments_bytes(format, n, k) : 16;
    fragments.push_back(gpu.allocate(static_cast<size_t>(bytes)));
  }
  std::vector<Memory> tables;
  for (int32_t first = 0; first < 2; ++first) {
    std::vector<GemmWeight> table;
    for (int32_t e = 0; e < experts; ++e) {
      const auto i = static_cast<size_t>((e + first) % 3);
      table.push_back(weights[i].weight());
      table.back().fragments = fragments[i].data();
    }
    tables.push_back(gpu.upload(table));
  }
  if (takes_fragments) {
    kernels::cuda::to_fragments(format, n, k, tables[0].as<GemmWeight>(), std::min(experts, 3), gpu.handle());
  }
  const Memory device_offsets = gpu.upload(offsets);
  const Memory device_gather = gpu.upload(gather);
  const Memory rows_of_a = gpu.upload(a.decoded);
  const Memory outer = gpu.upload(a.outer);
  const Memory tiles = gpu.allocate(
      static_cast<size_t>(kernels::cuda::group_list_size(total, experts, tile_rows)) * sizeof(GroupTile));
  const Memory num_tiles = gpu.allocate(4);
  kernels::cuda::build_group_tiles(device_offsets.as<int32_t>(), experts, tile_rows, tiles.as<GroupTile>(),
                                   num_tiles.as<int32_t>(), gpu.handle());
  const auto size = static_cast<size_t>(total * n);
  for (const bool from_fragments : {false, true}) {
    if (from_fragments && !takes_fragments) break;
    for (const bool bf16 : {true, false}) {
      GemmGroups groups[2];
      std::vector<GemmForward> products;
      std::vector<Memory> alone;
      std::vector<Memory> together;
      for (size_t i = 0; i < 2; ++i) {
        groups[i].tiles = tiles.as<GroupTile>();
        groups[i].num_tiles = num_tiles.as<int32_t>();
        groups[i].max_tiles = kernels::cuda::group_tiles_bound(total, experts, tile_rows);
        groups[i].tile_rows = tile_rows;
        groups[i].experts = tables[i].as<GemmWeight>();
        groups[i].gather = device_gather.as<int32_t>();
        groups[i].at_rest = bf16;
        GemmForward g = grouped_product(format, total, n, k, rows_of_a, outer, groups[i]);
        g.fragments = from_fragments;
        g.b_at_rest = bf16;  // what comes before it is a product, or an upload
        alone.push_back(gpu.upload(std::vector<float>(size, -1.0F)));
        together.push_back(gpu.upload(std::vector<float>(size, -2.0F)));
        g.c = {alone.back().data(), n, bf16, false};
        kernels::cuda::gemm_forward(g, gpu.handle());
        g.c.data = together.back().data();
        products.push_back(g);
      }
      kernels::cuda::gemm_forward_together(products, gpu.handle());
      int64_t wrong = 0;
      for (size_t i = 0; i < 2; ++i) {
        wrong += bf16
                     ? different(gpu.download<BF16>(together[i], size), gpu.download<BF16>(alone[i], size))
                     : different(gpu.download<float>(together[i], size), gpu.download<float>(alone[i], size));
      }
      report("two products of experts",
             std::string(name_of(format)) + " N=" + std::to_string(n) + " K=" + std::to_string(k) + " tile " +
                 std::to_string(tile_rows) + (from_fragments ? " fragments" : "") +
                 (bf16 ? " bf16" : " fp32"),
             wrong, 2 * size);
    }
  }
}

std::vector<int32_t> many_counts(int32_t experts, int32_t most) {
  std::vector<int32_t> counts;
  counts.reserve(static_cast<size_t>(experts));
  for (int32_t e = 0; e < experts; ++e) counts.push_back((e * 7 + e / 5) % (most + 1));
  return counts;
}

}  // namespace

// In both tests a shape is there for the kernel that Hopper's 132 multiprocessors take it to
// (gemm_dispatch.cuh, launch_decode), and no larger than it needs to be: exact sums take the CPU's time.

TEST_CASE("products of experts with few rows equal the exact mode where tiles share blocks") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const TensorCoreProducts products;
  const std::vector<int32_t> ragged = {0, 1, 5, 16, 17, 33, 0, 8, 9, 3, 0};
  for (const WeightFormat format : kFormats) {
    // Four warps a block, eight stages; BF16 columns by 16.
    for (const Data data : kAllData) check_groups(*gpu, format, data, ragged, 40, 144, 768, 16);
    for (const Data data : {Data::kNormal, Data::kHeavy}) {
      check_groups(*gpu, format, data, ragged, 40, 256, 768, 16);
    }
    check_groups(*gpu, format, Data::kNormal, many_counts(300, 2), 50, 32, 2048, 16);
    check_groups(*gpu, format, Data::kHeavy, ragged, 40, 80, 2048, 16);
    check_groups(*gpu, format, Data::kNormal, {16, 16, 12, 16, 9, 16}, 40, 48, 2048, 16);
    // Eight warps, six stages.
    check_groups(*gpu, format, Data::kNormal, many_counts(300, 3), 50, 48, 256, 16);
    // Several blocks a multiprocessor; BF16 columns by 64, with an edge and without.
    check_groups(*gpu, format, Data::kNormal, ragged, 40, 1072, 256, 16);
    check_groups(*gpu, format, Data::kHeavy, many_counts(90, 3), 50, 256, 256, 16);
    if (format == WeightFormat::kBF16) {  // columns by 32
      check_groups(*gpu, format, Data::kNormal, many_counts(70, 2), 50, 256, 2048, 16);
    } else {  // long rows: in the arena's order NVFP4 by sixteen warps, MXFP8 as BF16's are
      check_groups(*gpu, format, Data::kNormal, many_counts(90, 2), 50, 256, 2048, 16);
    }
    // Many slabs, of tiles with up to 16 rows: an odd number of a tile, and an even one.
    check_groups(*gpu, format, Data::kNormal, many_counts(66, 16), 50, 272, 512, 16);
    check_groups(*gpu, format, Data::kHeavy, many_counts(66, 16), 50, 288, 256, 16);
    if (format != WeightFormat::kBF16) {  // rows so long that fewer stages fit
      check_groups(*gpu, format, Data::kNormal, many_counts(70, 2), 50, 256, 4096, 16);
    }
    if (format == WeightFormat::kNVFP4) {  // many tiles of a block
      check_groups(*gpu, format, Data::kNormal, many_counts(700, 2), 50, 256, 256, 16);
    }
  }
}

TEST_CASE("two products of the same experts' rows are those of either alone") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const WeightFormat format : kFormats) {
    check_pairs(*gpu, format, {3, 0, 16, 9, 1}, 48, 256, 16);
    check_pairs(*gpu, format, many_counts(70, 2), 96, 256, 16);
    check_pairs(*gpu, format, many_counts(66, 16), 144, 512, 16);
    check_pairs(*gpu, format, many_counts(66, 16), 160, 256, 16);
    check_pairs(*gpu, format, {40, 0, 64, 7}, 96, 256, 64);
  }
}

TEST_CASE("products of experts with many rows equal the exact mode") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const TensorCoreProducts products;
  const std::vector<int32_t> few = {0, 130, 1, 64, 65, 0, 33};
  const std::vector<int32_t> ragged = {0, 130, 1, 64, 65, 128, 129, 0, 260, 32, 33, 300, 5, 0};
  // On average 192 rows an expert or more: wide tiles, alone and in pairs.
  const std::vector<int32_t> full = {256, 0, 513, 359, 280, 130};
  for (const WeightFormat format : kFormats) {
    for (const Data data : kAllData) check_groups(*gpu, format, data, few, 200, 136, 256, 128);
    check_groups(*gpu, format, Data::kHeavy, ragged, 200, 144, 576, 128);
    check_groups(*gpu, format, Data::kHeavy, full, 300, 136, 320, 128);
    check_groups(*gpu, format, Data::kNormal, {385, 0, 200}, 300, 128, 1088, 128);  // no edge, long rows
    check_groups(*gpu, format, Data::kNormal, many_counts(40, 160), 200, 136, 96, 128);
    check_groups(*gpu, format, Data::kNormal, many_counts(160, 24), 200, 264, 96, 128);
  }
  // BF16 tiles of 256 columns, and so many that a block may take several.
  check_groups(*gpu, WeightFormat::kBF16, Data::kHeavy, many_counts(124, 12), 200, 512, 264, 128);
}

TEST_CASE("fragments made on the device equal the host's") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  PhiloxStream random(3, 3);
  const auto bytes = [&](int64_t count) {
    std::vector<uint8_t> all(static_cast<size_t>(count));
    for (uint8_t& b : all) b = static_cast<uint8_t>(random.next_below(256));
    return all;
  };
  for (const WeightFormat format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    const int64_t per_code = format == WeightFormat::kNVFP4 ? 2 : 1;
    const int64_t block = format == WeightFormat::kNVFP4 ? 16 : 32;
    const std::pair<int64_t, int64_t> shapes[] = {{16, 256}, {48, 768}, {2048, 768}, {1536, 2048}};
    for (const auto& [n, k] : shapes) {
      constexpr int32_t kCount = 3;
      const int64_t size = kernels::fragments_bytes(format, n, k);
      std::vector<Memory> memory;
      std::vector<GemmWeight> table;
      std::vector<uint8_t> expected;
      for (int32_t i = 0; i < kCount; ++i) {
        const std::vector<uint8_t> q = bytes(n * k / per_code);
        const std::vector<uint8_t> scales = bytes(n * k / block);
        const size_t begin = expected.size();
        expected.resize(begin + static_cast<size_t>(size));
        kernels::to_fragments(format, n, k, q.data(), scales.data(), expected.data() + begin);
        memory.push_back(gpu->upload(q));
        memory.push_back(gpu->upload(scales));
        table.push_back({memory[memory.size() - 2].data(), memory.back().as<uint8_t>(), nullptr, nullptr});
      }
      const Memory all = gpu->allocate(expected.size());
      for (int32_t i = 0; i < kCount; ++i) {
        table[static_cast<size_t>(i)].fragments = all.as<uint8_t>() + i * size;
      }
      const Memory device_table = gpu->upload(table);
      kernels::cuda::to_fragments(format, n, k, device_table.as<GemmWeight>(), kCount, gpu->handle());
      report("fragments", std::string(name_of(format)) + " " + std::to_string(n) + " x " + std::to_string(k),
             different(gpu->download<uint8_t>(all, expected.size()), expected), expected.size());
    }
  }
}
