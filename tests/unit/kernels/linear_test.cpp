#include "kernels/linear/linear.hpp"

#include <cmath>

#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/linear/linear_backward.hpp"
#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {
namespace {

// A weight in its stored form, and its decoded values.
struct StoredWeight {
  std::vector<BF16> bf16;
  std::vector<uint8_t> q, scales;
  float outer = 0.0F;
  std::vector<float> values;
  LinearWeight view;
};

formats::Nvfp4Options options_of(formats::Nvfp4Scope scope, const Nvfp4Scaling& scaling) {
  formats::Nvfp4Options options;
  options.scope = scope;
  options.four_over_six = scaling.four_over_six;
  options.range = scaling.range;
  return options;
}

void store(WeightFormat format, int64_t n, int64_t k, uint64_t seed, StoredWeight& w,
           const Nvfp4Scaling& scaling = {}, const Nvfp4Scaling& activations = {}) {
  w.bf16 = rounded(normal_values(n * k, seed, 0.1));
  w.values = widened(w.bf16);
  w.view = {format, n, k, w.bf16.data(), nullptr, nullptr, scaling, activations};
  const MatrixView x = matrix_view(w.bf16.data(), n, k);
  if (format == WeightFormat::kMXFP8) {
    w.q.resize(static_cast<size_t>(n * k));
    w.scales.resize(static_cast<size_t>(n * k / 32));
    formats::quantize_mxfp8_rows(x, w.q.data(), w.scales.data(), formats::Element::kE4M3);
    formats::dequantize_mxfp8(w.q.data(), w.scales.data(), n, k, formats::Axis::kRow, formats::Element::kE4M3,
                              w.values.data());
  } else if (format == WeightFormat::kNVFP4) {
    w.q.resize(static_cast<size_t>(n * k / 2));
    w.scales.resize(static_cast<size_t>(n * k / 16));
    formats::quantize_nvfp4(x, options_of(formats::Nvfp4Scope::kTensor, scaling),
                            {w.q.data(), w.scales.data(), &w.outer});
    formats::dequantize_nvfp4(w.q.data(), w.scales.data(), &w.outer, n, k, formats::Nvfp4Scope::kTensor,
                              scaling.range, w.values.data());
    w.view.outer = &w.outer;
  }
  if (format != WeightFormat::kBF16) {
    w.view.data = w.q.data();
    w.view.scales = w.scales.data();
  }
}

// What the product sees of the activations.
std::vector<float> decoded_activations(MatrixView x, const std::vector<float>& values,
                                       const ActivationFormat& activations) {
  const auto& [format, scaling] = activations;
  std::vector<float> out = values;
  const auto count = static_cast<size_t>(x.rows * x.cols);
  std::vector<uint8_t> q(count), scales(count / 16);
  if (format == WeightFormat::kMXFP8) {
    formats::quantize_mxfp8_rows(x, q.data(), scales.data(), formats::Element::kE4M3);
    formats::dequantize_mxfp8(q.data(), scales.data(), x.rows, x.cols, formats::Axis::kRow,
                              formats::Element::kE4M3, out.data());
  } else if (format == WeightFormat::kNVFP4) {
    std::vector<float> amax(static_cast<size_t>(x.rows));
    formats::quantize_nvfp4(x, options_of(formats::Nvfp4Scope::kToken, scaling),
                            {q.data(), scales.data(), amax.data()});
    formats::dequantize_nvfp4(q.data(), scales.data(), amax.data(), x.rows, x.cols,
                              formats::Nvfp4Scope::kToken, scaling.range, out.data());
  }
  return out;
}

void check_format(WeightFormat format, Dtype dtype, const Nvfp4Scaling& scaling = {},
                  const Nvfp4Scaling& activations = {}) {
  constexpr int64_t kM = 11;
  constexpr int64_t kN = 150;
  const int64_t k = format == WeightFormat::kBF16 ? 100 : 96;  // BF16: a K tail
  StoredWeight w;
  store(format, kN, k, 5, w, scaling, activations);
  std::vector<float> x32 = normal_values(kM * k, 6);
  std::vector<BF16> x16 = rounded(x32);
  if (dtype == Dtype::kBF16) x32 = widened(x16);
  const MatrixView x =
      dtype == Dtype::kBF16 ? matrix_view(x16.data(), kM, k) : matrix_view(x32.data(), kM, k);
  const std::vector<float> a = decoded_activations(x, x32, w.view.activation_format());

  WorkspacePool scratch;
  std::vector<float> y(kM * kN);
  {
    const WorkspacePool::Lease lease = scratch.acquire();
    linear(make_operand(x, w.view.activation_format(), *lease), w.view, matrix_view(y.data(), kM, kN),
           nullptr, scratch);
  }
  double worst = 0.0;
  for (int64_t i = 0; i < kM; ++i) {
    for (int64_t j = 0; j < kN; ++j) {
      double exact = 0.0;
      double size = 0.0;
      for (int64_t p = 0; p < k; ++p) {
        const double t = double{a[static_cast<size_t>(i * k + p)]} * w.values[static_cast<size_t>(j * k + p)];
        exact += t;
        size += std::abs(t);
      }
      worst = std::max(worst, std::abs(y[static_cast<size_t>(i * kN + j)] - exact) / size);
    }
  }
  CAPTURE(worst);
  CHECK(worst < 16 * 0x1p-24);

  // The same bits for any number of rows, any column range, and bf16 output = the rounded fp32 one.
  std::vector<BF16> y16(kM * kN);
  for (const int64_t m : {1, 2, 3, 5}) {
    const WorkspacePool::Lease lease = scratch.acquire();
    const Operand part = make_operand(x.slice_rows(kM - m, m), w.view.activation_format(), *lease);
    std::vector<float> some(static_cast<size_t>(m * kN));
    for (const int64_t cut : {1, 63, 130}) {
      const WorkspacePool::Lease other = scratch.acquire();
      linear_columns(part, w.view, matrix_view(some.data(), m, kN), 0, cut, *other);
      linear_columns(part, w.view, matrix_view(some.data(), m, kN), cut, kN, *other);
      CHECK(same_bits(some, std::vector<float>(y.end() - m * kN, y.end())));
    }
    linear(part, w.view, matrix_view(y16.data(), kM, kN), nullptr, scratch);
    for (int64_t i = 0; i < m * kN; ++i) {
      REQUIRE(y16[static_cast<size_t>(i)].bits == to_bf16(some[static_cast<size_t>(i)]).bits);
    }
  }
}

}  // namespace

