// Grouped, backward and batched products against the CPU's exact mode, bit for bit.
#include <algorithm>
#include <bit>
#include <cstdio>
#include <cstring>

#include "base/philox.hpp"
#include "exact_reference.hpp"
#include "gpu.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace gpu_test;
using kernels::cuda::GemmBackward;
using kernels::cuda::GemmForward;
using kernels::cuda::GemmGroups;
using kernels::cuda::GemmWeight;
using kernels::cuda::GroupTile;

TEST_CASE("grouped products equal plain ones for ragged counts") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const gpu_test::TensorCoreProducts products;
  const std::vector<int32_t> counts = {0, 1, 5, 16, 17, 64, 0, 130, 3, 0};
  const auto experts = static_cast<int32_t>(counts.size());
  std::vector<int32_t> offsets = {0};
  for (const int32_t c : counts) offsets.push_back(offsets.back() + c);
  const int64_t total = offsets.back();
  const int64_t tokens = 60;
  const int64_t n = 136;
  const int64_t k = 320;
  PhiloxStream random(10, 4);
  std::vector<int32_t> gather;
  for (int64_t i = 0; i < total; ++i) gather.push_back(static_cast<int32_t>(random.next_below(tokens)));
  const Memory device_offsets = gpu->upload(offsets);
  const Memory device_gather = gpu->upload(gather);
  for (const WeightFormat format : kFormats) {
    const TestActivations a = make_activations(format, make_data(Data::kNormal, tokens, k, 11), tokens, k);
    TestActivations sorted;
    for (const int32_t t : gather) {
      sorted.decoded.insert(sorted.decoded.end(), a.decoded.begin() + t * k, a.decoded.begin() + (t + 1) * k);
      if (!a.outer.empty()) sorted.outer.push_back(a.outer[static_cast<size_t>(t)]);
    }
    std::vector<DeviceWeight> weights;
    std::vector<GemmWeight> table;
    std::vector<float> expected;
    for (int32_t e = 0; e < experts; ++e) {
      const TestWeight w =
          make_weight(format, make_data(Data::kNormal, n, k, 20 + static_cast<uint64_t>(e)), n, k);
      weights.push_back(upload(*gpu, w));
      table.push_back(weights.back().weight());
      const int32_t first = offsets[static_cast<size_t>(e)];
      const int32_t count = counts[static_cast<size_t>(e)];
      if (count == 0) continue;
      const std::vector<BF16> part(sorted.decoded.begin() + first * k,
                                   sorted.decoded.begin() + (first + count) * k);
      std::vector<float> c = exact_products(part, w.decoded, count, n, k);
      if (format == WeightFormat::kNVFP4) {
        nvfp4_epilogue(c, count, n, {sorted.outer.begin() + first, sorted.outer.begin() + first + count},
                       w.outer);
      }
      expected.insert(expected.end(), c.begin(), c.end());
    }
    const Memory device_table = gpu->upload(table);
    const Memory rows_of_a = gpu->upload(a.decoded);
    const Memory rows_sorted = gpu->upload(sorted.decoded);
    const Memory outer = gpu->upload(a.outer);
    const Memory outer_sorted = gpu->upload(sorted.outer);
    for (const int32_t tile_rows : {16, 64, 128}) {
      const int32_t bound = kernels::cuda::group_tiles_bound(total, experts, tile_rows);
      const int32_t list_size = kernels::cuda::group_list_size(total, experts, tile_rows);
      const Memory tiles = gpu->allocate(static_cast<size_t>(list_size) * sizeof(GroupTile));
      const Memory num_tiles = gpu->allocate(4);
      kernels::cuda::build_group_tiles(device_offsets.as<int32_t>(), experts, tile_rows,
                                       tiles.as<GroupTile>(), num_tiles.as<int32_t>(), gpu->handle());
      CHECK(gpu->download<int32_t>(num_tiles, 1)[0] <= bound);
      for (const bool gathered : {false, true}) {
        const Memory out = gpu->allocate(expected.size() * 4);
        GemmGroups groups;
        groups.tiles = tiles.as<GroupTile>();
        groups.num_tiles = num_tiles.as<int32_t>();
        groups.max_tiles = bound;
        groups.tile_rows = tile_rows;
        groups.experts = device_table.as<GemmWeight>();
        groups.gather = gathered ? device_gather.as<int32_t>() : nullptr;
        GemmForward g;
        g.format = format;
        g.m = total;
        g.n = n;
        g.k = k;
        g.a = gathered ? rows_of_a.as<BF16>() : rows_sorted.as<BF16>();
        g.lda = k;
        g.a_outer = gathered ? outer.as<float>() : outer_sorted.as<float>();
        g.c = {out.data(), n, false, false};
        g.groups = &groups;
        kernels::cuda::gemm_forward(g, gpu->handle());
        report("forward, grouped",
               std::string(name_of(format)) + " tile " + std::to_string(tile_rows) +
                   (gathered ? " gathered" : ""),
               different(gpu->download<float>(out, expected.size()), expected), expected.size());
      }
    }
    if (format != WeightFormat::kBF16) continue;
    // dgrad of the same experts: [rows, n] x [n, k], and wgrad with gathered inputs.
    const std::vector<BF16> dy = to_bf16(make_data(Data::kNormal, total, n, 41));
    std::vector<float> dx;
    std::vector<std::vector<float>> dw;
    for (int32_t e = 0; e < experts; ++e) {
      const int32_t first = offsets[static_cast<size_t>(e)];
      const int32_t count = counts[static_cast<size_t>(e)];
      const TestWeight w =
          make_weight(format, make_data(Data::kNormal, n, k, 20 + static_cast<uint64_t>(e)), n, k);
      const std::vector<BF16> dy_part(dy.begin() + first * n, dy.begin() + (first + count) * n);
      const std::vector<BF16> x_part(sorted.decoded.begin() + first * k,
                                     sorted.decoded.begin() + (first + count) * k);
      if (count == 0) {
        dw.emplace_back(static_cast<size_t>(n * k), 0.0F);
        continue;
      }
      const std::vector<float> c = exact_products(dy_part, transposed(w.decoded, n, k), count, k, n);
      dx.insert(dx.end(), c.begin(), c.end());
      dw.push_back(exact_products(transposed(dy_part, count, n), transposed(x_part, count, k), n, k, count));
    }
    const Memory device_dy = gpu->upload(dy);
    for (const int32_t tile_rows : {16, 64, 128}) {
      const int32_t bound = kernels::cuda::group_tiles_bound(total, experts, tile_rows);
      const int32_t list_size = kernels::cuda::group_list_size(total, experts, tile_rows);
      const Memory tiles = gpu->allocate(static_cast<size_t>(list_size) * sizeof(GroupTile));
      const Memory num_tiles = gpu->allocate(4);
      kernels::cuda::build_group_tiles(device_offsets.as<int32_t>(), experts, tile_rows,
                                       tiles.as<GroupTile>(), num_tiles.as<int32_t>(), gpu->handle());
      const Memory out = gpu->allocate(dx.size() * 4);
      GemmGroups groups;
      groups.tiles = tiles.as<GroupTile>();
      groups.num_tiles = num_tiles.as<int32_t>();
      groups.max_tiles = bound;
      groups.tile_rows = tile_rows;
      groups.experts = device_table.as<GemmWeight>();
      GemmBackward g;
      g.m = total;
      g.n = k;
      g.l = n;
      g.a = device_dy.as<BF16>();
      g.lda = n;
      g.ldb = k;
      g.c = {out.data(), k, false, false};
      g.groups = &groups;
      REQUIRE(kernels::cuda::gemm_dgrad_takes(g));
      kernels::cuda::gemm_dgrad(g, gpu->handle());
      report("dgrad, grouped", "tile " + std::to_string(tile_rows),
             different(gpu->download<float>(out, dx.size()), dx), dx.size());
    }
    for (const bool gathered : {false, true}) {
      std::vector<Memory> outputs;
      std::vector<void*> pointers;
      for (int32_t e = 0; e < experts; ++e) {
        outputs.push_back(gpu->allocate(static_cast<size_t>(n * k) * 4));
        pointers.push_back(outputs.back().data());
      }
      const Memory device_pointers = gpu->upload(pointers);
      GemmBackward g;
      g.m = n;
      g.n = k;
      g.a = device_dy.as<BF16>();
      g.lda = n;
      g.b = gathered ? rows_of_a.as<BF16>() : rows_sorted.as<BF16>();
      g.ldb = k;
      g.c = {nullptr, k, false, false};
      g.num_experts = experts;
      g.offsets = device_offsets.as<int32_t>();
      g.b_gather = gathered ? device_gather.as<int32_t>() : nullptr;
      g.outputs = device_pointers.as<void*>();
      REQUIRE(kernels::cuda::gemm_wgrad_takes(g));
      kernels::cuda::gemm_wgrad(g, gpu->handle());
      int64_t wrong = 0;
      for (size_t e = 0; e < outputs.size(); ++e) {
        wrong += different(gpu->download<float>(outputs[e], dw[e].size()), dw[e]);
      }
      report("wgrad, grouped", gathered ? "gathered" : "sorted", wrong, dw.size() * dw[0].size());
    }
  }
}

