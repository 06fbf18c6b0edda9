// RMS norm, rotary embedding, SwiGLU, embedding rows and residual sums against double precision.
#include <cmath>
#include <numbers>

#include "kernels/embedding/embedding.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "random_values.hpp"
#include "support/catch.hpp"

namespace accord::kernels::testing {

TEST_CASE("RMS norm agrees with double precision and rounds twice in bf16") {
  for (const int64_t n : {1, 7, 8, 20, 24, 64, 100}) {
    std::vector<float> x = normal_values(3 * n, 1, 2.0);
    const std::vector<BF16> weight = rounded(normal_values(n, 2));
    std::vector<float> y(x.size());
    std::vector<float> inv(3);
    rms_norm(matrix_view(x.data(), 3, n), weight.data(), 1e-6F, matrix_view(y.data(), 3, n), inv.data());
    std::vector<BF16> x16 = rounded(x);
    std::vector<BF16> y16(x16.size());
    std::vector<float> inv16(3);
    rms_norm(matrix_view(x16.data(), 3, n), weight.data(), 1e-6F, matrix_view(y16.data(), 3, n),
             inv16.data());
    for (int64_t r = 0; r < 3; ++r) {
      double sum = 0.0;
      for (int64_t i = 0; i < n; ++i) sum += std::pow(double{x[static_cast<size_t>(r * n + i)]}, 2);
      const double exact_inv = 1.0 / std::sqrt(sum / static_cast<double>(n) + 1e-6);
      CHECK(inv[static_cast<size_t>(r)] == Approx(exact_inv).epsilon(1e-6));
      for (int64_t i = 0; i < n; ++i) {
        const auto at = static_cast<size_t>(r * n + i);
        const float w = to_float(weight[static_cast<size_t>(i)]);
        CHECK(y[at] == Approx(x[at] * exact_inv * w).epsilon(1e-6).margin(1e-7));
        const BF16 inner = to_bf16(to_float(x16[at]) * inv16[static_cast<size_t>(r)]);
        CHECK(y16[at].bits == to_bf16(w * to_float(inner)).bits);
      }
    }
  }
}

TEST_CASE("Rotary embedding turns pairs by position times frequency") {
  constexpr int64_t kDim = 24;
  RopeTable table(kDim, 10000.0, {});
  table.ensure(5);
  table.ensure(400);
  const std::vector<int32_t> positions = {0, 3, 399};
  const std::vector<int32_t> rows = {2, 0, 1};
  std::vector<float> x = normal_values(3 * 2 * kDim, 4);
  std::vector<float> y(x.size());
  apply_rope(matrix_view(x.data(), 3, 2 * kDim), positions.data(), table, matrix_view(y.data(), 3, 2 * kDim),
             rows.data());
  for (size_t t = 0; t < 3; ++t) {
    for (size_t h = 0; h < 2; ++h) {
      for (size_t i = 0; i < kDim / 2; ++i) {
        const double angle = positions[t] * std::pow(10000.0, -2.0 * static_cast<double>(i) / kDim);
        const size_t in = (t * 2 + h) * kDim + i;
        const size_t out = (static_cast<size_t>(rows[t]) * 2 + h) * kDim + i;
        const double a = x[in];
        const double b = x[in + kDim / 2];
        CHECK(y[out] == Approx(a * std::cos(angle) - b * std::sin(angle)).margin(1e-4));
        CHECK(y[out + kDim / 2] == Approx(b * std::cos(angle) + a * std::sin(angle)).margin(1e-4));
      }
    }
  }
  std::vector<float> in_place = x;
  apply_rope(matrix_view(in_place.data(), 3, 2 * kDim), positions.data(), table,
             matrix_view(in_place.data(), 3, 2 * kDim), nullptr);
  CHECK(std::equal(in_place.begin(), in_place.begin() + 2 * kDim, y.begin() + 2 * 2 * kDim));
}

// Reference values: transformers 5.17, modeling_rope_utils and the configs named.
TEST_CASE("Scaled rotary frequencies equal the reference") {
  struct Case {
    const char* name;
    int64_t dim;
    double theta;
    RopeScaling scaling;
    double factor;
    int64_t at[10];
    float frequencies[10];
  };
  RopeScaling yarn{RopeKind::kYarn, 4.0, 1.0, 4.0, 32768};
  RopeScaling other{RopeKind::kYarn, 8.0, 1.0, 4.0, 4096, 16.0, 2.0, false, 0.0, 0.0, 1.25};
  RopeScaling deepseek{RopeKind::kYarn, 40.0, 1.0, 4.0, 4096, 32.0, 1.0, true, 1.0, 1.0};
  RopeScaling mscale = deepseek;
  mscale.mscale = 0.707;
  const Case cases[] = {
      {"Qwen3 with yarn",
       128,
       1e6,
       yarn,
       0x1.237d37fe5d298p+0,
       {0, 1, 8, 16, 21, 32, 42, 48, 62, 63},
       {0x1.0p+0F, 0x1.9c975ap-1F, 0x1.6c310ep-3F, 0x1.030dc6p-5F, 0x1.6020a4p-7F, 0x1.3c1d64p-11F,
        0x1.e459c4p-16F, 0x1.094564p-17F, 0x1.9d5ef2p-22F, 0x1.4d1c98p-22F}},
      {"yarn with an attention factor and a ramp that is not truncated",
       128,
       1e6,
       other,
       1.25,
       {0, 1, 8, 16, 21, 32, 42, 48, 62, 63},
       {0x1.0p+0F, 0x1.9c975ap-1F, 0x1.6c310ep-3F, 0x1.030dc6p-5F, 0x1.cb80ccp-8F, 0x1.0624dep-13F,
        0x1.e459c4p-17F, 0x1.094564p-18F, 0x1.9d5ef2p-23F, 0x1.4d1c98p-23F}},
      {"linear",
       128,
       1e6,
       {RopeKind::kLinear, 4.0},
       1.0,
       {0, 1, 8, 16, 21, 32, 42, 48, 62, 63},
       {0x1.0p-2F, 0x1.9c975ap-3F, 0x1.6c310ep-5F, 0x1.030dc6p-7F, 0x1.6020a4p-9F, 0x1.0624dep-12F,
        0x1.e459c4p-16F, 0x1.094564p-17F, 0x1.9d5ef2p-22F, 0x1.4d1c98p-22F}},
      {"DeepSeek-V3",
       64,
       1e4,
       deepseek,
       1.0,
       {0, 1, 4, 8, 10, 16, 21, 24, 30, 31},
       {0x1.0p+0F, 0x1.7ff222p-1F, 0x1.43d136p-2F, 0x1.99999ap-4F, 0x1.ccab84p-5F, 0x1.6872b2p-8F,
        0x1.b32624p-12F, 0x1.a36e2ep-16F, 0x1.2a5884p-18F, 0x1.bf749ep-19F}},
      {"DeepSeek with another mscale",
       64,
       1e4,
       mscale,
       0x1.d792dd14a1051p-1,
       {0, 1, 4, 8, 10, 16, 21, 24, 30, 31},
       {0x1.0p+0F, 0x1.7ff222p-1F, 0x1.43d136p-2F, 0x1.99999ap-4F, 0x1.ccab84p-5F, 0x1.6872b2p-8F,
        0x1.b32624p-12F, 0x1.a36e2ep-16F, 0x1.2a5884p-18F, 0x1.bf749ep-19F}},
      {"Llama 3.1",
       128,
       5e5,
       {RopeKind::kLlama3, 8.0, 1.0, 4.0, 8192},
       1.0,
       {0, 1, 8, 16, 21, 32, 42, 48, 62, 63},
       {0x1.0p+0F, 0x1.a11582p-1F, 0x1.8d2760p-3F, 0x1.341190p-5F, 0x1.ba0dd8p-7F, 0x1.132ba4p-11F,
        0x1.7da9e8p-16F, 0x1.be2188p-18F, 0x1.948360p-22F, 0x1.4985fep-22F}},
  };
  for (const Case& c : cases) {
    CAPTURE(c.name);
    RopeTable table(c.dim, c.theta, c.scaling);
    CHECK(rope_attention_factor(c.scaling) == Approx(c.factor).epsilon(1e-12));
    for (size_t i = 0; i < 10; ++i) {
      CAPTURE(c.at[i]);
      CHECK(table.frequencies()[static_cast<size_t>(c.at[i])] == Approx(c.frequencies[i]).epsilon(4e-7));
    }
    table.ensure(8);
    const double angle = 7.0 * double{table.frequencies()[1]};
    CHECK(table.cos(7)[1] == Approx(c.factor * std::cos(angle)).epsilon(1e-6));
    CHECK(table.sin(7)[1] == Approx(c.factor * std::sin(angle)).epsilon(1e-6));
  }
  ModelConfig v3;
  v3.mla = {1536, 512, 128, 64, 128};
  v3.rope_scaling = deepseek;
  CHECK(attention_scale(v3) == Approx(0x1.14f5728c2d01dp-3).epsilon(1e-12));
}

TEST_CASE("Rotary frequencies follow llama3 scaling") {
  // Llama 3.1: theta 500000, factor 8, low 1, high 4, original length 8192, head_dim 128.
  const RopeTable plain(128, 500000.0, {});
  const RopeTable scaled(128, 500000.0, {RopeKind::kLlama3, 8.0, 1.0, 4.0, 8192});
  for (size_t i = 0; i < 64; ++i) {
    const double f = std::pow(500000.0, -static_cast<double>(i) / 64.0);
    const double wavelength = 2.0 * std::numbers::pi / f;
    CHECK(plain.frequencies()[i] == Approx(f).epsilon(1e-6));
    if (wavelength < 2048.0) {
      CHECK(scaled.frequencies()[i] == plain.frequencies()[i]);
    } else if (wavelength > 8192.0) {
      CHECK(scaled.frequencies()[i] == Approx(f / 8.0).epsilon(1e-6));
    } else {
      const double smooth = (8192.0 / wavelength - 1.0) / 3.0;
      CHECK(scaled.frequencies()[i] == Approx((1.0 - smooth) * f / 8.0 + smooth * f).epsilon(1e-6));
    }
  }
}

TEST_CASE("SwiGLU agrees with double precision") {
  for (const int64_t n : {1, 8, 13, 96}) {
    std::vector<float> gate = normal_values(2 * n, 1, 4.0);
    std::vector<float> up = normal_values(2 * n, 2);
    gate[0] = -200.0F;  // exp(-gate) overflows: the limit is -0
    std::vector<float> y(gate.size());
    swiglu(matrix_view(gate.data(), 2, n), matrix_view(up.data(), 2, n), matrix_view(y.data(), 2, n));
    for (size_t i = 0; i < y.size(); ++i) {
      const double g = gate[i];
      CHECK(y[i] == Approx(g / (1.0 + std::exp(-g)) * up[i]).epsilon(1e-6).margin(1e-30));
    }
    std::vector<BF16> gate16 = rounded(gate);
    std::vector<BF16> up16 = rounded(up);
    std::vector<float> gate_wide = widened(gate16);
    std::vector<float> up_wide = widened(up16);
    std::vector<float> wide(y.size());
    std::vector<BF16> y16(y.size());
    swiglu(matrix_view(gate16.data(), 2, n), matrix_view(up16.data(), 2, n), matrix_view(y16.data(), 2, n));
    swiglu(matrix_view(gate_wide.data(), 2, n), matrix_view(up_wide.data(), 2, n),
           matrix_view(wide.data(), 2, n));
    for (size_t i = 0; i < y.size(); ++i) CHECK(y16[i].bits == to_bf16(wide[i]).bits);
  }
}

TEST_CASE("Embedding rows are copied and residual sums rounded once") {
  constexpr int64_t kWidth = 21;
  const std::vector<BF16> table = rounded(normal_values(5 * kWidth, 1));
  const std::vector<int32_t> tokens = {4, 0, 4};
  std::vector<float> wide(3 * kWidth);
  std::vector<BF16> same(3 * kWidth);
  embed_rows(table.data(), tokens, matrix_view(wide.data(), 3, kWidth));
  embed_rows(table.data(), tokens, matrix_view(same.data(), 3, kWidth));
  std::vector<BF16> sum(same.size());
  std::vector<BF16> other = rounded(normal_values(3 * kWidth, 2));
  add_rows(matrix_view(same.data(), 3, kWidth), matrix_view(other.data(), 3, kWidth),
           matrix_view(sum.data(), 3, kWidth));
  for (size_t i = 0; i < sum.size(); ++i) {
    const size_t t = i / kWidth;
    CHECK(same[i].bits == table[static_cast<size_t>(tokens[t]) * kWidth + i % kWidth].bits);
    CHECK(wide[i] == to_float(same[i]));
    CHECK(sum[i].bits == to_bf16(to_float(same[i]) + to_float(other[i])).bits);
  }
}

}  // namespace accord::kernels::testing
