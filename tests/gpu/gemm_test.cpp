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
  const gpu_test::TensorCoreProducts products;
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
  const gpu_test::TensorCoreProducts products;
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
  const gpu_test::TensorCoreProducts products;
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
  const gpu_test::TensorCoreProducts products;
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
  const gpu_test::TensorCoreProducts products;
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
  const gpu_test::TensorCoreProducts products;
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

TEST_CASE("expanded operands are the decoded values") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const gpu_test::TensorCoreProducts products;
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
  const gpu_test::TensorCoreProducts products;
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