namespace {

// dgrad of experts with weights [l,n] in turn, in fp32 added to what is there, or in BF16.
void check_wide_dgrad(const Gpu& gpu, const std::vector<int32_t>& offsets, GemmGroups groups, int64_t n,
                      int64_t l, bool bf16) {
  const int64_t total = offsets.back();
  const std::vector<BF16> dy = to_bf16(make_data(Data::kHeavy, total, l, 71));
  const Memory device_dy = gpu.upload(dy);
  std::vector<Memory> weights;
  std::vector<GemmWeight> table;
  for (uint64_t e = 0; e < 3; ++e)
    weights.push_back(gpu.upload(to_bf16(make_data(Data::kNormal, l, n, 80 + e))));
  for (size_t e = 0; e + 1 < offsets.size(); ++e) table.push_back({weights[e % 3].data(), nullptr, nullptr});
  const Memory device_table = gpu.upload(table);
  const auto size = static_cast<size_t>(total * n);
  const std::vector<float> before = make_data(Data::kNormal, total, n, 54);
  const Memory expected = gpu.upload(before);
  const Memory out = gpu.upload(before);
  GemmBackward g;
  g.n = n;
  g.l = l;
  g.lda = l;
  g.ldb = n;
  const size_t width = bf16 ? 2 : 4;
  for (size_t e = 0; e + 1 < offsets.size(); ++e) {
    g.m = offsets[e + 1] - offsets[e];
    if (g.m == 0) continue;
    g.a = device_dy.as<BF16>() + offsets[e] * l;
    g.b = static_cast<const BF16*>(table[e].data);
    g.c = {expected.as<uint8_t>() + static_cast<size_t>(offsets[e] * n) * width, n, bf16, !bf16};
    kernels::cuda::gemm_dgrad(g, gpu.handle());
  }
  g.m = total;
  g.a = device_dy.as<BF16>();
  g.b = nullptr;
  g.c = {out.data(), n, bf16, !bf16};
  groups.experts = device_table.as<GemmWeight>();
  g.groups = &groups;
  kernels::cuda::gemm_dgrad(g, gpu.handle());
  const int64_t wrong = bf16 ? different(gpu.download<BF16>(out, size), gpu.download<BF16>(expected, size))
                             : different(gpu.download<float>(out, size), gpu.download<float>(expected, size));
  report("dgrad of experts in wide tiles", std::to_string(n) + " x " + std::to_string(l), wrong, size);
}

}  // namespace

