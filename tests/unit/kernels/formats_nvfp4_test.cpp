#include <immintrin.h>

#include <bit>
#include <cmath>

#include "formats_inputs.hpp"
#include "formats_nvfp4_support.hpp"
#include "kernels/formats/amax.hpp"
#include "support/catch.hpp"

using namespace formats_nvfp4_support;
using accord::BF16;
using accord::MatrixView;

TEST_CASE("formats: NVFP4 vector, scalar and model bytes agree on hard inputs") {
  for (const std::string& kind : formats_inputs::kinds()) {
    Matrix x = formats_inputs::make(kind, 32, 16 * 21, 11);
    Matrix rounded = formats_inputs::rounded_to_bf16(x);
    std::vector<BF16> narrow = formats_inputs::as_bf16(x);
    for (const Nvfp4Options& options : plain_options()) {
      INFO(kind << " scope " << static_cast<int>(options.scope) << " layout "
                << static_cast<int>(options.layout));
      const Bytes got = run(view(x), options);
      CHECK(different(got, model(x, options)) == 0);
      CHECK(different(got, run_reference(view(x), options)) == 0);
      const MatrixView bf16 = accord::matrix_view(narrow.data(), x.rows, x.cols);
      CHECK(different(run(bf16, options), model(rounded, options)) == 0);
      CHECK(different(run_reference(bf16, options), run(bf16, options)) == 0);
    }
  }
}

TEST_CASE("formats: NVFP4 outer scales from the smallest to the largest amax") {
  for (uint32_t exponent = 0; exponent < 256; ++exponent) {
    for (uint32_t mantissa : {0u, 1u, 0x123456u, 0x280000u, 0x7fffffu}) {
      Matrix x = formats_inputs::make("normal", 1, 64, exponent);
      const float largest = std::bit_cast<float>((std::min(exponent, 254u) << 23) | mantissa);
      for (float& v : x.x) {
        v = static_cast<float>(static_cast<double>(v) * static_cast<double>(largest) * 0.25);
        v = std::isinf(v) || std::fabs(v) > largest ? largest : v;
      }
      x.x[9] = exponent == 255 ? -HUGE_VALF : -largest;
      for (const Nvfp4Options& options : one_row_options()) {
        CAPTURE(exponent, mantissa);
        REQUIRE(different(run(view(x), options), model(x, options)) == 0);
      }
    }
  }
}

TEST_CASE("formats: NVFP4 element ties and neighbours under an exact scale") {
  // A block amax of 6 under A = 2688/4 gives S = 4, s = 4, k = 1: elements meet the cast unscaled.
  const float outer = 672.0F;
  Matrix x;
  for (int code = 0; code < 7; ++code) {
    const double here = formats_model::value(formats_model::Format::kE2M1, code);
    const double next = formats_model::value(formats_model::Format::kE2M1, code + 1);
    for (double point : {here, (here + next) / 2}) {
      for (uint32_t offset = 0; offset < 5; ++offset) {
        const uint32_t bits = std::bit_cast<uint32_t>(static_cast<float>(point)) + offset;
        for (float sign : {1.0F, -1.0F}) {
          if (x.x.size() % 16 == 0) {
            x.x.push_back(6.0F);
          }
          x.x.push_back(sign * std::bit_cast<float>(bits < 2 ? 0 : bits - 2));
        }
      }
    }
  }
  x.x.resize((x.x.size() + 15) / 16 * 16);
  x.rows = 1;
  x.cols = static_cast<int64_t>(x.x.size());
  const Bytes got = run(view(x), {}, &outer);
  CHECK(got.scale[0] == 0x48);  // 4
  CHECK(different(got, model(x, {}, &outer)) == 0);
}

TEST_CASE("formats: NVFP4 of strided views and odd widths") {
  for (int64_t cols : {16, 48, 128, 144, 256 + 112}) {
    Matrix wide = formats_inputs::make("special", 16, cols + 5, 12);
    Matrix dense{{}, 16, cols};
    for (int64_t r = 0; r < 16; ++r) {
      dense.x.insert(dense.x.end(), wide.x.begin() + r * wide.cols + 3,
                     wide.x.begin() + r * wide.cols + 3 + cols);
    }
    for (const Nvfp4Options& options : plain_options()) {
      CAPTURE(cols);
      CHECK(different(run(view(wide).slice_cols(3, cols), options), model(dense, options)) == 0);
    }
  }
}

