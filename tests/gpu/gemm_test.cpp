// Products against the CPU's exact mode, bit for bit. Every case prints how many outputs differ.
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

namespace {

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4};
const char* name_of(WeightFormat f) {
  return f == WeightFormat::kBF16 ? "BF16" : f == WeightFormat::kMXFP8 ? "MXFP8" : "NVFP4";
}

struct DeviceWeight {
  Memory data, scales, outer;
  GemmWeight weight() const { return {data.data(), scales.as<uint8_t>(), outer.as<float>()}; }
};
DeviceWeight upload(const Gpu& gpu, const TestWeight& w) {
  return {gpu.upload(w.data), gpu.upload(w.scales), gpu.upload(std::vector<float>{w.outer})};
}

void report(const char* what, const std::string& detail, int64_t wrong, size_t outputs) {
  std::printf("%-28s %-44s %10zu outputs, %lld differ\n", what, detail.c_str(), outputs,
              static_cast<long long>(wrong));
  CHECK(wrong == 0);
}

template <class T>
std::vector<T> rows(const std::vector<T>& x, int64_t count, int64_t width) {
  return {x.begin(), x.begin() + count * width};
}

// One forward product of m rows with everything contiguous.
struct ForwardCase {
  WeightFormat format;
  int64_t n, k;
  DeviceWeight weight;
  Memory a, a_outer;
};

std::vector<float> run_forward(const Gpu& gpu, const ForwardCase& c, int64_t m) {
  const Memory out = gpu.allocate(static_cast<size_t>(m * c.n) * 4);
  GemmForward g;
  g.format = c.format;
  g.m = m;
  g.n = c.n;
  g.k = c.k;
  g.a = c.a.as<BF16>();
  g.lda = c.k;
  g.a_outer = c.a_outer.as<float>();
  g.b = c.weight.weight();
  g.c = {out.data(), c.n, false, false};
  REQUIRE(kernels::cuda::gemm_forward_takes(g));
  kernels::cuda::gemm_forward(g, gpu.handle());
  return gpu.download<float>(out, static_cast<size_t>(m * c.n));
}

ForwardCase make_case(const Gpu& gpu, WeightFormat format, const TestActivations& a, const TestWeight& w,
                      int64_t n, int64_t k) {
  return {format, n, k, upload(gpu, w), gpu.upload(a.decoded), gpu.upload(a.outer)};
}

std::vector<float> expected_forward(WeightFormat format, const TestActivations& a, const TestWeight& w,
                                    int64_t m, int64_t n, int64_t k) {
  std::vector<float> c = exact_products(a.decoded, w.decoded, m, n, k);
  if (format == WeightFormat::kNVFP4) nvfp4_epilogue(c, m, n, a.outer, w.outer);
  return c;
}

constexpr int64_t kRowCounts[] = {1, 2, 7, 8, 15, 16, 17, 31, 33, 63, 64, 65, 100, 127, 128, 129, 200};

}  // namespace

TEST_CASE("forward products equal the exact mode for every format row count and kind of data") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const WeightFormat format : kFormats) {
    for (const int64_t k : {768, 2048, 4096}) {
      int64_t wrong = 0;
      size_t outputs = 0;
      const int64_t m = 200;
      const int64_t n = 192;
      for (const Data data : kAllData) {
        const TestActivations a = make_activations(format, make_data(data, m, k, 1), m, k);
        const TestWeight w = make_weight(format, make_data(data, n, k, 2), n, k);
        const ForwardCase c = make_case(*gpu, format, a, w, n, k);
        const std::vector<float> expected = expected_forward(format, a, w, m, n, k);
        for (const int64_t count : kRowCounts) {
          const int64_t bad = different(run_forward(*gpu, c, count), rows(expected, count, n));
          if (bad != 0)
            std::printf("  %s K=%lld %s M=%lld: %lld differ\n", name_of(format), (long long)k, name_of(data),
                        (long long)count, (long long)bad);
          wrong += bad;
          outputs += static_cast<size_t>(count * n);
        }
      }
      report("forward", std::string(name_of(format)) + " K=" + std::to_string(k), wrong, outputs);
    }
  }
}

TEST_CASE("forward products have ragged edges") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const WeightFormat format : kFormats) {
    const int64_t step = format == WeightFormat::kMXFP8 ? 32 : format == WeightFormat::kNVFP4 ? 16 : 8;
    int64_t wrong = 0;
    size_t outputs = 0;
    for (const int64_t k : {step, 3 * step, 17 * step, int64_t{576}}) {
      for (const int64_t n : {1, 7, 8, 9, 63, 130}) {
        const int64_t m = 130;
        const TestActivations a = make_activations(format, make_data(Data::kNormal, m, k, 3), m, k);
        const TestWeight w = make_weight(format, make_data(Data::kNormal, n, k, 4), n, k);
        const ForwardCase c = make_case(*gpu, format, a, w, n, k);
        const std::vector<float> expected = expected_forward(format, a, w, m, n, k);
        for (const int64_t count : {1, 17, 64, 130}) {
          wrong += different(run_forward(*gpu, c, count), rows(expected, count, n));
          outputs += static_cast<size_t>(count * n);
        }
      }
    }
    report("forward, ragged", name_of(format), wrong, outputs);
  }
}