TEST_CASE("Linear BF16 weights") {
  check_format(WeightFormat::kBF16, Dtype::kF32);
  check_format(WeightFormat::kBF16, Dtype::kBF16);
}
TEST_CASE("Linear MXFP8 weights") {
  check_format(WeightFormat::kMXFP8, Dtype::kF32);
  check_format(WeightFormat::kMXFP8, Dtype::kBF16);
}
TEST_CASE("Linear NVFP4 weights") {
  check_format(WeightFormat::kNVFP4, Dtype::kF32);
  check_format(WeightFormat::kNVFP4, Dtype::kBF16);
}

TEST_CASE("Linear NVFP4 with four over six on either side and with either range") {
  const Nvfp4Scaling plain;
  const Nvfp4Scaling mse{FourOverSix::kMse, 448};
  const Nvfp4Scaling mae256{FourOverSix::kMae, 256};
  check_format(WeightFormat::kNVFP4, Dtype::kBF16, mse, plain);
  check_format(WeightFormat::kNVFP4, Dtype::kBF16, plain, mae256);
  check_format(WeightFormat::kNVFP4, Dtype::kF32, mae256, mse);
  check_format(WeightFormat::kNVFP4, Dtype::kF32, mae256, mae256);
}

TEST_CASE("Decoded backward operands follow the scaling of weight and activations") {
  constexpr int64_t kM = 37;
  constexpr int64_t kK = 48;
  const Nvfp4Scaling mae256{FourOverSix::kMae, 256};
  StoredWeight w;
  store(WeightFormat::kNVFP4, kM, kK, 31, w, mae256, mae256);
  std::vector<float> x = widened(rounded(normal_values(kM * kK, 32)));
  const auto bf16_of = [](std::vector<float> values) {
    round_to_bf16(values.data(), static_cast<int64_t>(values.size()), values.data());
    return values;
  };
  std::vector<float> out(kM * kK);
  std::vector<float> scratch(static_cast<size_t>(backward_operand_scratch(kK)));
  decoded_activation(x.data(), kM, kK, w.view.activation_format(), out.data(), scratch.data());
  CHECK(same_bits(
      out, bf16_of(decoded_activations(matrix_view(x.data(), kM, kK), x, w.view.activation_format()))));
  CHECK_FALSE(same_bits(
      out, bf16_of(decoded_activations(matrix_view(x.data(), kM, kK), x, {WeightFormat::kNVFP4, {}}))));
  decoded_weight(w.view, 0, kM, out.data());
  CHECK(same_bits(out, bf16_of(w.values)));
}