TEST_CASE("products of experts in wide tiles equal plain ones") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const std::vector<int32_t> counts = {300, 0,   17, 256, 289, 577, 64,  129,
                                       272, 241, 33, 190, 208, 273, 900, 1};
  const auto experts = static_cast<int32_t>(counts.size());
  std::vector<int32_t> offsets = {0};
  for (const int32_t c : counts) offsets.push_back(offsets.back() + c);
  const int64_t total = offsets.back();
  const int64_t tokens = 500;
  PhiloxStream random(12, 4);
  std::vector<int32_t> gather;
  for (int64_t i = 0; i < total; ++i) gather.push_back(static_cast<int32_t>(random.next_below(tokens)));
  const Memory device_offsets = gpu->upload(offsets);
  const Memory device_gather = gpu->upload(gather);
  const int32_t bound = kernels::cuda::group_tiles_bound(total, experts, 128);
  const int32_t list_size = kernels::cuda::group_list_size(total, experts, 128);
  const Memory tiles = gpu->allocate(static_cast<size_t>(list_size) * sizeof(GroupTile));
  const Memory num_tiles = gpu->allocate(4);
  kernels::cuda::build_group_tiles(device_offsets.as<int32_t>(), experts, 128, tiles.as<GroupTile>(),
                                   num_tiles.as<int32_t>(), gpu->handle());
  struct Shape {
    int64_t n, k;
    bool bf16;
  };
  for (const WeightFormat format : kFormats) {
    for (const Shape s : {Shape{200, 32, true}, Shape{136, 96, true}, Shape{256, 768, true},
                          Shape{200, 2080, true}, Shape{264, 544, false}}) {
      const TestActivations a =
          make_activations(format, make_data(Data::kHeavy, tokens, s.k, 11), tokens, s.k);
      TestActivations sorted;
      for (const int32_t t : gather) {
        sorted.decoded.insert(sorted.decoded.end(), a.decoded.begin() + t * s.k,
                              a.decoded.begin() + (t + 1) * s.k);
        if (!a.outer.empty()) sorted.outer.push_back(a.outer[static_cast<size_t>(t)]);
      }
      std::vector<DeviceWeight> weights;
      std::vector<GemmWeight> table;
      for (int32_t e = 0; e < 3; ++e) {  // in turn
        weights.push_back(upload(
            *gpu, make_weight(format, make_data(Data::kNormal, s.n, s.k, 20 + static_cast<uint64_t>(e)), s.n,
                              s.k)));
      }
      for (int32_t e = 0; e < experts; ++e) table.push_back(weights[static_cast<size_t>(e % 3)].weight());
      const Memory device_table = gpu->upload(table);
      const Memory rows_of_a = gpu->upload(a.decoded);
      const Memory rows_sorted = gpu->upload(sorted.decoded);
      const Memory outer = gpu->upload(a.outer);
      const Memory outer_sorted = gpu->upload(sorted.outer);
      const auto size = static_cast<size_t>(total * s.n);
      const size_t width = s.bf16 ? 2 : 4;
      const Memory expected = gpu->allocate(size * width);
      GemmForward g;
      g.format = format;
      g.n = s.n;
      g.k = s.k;
      g.lda = s.k;
      for (int32_t e = 0; e < experts; ++e) {
        const int64_t first = offsets[static_cast<size_t>(e)];
        g.m = counts[static_cast<size_t>(e)];
        if (g.m == 0) continue;
        g.a = rows_sorted.as<BF16>() + first * s.k;
        g.a_outer = outer_sorted.as<float>() + first;
        g.b = table[static_cast<size_t>(e)];
        g.c = {expected.as<uint8_t>() + static_cast<size_t>(first * s.n) * width, s.n, s.bf16, false};
        kernels::cuda::gemm_forward(g, gpu->handle());
      }
      GemmGroups groups;
      groups.tiles = tiles.as<GroupTile>();
      groups.num_tiles = num_tiles.as<int32_t>();
      groups.max_tiles = bound;
      groups.tile_rows = 128;
      if (format == WeightFormat::kBF16) {
        check_wide_dgrad(*gpu, offsets, groups, s.n, s.k, false);
        if (s.n == 256) check_wide_dgrad(*gpu, offsets, groups, s.n, s.k, true);
      }
      for (const bool gathered : {false, true}) {
        const Memory out = gpu->allocate(size * width);
        groups.experts = device_table.as<GemmWeight>();
        groups.gather = gathered ? device_gather.as<int32_t>() : nullptr;
        g.m = total;
        g.a = gathered ? rows_of_a.as<BF16>() : rows_sorted.as<BF16>();
        g.a_outer = gathered ? outer.as<float>() : outer_sorted.as<float>();
        g.b = {};
        g.c = {out.data(), s.n, s.bf16, false};
        g.groups = &groups;
        kernels::cuda::gemm_forward(g, gpu->handle());
        g.groups = nullptr;
        const int64_t wrong =
            s.bf16 ? different(gpu->download<BF16>(out, size), gpu->download<BF16>(expected, size))
                   : different(gpu->download<float>(out, size), gpu->download<float>(expected, size));
        report("experts in wide tiles",
               std::string(name_of(format)) + " " + std::to_string(s.n) + " x " + std::to_string(s.k) +
                   (gathered ? " gathered" : ""),
               wrong, size);
      }
    }
  }
}