TEST_CASE("forward products of many rows and of long sums") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  struct Shape {
    int64_t m, n, k;
  };
  for (const Shape& s :
       {Shape{3000, 1536, 96}, Shape{2500, 2100, 64}, Shape{130, 200, 8224}, Shape{9, 72, 8224}}) {
    for (const WeightFormat format : kFormats) {
      const TestActivations a = make_activations(format, make_data(Data::kHeavy, s.m, s.k, 13), s.m, s.k);
      const TestWeight w = make_weight(format, make_data(Data::kNormal, s.n, s.k, 14), s.n, s.k);
      const ForwardCase c = make_case(*gpu, format, a, w, s.n, s.k);
      const std::vector<float> expected = expected_forward(format, a, w, s.m, s.n, s.k);
      report("forward",
             std::string(name_of(format)) + " M=" + std::to_string(s.m) + " K=" + std::to_string(s.k),
             different(run_forward(*gpu, c, s.m), expected), expected.size());
    }
  }
}

TEST_CASE("forward products round to bf16 accumulate and keep to their rows and columns") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const int64_t k = 128;
  const int64_t lda = k + 8;
  struct Shape {
    int64_t m, n, pad;
  };
  for (const Shape& shape : {Shape{37, 70, 3}, Shape{130, 140, 4}, Shape{300, 264, 8}, Shape{11, 64, 0}})
    for (const WeightFormat format : kFormats) {
      const int64_t m = shape.m;
      const int64_t n = shape.n;
      const int64_t ldc = n + shape.pad;
      const TestActivations a = make_activations(format, make_data(Data::kNormal, m, k, 5), m, k);
      const TestWeight w = make_weight(format, make_data(Data::kNormal, n, k, 6), n, k);
      std::vector<BF16> wide(static_cast<size_t>(m * lda), accord::to_bf16(1e30F));
      for (int64_t r = 0; r < m; ++r) std::copy_n(a.decoded.begin() + r * k, k, wide.begin() + r * lda);
      const std::vector<float> expected = expected_forward(format, a, w, m, n, k);
      const DeviceWeight weight = upload(*gpu, w);
      const Memory rows_of_a = gpu->upload(wide);
      const Memory outer = gpu->upload(a.outer);
      const std::vector<float> before = make_data(Data::kNormal, m, ldc, 7);
      const Memory sums = gpu->upload(before);
      const Memory rounded = gpu->upload(to_bf16(before));
      GemmForward g;
      g.format = format;
      g.m = m;
      g.n = n;
      g.k = k;
      g.a = rows_of_a.as<BF16>();
      g.lda = lda;
      g.a_outer = outer.as<float>();
      g.b = weight.weight();
      g.c = {sums.data(), ldc, false, true};
      kernels::cuda::gemm_forward(g, gpu->handle());
      g.c = {rounded.data(), ldc, true, false};
      kernels::cuda::gemm_forward(g, gpu->handle());
      std::vector<float> wanted_sums = before;
      std::vector<BF16> wanted_rounded = to_bf16(before);
      for (int64_t i = 0; i < m; ++i) {
        for (int64_t j = 0; j < n; ++j) {
          wanted_sums[static_cast<size_t>(i * ldc + j)] += expected[static_cast<size_t>(i * n + j)];
          wanted_rounded[static_cast<size_t>(i * ldc + j)] =
              accord::to_bf16(expected[static_cast<size_t>(i * n + j)]);
        }
      }
      report("forward, accumulated", name_of(format),
             different(gpu->download<float>(sums, before.size()), wanted_sums), before.size());
      report("forward, bf16", name_of(format),
             different(gpu->download<BF16>(rounded, before.size()), wanted_rounded), before.size());
    }
}