TEST_CASE("Linear gives the same bits on any number of threads") {
  constexpr int64_t kM = 5;
  constexpr int64_t kN = 700;
  constexpr int64_t kK = 512;
  StoredWeight w;
  store(WeightFormat::kMXFP8, kN, kK, 8, w);
  std::vector<float> x = normal_values(kM * kK, 9);
  std::vector<float> reference;
  for (const int threads : {1, 2, 3}) {
    ThreadPool pool(threads);
    WorkspacePool scratch;
    std::vector<float> y(kM * kN);
    const WorkspacePool::Lease lease = scratch.acquire();
    linear(make_operand(matrix_view(x.data(), kM, kK), w.view.activation_format(), *lease), w.view,
           matrix_view(y.data(), kM, kN), &pool, scratch);
    if (reference.empty()) reference = y;
    CHECK(same_bits(y, reference));
  }
}

TEST_CASE("Linear NVFP4 epilogue follows the contract") {
  // One block: acc32 is exact, so the two roundings of the epilogue are all there is.
  const float scale_values[] = {3.7F, 0.0123F};
  for (const float scale : scale_values) {
    std::vector<float> x = normal_values(16, 20, scale);
    StoredWeight w;
    store(WeightFormat::kNVFP4, 2, 16, 21, w);
    std::vector<uint8_t> q(8), s(1);
    float amax = 0.0F;
    formats::Nvfp4Options options;
    options.scope = formats::Nvfp4Scope::kToken;
    formats::quantize_nvfp4(matrix_view(x.data(), 1, 16), options, {q.data(), s.data(), &amax});
    const auto unit = [](const uint8_t* codes, int64_t i) {
      const float table[] = {0.0F, 0.5F, 1.0F, 1.5F, 2.0F, 3.0F, 4.0F, 6.0F};
      const int code = (codes[i / 2] >> (i % 2 * 4)) & 0xf;
      return (code & 8) != 0 ? -table[code & 7] : table[code & 7];
    };
    WorkspacePool scratch;
    const WorkspacePool::Lease lease = scratch.acquire();
    std::vector<float> y(2);
    linear(make_operand(matrix_view(x.data(), 1, 16), w.view.activation_format(), *lease), w.view,
           matrix_view(y.data(), 1, 2), nullptr, scratch);
    for (int64_t n = 0; n < 2; ++n) {
      double acc = 0.0;
      for (int64_t i = 0; i < 16; ++i) acc += double{unit(q.data(), i)} * unit(w.q.data() + n * 8, i);
      acc *= double{formats::from_e4m3(s[0])} * formats::from_e4m3(w.scales[static_cast<size_t>(n)]);
      const auto acc32 = static_cast<float>(acc);
      REQUIRE(double{acc32} == acc);
      const float expected = (acc32 * (1.0F / (36.0F * 448.0F * 448.0F))) * (amax * w.outer);
      CHECK(y[static_cast<size_t>(n)] == expected);
    }
  }
}

}  // namespace accord::kernels::testing