TEST_CASE("backward products equal the exact mode") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const gpu_test::TensorCoreProducts products;
  struct Shape {
    int64_t m, n, l;
  };
  const Shape shapes[] = {{1, 64, 8},       {16, 136, 192},   {17, 64, 576},    {100, 576, 192},
                          {200, 192, 1536}, {1300, 1280, 72}, {3000, 1536, 40}, {8, 8, 1},
                          {192, 576, 301},  {1288, 1288, 50}};
  for (const Data data : {Data::kNormal, Data::kHeavy, Data::kSubnormal}) {
    int64_t wrong_d = 0;
    int64_t wrong_w = 0;
    size_t outputs_d = 0;
    size_t outputs_w = 0;
    for (const Shape& s : shapes) {
      const auto size = static_cast<size_t>(s.m * s.n);
      const std::vector<BF16> b = to_bf16(make_data(data, s.l, s.n, 52));
      const Memory device_b = gpu->upload(b);
      GemmBackward g;
      g.m = s.m;
      g.n = s.n;
      g.l = s.l;
      g.b = device_b.as<BF16>();
      g.ldb = s.n;
      if (s.l % 8 == 0) {
        const std::vector<BF16> a = to_bf16(make_data(data, s.m, s.l, 51));
        const Memory device_a = gpu->upload(a);
        const Memory out = gpu->allocate(size * 4);
        g.a = device_a.as<BF16>();
        g.lda = s.l;
        g.c = {out.data(), s.n, false, false};
        REQUIRE(kernels::cuda::gemm_dgrad_takes(g));
        kernels::cuda::gemm_dgrad(g, gpu->handle());
        wrong_d += different(gpu->download<float>(out, size),
                             exact_products(a, transposed(b, s.l, s.n), s.m, s.n, s.l));
        outputs_d += size;
      }
      if (s.m % 8 == 0) {
        const std::vector<BF16> a = to_bf16(make_data(data, s.l, s.m, 53));
        const Memory device_a = gpu->upload(a);
        const std::vector<float> before = make_data(Data::kNormal, s.m, s.n, 54);
        const Memory out = gpu->upload(before);
        g.a = device_a.as<BF16>();
        g.lda = s.m;
        g.c = {out.data(), s.n, false, true};
        REQUIRE(kernels::cuda::gemm_wgrad_takes(g));
        kernels::cuda::gemm_wgrad(g, gpu->handle());
        std::vector<float> expected =
            exact_products(transposed(a, s.l, s.m), transposed(b, s.l, s.n), s.m, s.n, s.l);
        for (size_t i = 0; i < size; ++i) expected[i] = before[i] + expected[i];
        wrong_w += different(gpu->download<float>(out, size), expected);
        outputs_w += size;
      }
    }
    report("dgrad", gpu_test::name_of(data), wrong_d, outputs_d);
    report("wgrad, accumulated", gpu_test::name_of(data), wrong_w, outputs_w);
  }
}