TEST_CASE("formats: NVFP4 halves of a unit share one outer scale") {
  Matrix both = formats_inputs::make("normal", 32, 128, 13);
  both.x[17] = 9.5F;  // in the first half
  const Bytes whole = run(view(both), {});
  const float unit = accord::formats::amax(view(both));
  CHECK(unit == 9.5F);
  const Bytes first = run(view(both).slice_rows(0, 16), {}, &unit);
  const Bytes second = run(view(both).slice_rows(16, 16), {}, &unit);
  Bytes joined = first;
  joined.q.insert(joined.q.end(), second.q.begin(), second.q.end());
  joined.scale.insert(joined.scale.end(), second.scale.begin(), second.scale.end());
  joined.decoded = whole.decoded;
  CHECK(second.amax[0] == unit);
  CHECK(different(joined, whole) == 0);
  CHECK(different(run(view(both).slice_rows(16, 16), {}), second) > 0);  // its own scale would differ
}

TEST_CASE("formats: amax ignores NaN and counts Inf") {
  Matrix x = formats_inputs::make("normal", 3, 77, 14);
  float want = 0.0F;
  for (float v : x.x) {
    want = std::max(want, std::fabs(v));
  }
  x.x[0] = std::nanf("");
  x.x[30] = -std::nanf("");
  x.x[76] = std::nanf("");
  CHECK(accord::formats::amax(view(x)) == want);
  x.x[76] = -123.0F;
  CHECK(accord::formats::amax(view(x)) == 123.0F);
  x.x[40] = -HUGE_VALF;
  CHECK(accord::formats::amax(view(x)) == HUGE_VALF);
  Matrix none{std::vector<float>(8, std::nanf("")), 1, 8};
  CHECK(accord::formats::amax(view(none)) == 0.0F);
}

TEST_CASE("formats: NVFP4 health counts agree with the scalar code") {
  for (const std::string& kind : formats_inputs::kinds()) {
    Matrix x = formats_inputs::make(kind, 16, 16 * 19, 15);
    for (const Nvfp4Options& options : all_options()) {
      INFO(kind);
      QuantHealth fast;
      QuantHealth slow;
      const Bytes counted = run(view(x), options, nullptr, &fast);
      CHECK(different(counted, run(view(x), options)) == 0);
      run_reference(view(x), options, nullptr, &slow);
      CHECK(fast.elements == slow.elements);
      CHECK(fast.saturated == slow.saturated);
      CHECK(fast.flushed == slow.flushed);
      CHECK(fast.nan == slow.nan);
      CHECK(fast.amax == slow.amax);
    }
  }
}

TEST_CASE("formats: NVFP4 bytes do not depend on the thread's rounding or flush mode") {
  for (const char* kind : {"denormal", "tiny", "bits"}) {
    Matrix x = formats_inputs::make(kind, 16, 320, 16);
    for (const Nvfp4Options& options : all_options()) {
      const Bytes want = run(view(x), options);
      const unsigned saved = _mm_getcsr();
      _mm_setcsr(saved | 0x8040u | 0x4000u);  // FTZ, DAZ, round toward +Inf
      const Bytes got = run(view(x), options);
      _mm_setcsr(saved);
      CHECK(different(got, want) == 0);
    }
  }
}

TEST_CASE("formats: NVFP4 refuses shapes and options that do not fit") {
  using accord::formats::check_nvfp4_shape;
  CHECK(check_nvfp4_shape(3, 48, {}).ok());
  CHECK(accord::exit_code(check_nvfp4_shape(3, 40, {})) == accord::ExitCode::kBadData);
  const Nvfp4Options square{Nvfp4Scope::kTensor, Nvfp4Layout::k16x16, FourOverSix::kNone, 448};
  CHECK(check_nvfp4_shape(16, 48, square).ok());
  CHECK_FALSE(check_nvfp4_shape(24, 48, square).ok());
  CHECK_FALSE(
      check_nvfp4_shape(16, 48, {Nvfp4Scope::kToken, Nvfp4Layout::k16x16, FourOverSix::kNone, 448}).ok());
  CHECK_FALSE(
      check_nvfp4_shape(16, 48, {Nvfp4Scope::kTensor, Nvfp4Layout::k1x16, FourOverSix::kNone, 256}).ok());
  CHECK_FALSE(
      check_nvfp4_shape(16, 48, {Nvfp4Scope::kTensor, Nvfp4Layout::k1x16, FourOverSix::kMae, 300}).ok());
}

TEST_CASE("formats: NVFP4 outer scale constants") {
  const auto outer = accord::formats::outer_scale(2.0F);
  CHECK(outer.s == 1344.0F);
  CHECK(outer.inverse == 1.0F / 1344.0F);
  CHECK(std::bit_cast<uint32_t>(accord::formats::outer_scale(0.0F).t) == 0x3e2aaaabu);  // fl(1/6)
  CHECK(accord::formats::outer_scale(0.0F).s == 1.0F);
  CHECK(accord::formats::outer_scale(HUGE_VALF).s == 1.0F);
}