TEST_CASE("MXFP8 weights of every scale that BF16 holds decode exactly") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const int64_t n = 256;
  const int64_t k = 32;
  TestWeight w;
  w.data.resize(static_cast<size_t>(n * k));
  w.scales.resize(static_cast<size_t>(n));
  TestActivations a;
  a.decoded.assign(static_cast<size_t>(32 * k), BF16{0});
  for (int64_t i = 0; i < 32; ++i)
    a.decoded[static_cast<size_t>(i * k + i)] = accord::to_bf16(1.0F);  // identity
  std::vector<float> expected(static_cast<size_t>(32 * n));
  for (int64_t r = 0; r < n; ++r) {
    const int e = std::min<int>(std::max<int>(static_cast<int>(r), 10), 246);  // -117 .. 119
    w.scales[static_cast<size_t>(r)] = static_cast<uint8_t>(e);
    for (int64_t c = 0; c < k; ++c) {
      uint32_t code = static_cast<uint32_t>(r * 37 + c * 8 + c / 4) & 0xffu;
      if ((code & 0x7fu) == 0x7fu) code = 0;
      w.data[static_cast<size_t>(r * k + c)] = static_cast<uint8_t>(code);
      expected[static_cast<size_t>(c * n + r)] =
          formats::from_e4m3(static_cast<uint8_t>(code)) * formats::from_e8m0(static_cast<uint8_t>(e)) + 0.0F;
    }
  }
  const ForwardCase c = make_case(*gpu, WeightFormat::kMXFP8, a, w, n, k);
  const std::vector<float> got = run_forward(*gpu, c, 32);
  report("forward, scales", "MXFP8", different(got, expected), expected.size());

  const auto flag_of = [&](const TestWeight& weight) {
    const Memory flag = gpu->upload(std::vector<int32_t>{0});
    const DeviceWeight device = upload(*gpu, weight);
    kernels::cuda::check_mxfp8_range(device.data.as<uint8_t>(), device.scales.as<uint8_t>(), n, k,
                                     flag.as<int32_t>(), gpu->handle());
    return gpu->download<int32_t>(flag, 1)[0];
  };
  CHECK(flag_of(w) == 0);
  w.scales[200] = 9;
  CHECK(flag_of(w) == 1);
  w.data[5] = 0xff;
  CHECK(flag_of(w) == 3);
  w.scales[200] = 247;
  CHECK(flag_of(w) == 3);
  std::fill_n(w.data.begin() + 200 * k, k, uint8_t{0x80});  // a block of zeros may have any scale
  w.data[5] = 0;
  CHECK(flag_of(w) == 0);
}

TEST_CASE("a row does not depend on other rows") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const int64_t m = 140;
  const int64_t n = 96;
  const int64_t k = 512;
  for (const WeightFormat format : kFormats) {
    TestActivations a = make_activations(format, make_data(Data::kNormal, m, k, 8), m, k);
    const TestWeight w = make_weight(format, make_data(Data::kNormal, n, k, 9), n, k);
    const std::vector<float> plain = run_forward(*gpu, make_case(*gpu, format, a, w, n, k), m);
    for (int64_t r = 0; r < m; ++r) {
      for (int64_t c = 0; c < k && r % 3 != 0; ++c) {  // two of three rows become NaN, Inf or huge
        a.decoded[static_cast<size_t>(r * k + c)] =
            BF16{static_cast<uint16_t>(r % 3 == 1 ? 0x7fc0 : 0x7f7f + c % 2)};
      }
    }
    const std::vector<float> dirty = run_forward(*gpu, make_case(*gpu, format, a, w, n, k), m);
    int64_t wrong = 0;
    for (int64_t r = 0; r < m; r += 3) {
      wrong += different(std::vector<float>(plain.begin() + r * n, plain.begin() + (r + 1) * n),
                         std::vector<float>(dirty.begin() + r * n, dirty.begin() + (r + 1) * n));
    }
    report("forward, other rows", name_of(format), wrong, static_cast<size_t>((m + 2) / 3 * n));
  }
}

TEST_CASE("grouped products equal plain ones for ragged counts") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
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
      const Memory tiles = gpu->allocate(static_cast<size_t>(bound) * sizeof(GroupTile));
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
      const Memory tiles = gpu->allocate(static_cast<size_t>(bound) * sizeof(GroupTile));
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

TEST_CASE("backward products equal the exact mode") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
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