TEST_CASE("batched products are products per head") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const gpu_test::TensorCoreProducts products;
  const int64_t t = 19;
  const int32_t heads = 3;
  const int64_t inner = 128;
  const int64_t latent = 256;
  // q' = q W per head, W [inner, latent]; out = x V^T per head, V [inner, latent].
  const std::vector<BF16> q = to_bf16(make_data(Data::kNormal, t, heads * inner, 61));
  const std::vector<BF16> w = to_bf16(make_data(Data::kNormal, heads * inner, latent, 62));
  const std::vector<BF16> x = to_bf16(make_data(Data::kNormal, t, heads * latent, 63));
  const Memory device_q = gpu->upload(q);
  const Memory device_w = gpu->upload(w);
  const Memory device_x = gpu->upload(x);
  const Memory absorbed = gpu->allocate(static_cast<size_t>(t * heads * latent) * 2);
  const Memory expanded = gpu->allocate(static_cast<size_t>(t * heads * inner) * 2);
  GemmBackward d;
  d.m = t;
  d.n = latent;
  d.l = inner;
  d.a = device_q.as<BF16>();
  d.lda = heads * inner;
  d.b = device_w.as<BF16>();
  d.ldb = latent;
  d.c = {absorbed.data(), heads * latent, true, false};
  d.batch = {heads, inner, inner * latent, latent};
  kernels::cuda::gemm_dgrad(d, gpu->handle());
  GemmForward f;
  f.m = t;
  f.n = inner;
  f.k = latent;
  f.a = device_x.as<BF16>();
  f.lda = heads * latent;
  f.b = {device_w.data(), nullptr, nullptr};
  f.c = {expanded.data(), heads * inner, true, false};
  f.batch = {heads, latent, inner * latent, inner};
  REQUIRE(kernels::cuda::gemm_forward_takes(f));
  kernels::cuda::gemm_forward(f, gpu->handle());
  std::vector<BF16> wanted_absorbed(static_cast<size_t>(t * heads * latent));
  std::vector<BF16> wanted_expanded(static_cast<size_t>(t * heads * inner));
  for (int64_t h = 0; h < heads; ++h) {
    std::vector<BF16> q_h, x_h;
    for (int64_t r = 0; r < t; ++r) {
      const auto q_at = q.begin() + (r * heads + h) * inner;
      const auto x_at = x.begin() + (r * heads + h) * latent;
      q_h.insert(q_h.end(), q_at, q_at + inner);
      x_h.insert(x_h.end(), x_at, x_at + latent);
    }
    const std::vector<BF16> w_h(w.begin() + h * inner * latent, w.begin() + (h + 1) * inner * latent);
    const std::vector<float> c = exact_products(q_h, transposed(w_h, inner, latent), t, latent, inner);
    const std::vector<float> e = exact_products(x_h, w_h, t, inner, latent);
    for (int64_t r = 0; r < t; ++r) {
      for (int64_t j = 0; j < latent; ++j) {
        wanted_absorbed[static_cast<size_t>((r * heads + h) * latent + j)] =
            accord::to_bf16(c[static_cast<size_t>(r * latent + j)]);
      }
      for (int64_t j = 0; j < inner; ++j) {
        wanted_expanded[static_cast<size_t>((r * heads + h) * inner + j)] =
            accord::to_bf16(e[static_cast<size_t>(r * inner + j)]);
      }
    }
  }
  report("batched", "absorb",
         different(gpu->download<BF16>(absorbed, wanted_absorbed.size()), wanted_absorbed),
         wanted_absorbed.size());
  report("batched", "expand",
         different(gpu->download<BF16>(expanded, wanted_expanded.size()), wanted_expanded),
         wanted_expanded.size());
}