TEST_CASE("expanded operands are the decoded values") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const int64_t m = 96;
  const int64_t k = 352;
  const auto size = static_cast<size_t>(m * k);
  for (const WeightFormat format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    for (const Data data : kAllData) {
      const TestActivations a = make_activations(format, make_data(data, m, k, 71), m, k);
      const Memory q = gpu->upload(a.data);
      const Memory scales = gpu->upload(a.scales);
      const Memory outer = gpu->upload(a.outer);
      const Memory out = gpu->allocate(size * 2);
      if (format == WeightFormat::kMXFP8) {
        kernels::cuda::expand_mxfp8(q.as<uint8_t>(), scales.as<uint8_t>(), m, k, false, false, out.as<BF16>(),
                                    k, gpu->handle());
      } else {
        kernels::cuda::expand_nvfp4(q.as<uint8_t>(), scales.as<uint8_t>(), nullptr, false, 448, m, k,
                                    out.as<BF16>(), k, gpu->handle());
      }
      report("expanded", std::string(name_of(format)) + " " + gpu_test::name_of(data),
             different(gpu->download<BF16>(out, size), a.decoded), size);
      if (format == WeightFormat::kNVFP4) {
        std::vector<float> values(size);
        formats::dequantize_nvfp4(a.data.data(), a.scales.data(), a.outer.data(), m, k,
                                  formats::Nvfp4Scope::kToken, 448, values.data());
        kernels::cuda::expand_nvfp4(q.as<uint8_t>(), scales.as<uint8_t>(), outer.as<float>(), true, 448, m, k,
                                    out.as<BF16>(), k, gpu->handle());
        report("expanded values", gpu_test::name_of(data),
               different(gpu->download<BF16>(out, size), to_bf16(values)), size);
      }
    }
  }
  for (const formats::Element element : {formats::Element::kE4M3, formats::Element::kE5M2}) {
    const std::vector<float> x = make_data(Data::kHeavy, m, k, 72);
    std::vector<uint8_t> codes(size);
    std::vector<uint8_t> scale_bytes(size / 32);
    std::vector<float> values(size);
    formats::quantize_mxfp8_cols({const_cast<float*>(x.data()), Dtype::kF32, m, k, k}, codes.data(),
                                 scale_bytes.data(), element);
    formats::dequantize_mxfp8(codes.data(), scale_bytes.data(), m, k, formats::Axis::kCol, element,
                              values.data());
    const Memory q = gpu->upload(codes);
    const Memory scales = gpu->upload(scale_bytes);
    const Memory out = gpu->allocate(size * 2);
    kernels::cuda::expand_mxfp8(q.as<uint8_t>(), scales.as<uint8_t>(), m, k, true,
                                element == formats::Element::kE5M2, out.as<BF16>(), k, gpu->handle());
    report("expanded", element == formats::Element::kE4M3 ? "MXFP8 columns" : "MXFP8 columns E5M2",
           different(gpu->download<BF16>(out, size), to_bf16(values)), size);
  }
}

TEST_CASE("special operands give what the exact mode says") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  // Exponent fields to draw from; 0: zeros, 1: subnormals, 255: infinities, 256: NaN.
  const std::vector<std::vector<int>> kinds = {{0, 100, 254},
                                               {0, 1, 127},
                                               {1, 1, 20},
                                               {1, 250, 254},
                                               {2, 30, 60},
                                               {60, 61, 64},
                                               {240, 250, 254},
                                               {190, 191, 192},
                                               {0, 0, 0, 127},
                                               {120, 127, 255},
                                               {0, 127, 127, 127, 255},
                                               {120, 127, 127, 127, 256},
                                               {0, 64, 127, 190}};
  const int64_t rows_of_each = 64;
  const int64_t k = 48;
  for (const std::vector<int>& kind : kinds) {
    std::string label;
    for (const int field : kind) label += std::to_string(field) + " ";
    PhiloxStream random(81, static_cast<uint32_t>(kind[0] + kind.size()));
    const auto draw = [&] {
      std::vector<BF16> out;
      for (int64_t i = 0; i < rows_of_each * k; ++i) {
        const int field = kind[random.next_below(kind.size())];
        const uint32_t sign = random.next_u32() & 0x8000u;
        uint32_t bits = (random.next_u32() & 0x7fu) | (static_cast<uint32_t>(field) << 7);
        if (field == 0) bits = 0;
        if (field == 1 && random.next_u32() % 2 == 0) bits = 1 + random.next_u32() % 127;
        if (field >= 255) bits = field == 255 ? 0x7f80u : 0x7fc1u;
        out.push_back(BF16{static_cast<uint16_t>(bits | sign)});
      }
      return out;
    };
    TestActivations a;
    TestWeight w;
    a.decoded = draw();
    w.decoded = draw();
    w.data.resize(w.decoded.size() * 2);
    std::memcpy(w.data.data(), w.decoded.data(), w.data.size());
    const ForwardCase c = make_case(*gpu, WeightFormat::kBF16, a, w, rows_of_each, k);
    const std::vector<float> expected = exact_products(a.decoded, w.decoded, rows_of_each, rows_of_each, k);
    const std::vector<float> got = run_forward(*gpu, c, rows_of_each);
    report("special, exponents", label, different(got, expected), expected.size());
    int shown = 0;
    for (size_t i = 0; i < got.size() && shown < 3; ++i) {
      if (std::bit_cast<uint32_t>(got[i]) == std::bit_cast<uint32_t>(expected[i]) ||
          (got[i] != got[i] && expected[i] != expected[i]))
        continue;
      std::printf("    got %a, expected %a\n", static_cast<double>(got[i]), static_cast<double>(expected[i]));
      ++shown;
    }
  }
}
