#include <immintrin.h>

#include <cmath>
#include <cstring>

#include "formats_inputs.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "support/catch.hpp"

namespace {

using namespace accord;
using namespace accord::formats;
using formats_inputs::count_different;
using formats_model::Matrix;
using Bytes = formats_model::Mxfp8;

Bytes make_bytes(int64_t rows, int64_t cols) {
  Bytes out;
  out.q.assign(static_cast<size_t>(rows * cols), 0x55);
  out.scale.assign(out.q.size() / 32, 0x55);
  return out;
}

Bytes run(MatrixView x, Axis axis, Element element, QuantHealth* health = nullptr) {
  Bytes out = make_bytes(x.rows, x.cols);
  if (axis == Axis::kRow) {
    quantize_mxfp8_rows(x, out.q.data(), out.scale.data(), element, health);
  } else {
    quantize_mxfp8_cols(x, out.q.data(), out.scale.data(), element, health);
  }
  return out;
}

Bytes run_reference(MatrixView x, Axis axis, Element element, QuantHealth* health = nullptr) {
  Bytes out = make_bytes(x.rows, x.cols);
  quantize_mxfp8_reference(x, out.q.data(), out.scale.data(), axis, element, health);
  return out;
}

int64_t different(const Bytes& a, const Bytes& b) {
  return count_different(a.q, b.q) + count_different(a.scale, b.scale);
}

MatrixView view(Matrix& m) { return matrix_view(m.x.data(), m.rows, m.cols); }

bool same(const QuantHealth& a, const QuantHealth& b) {
  return a.elements == b.elements && a.saturated == b.saturated && a.flushed == b.flushed && a.nan == b.nan &&
         a.amax == b.amax;
}

constexpr Axis kAxes[] = {Axis::kRow, Axis::kCol};
constexpr Element kElements[] = {Element::kE4M3, Element::kE5M2};

formats_model::Format format_of(Element element) {
  return element == Element::kE4M3 ? formats_model::Format::kE4M3 : formats_model::Format::kE5M2;
}

}  // namespace

TEST_CASE("formats: MXFP8 vector, scalar and model bytes agree on hard inputs") {
  for (const std::string& kind : formats_inputs::kinds()) {
    Matrix x = formats_inputs::make(kind, 64, 32 * 13, 1);
    Matrix rounded = formats_inputs::rounded_to_bf16(x);
    std::vector<BF16> narrow = formats_inputs::as_bf16(x);
    for (Axis axis : kAxes) {
      for (Element element : kElements) {
        INFO(kind << " axis " << static_cast<int>(axis) << " element " << static_cast<int>(element));
        const bool columns = axis == Axis::kCol;
        const Bytes got = run(view(x), axis, element);
        CHECK(different(got, formats_model::mxfp8(x, columns, format_of(element))) == 0);
        CHECK(different(got, run_reference(view(x), axis, element)) == 0);
        const MatrixView bf16 = matrix_view(narrow.data(), x.rows, x.cols);
        CHECK(different(run(bf16, axis, element),
                        formats_model::mxfp8(rounded, columns, format_of(element))) == 0);
        CHECK(different(run_reference(bf16, axis, element), run(bf16, axis, element)) == 0);
      }
    }
  }
}

// Every bf16 value under the scales 2^-7 to 2^8: the first element of a block fixes its scale.
TEST_CASE("formats: MXFP8 casts every bf16 value like the model") {
  for (Element element : kElements) {
    const float largest = element == Element::kE4M3 ? kE4M3Max : kE5M2Max;
    for (int shift : {-7, 0, 8}) {
      Matrix x;
      const float limit = std::ldexp(largest, shift);
      for (uint32_t high = 0; high < 0x10000; ++high) {
        const float value = to_float(BF16{static_cast<uint16_t>(high)});
        if (std::fabs(value) <= limit) {
          if (x.x.size() % 32 == 0) {
            x.x.push_back(limit);
          }
          x.x.push_back(value);
        }
      }
      x.x.resize((x.x.size() + 31) / 32 * 32);
      x.rows = 1;
      x.cols = static_cast<int64_t>(x.x.size());
      CHECK(x.cols > 65000 / 4);
      const Bytes got = run(view(x), Axis::kRow, element);
      CHECK(got.scale[0] == 127 + shift);
      CHECK(different(got, formats_model::mxfp8(x, false, format_of(element))) == 0);
    }
  }
}

// The largest element sits at, just below and just above each point where the scale steps.
TEST_CASE("formats: MXFP8 scales step where the model's do") {
  for (Element element : kElements) {
    Matrix x;
    const uint32_t significand =
        element == Element::kE4M3 ? 0x600000 : 0x600000;  // 448 and 57344 are 1.75 * 2^n
    for (uint32_t exponent = 0; exponent < 255; ++exponent) {
      for (uint32_t offset = 0; offset < 9; ++offset) {
        for (uint32_t base : {0u, significand}) {
          const uint32_t bits = (exponent << 23) + base + offset;
          x.x.resize(x.x.size() + 32);
          const uint32_t magnitude = bits < 4 ? 0 : bits - 4;
          std::memcpy(&x.x[x.x.size() - 5], &magnitude, 4);
          x.x[x.x.size() - 32] = -x.x[x.x.size() - 5];
        }
      }
    }
    x.rows = 1;
    x.cols = static_cast<int64_t>(x.x.size());
    CHECK(different(run(view(x), Axis::kRow, element), formats_model::mxfp8(x, false, format_of(element))) ==
          0);
    CHECK(different(run_reference(view(x), Axis::kRow, element), run(view(x), Axis::kRow, element)) == 0);
  }
}

TEST_CASE("formats: MXFP8 of strided views and odd widths") {
  for (int64_t cols : {32, 96, 256, 288, 512 + 224}) {
    Matrix wide = formats_inputs::make("special", 32, cols + 5, 2);
    Matrix dense{{}, 32, cols};
    for (int64_t r = 0; r < 32; ++r) {
      dense.x.insert(dense.x.end(), wide.x.begin() + r * wide.cols + 3,
                     wide.x.begin() + r * wide.cols + 3 + cols);
    }
    const MatrixView strided = view(wide).slice_cols(3, cols);
    for (Axis axis : kAxes) {
      CAPTURE(cols);
      const bool columns = axis == Axis::kCol;
      CHECK(different(run(strided, axis, Element::kE4M3),
                      formats_model::mxfp8(dense, columns, formats_model::Format::kE4M3)) == 0);
    }
  }
  Matrix narrow = formats_inputs::make("special", 64, 7, 3);  // columns need no multiple
  CHECK(different(run(view(narrow), Axis::kCol, Element::kE4M3),
                  formats_model::mxfp8(narrow, true, formats_model::Format::kE4M3)) == 0);
  Matrix empty{{}, 0, 64};
  CHECK(run(view(empty), Axis::kRow, Element::kE4M3).q.empty());
}

TEST_CASE("formats: MXFP8 decoded values match the model's") {
  Matrix x = formats_inputs::make("special", 64, 160, 4);
  for (Axis axis : kAxes) {
    for (Element element : kElements) {
      Bytes bytes = run(view(x), axis, element);
      for (size_t i = 0; i < bytes.q.size(); ++i) {
        bytes.q[i] = static_cast<uint8_t>(i * 37);  // every code, with every scale
      }
      for (size_t i = 0; i < bytes.scale.size(); ++i) {
        bytes.scale[i] = static_cast<uint8_t>(i * 101);
      }
      std::vector<float> got(bytes.q.size());
      dequantize_mxfp8(bytes.q.data(), bytes.scale.data(), x.rows, x.cols, axis, element, got.data());
      std::vector<float> want;
      for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; ++c) {
          const int64_t block = axis == Axis::kRow ? r * (x.cols / 32) + c / 32 : (r / 32) * x.cols + c;
          const double q =
              formats_model::decode(format_of(element), bytes.q[static_cast<size_t>(r * x.cols + c)]);
          const double scale = formats_model::e8m0(bytes.scale[static_cast<size_t>(block)]);
          want.push_back(static_cast<float>(q * scale));
        }
      }
      CHECK(count_different(got, want) == 0);
    }
  }
}

TEST_CASE("formats: MXFP8 health counts agree with the scalar code and with hand counts") {
  for (const std::string& kind : formats_inputs::kinds()) {
    Matrix x = formats_inputs::make(kind, 32, 32 * 11, 5);
    for (Axis axis : kAxes) {
      for (Element element : kElements) {
        INFO(kind);
        QuantHealth fast;
        QuantHealth slow;
        const Bytes counted = run(view(x), axis, element, &fast);
        CHECK(different(counted, run(view(x), axis, element)) == 0);
        run_reference(view(x), axis, element, &slow);
        CHECK(same(fast, slow));
        CHECK(fast.elements == x.rows * x.cols);
      }
    }
  }
  Matrix x{std::vector<float>(64), 1, 64};
  x.x[0] = 448.0F;
  x.x[1] = 1e-4F;   // flushed
  x.x[2] = -1e-5F;  // flushed, to -0
  x.x[32] = std::nanf("");
  x.x[33] = -HUGE_VALF;  // saturates
  QuantHealth health;
  run(view(x), Axis::kRow, Element::kE4M3, &health);
  CHECK(health.elements == 64);
  CHECK(health.flushed == 2);
  CHECK(health.saturated == 1);
  CHECK(health.nan == 1);
  CHECK(health.amax == HUGE_VALF);
}

TEST_CASE("formats: MXFP8 bytes do not depend on the thread's rounding or flush mode") {
  for (const char* kind : {"denormal", "tiny", "bits"}) {
    Matrix x = formats_inputs::make(kind, 32, 320, 6);
    for (Axis axis : kAxes) {
      const Bytes want = run(view(x), axis, Element::kE4M3);
      const unsigned saved = _mm_getcsr();
      const unsigned flushing = saved | 0x8040u | 0x4000u;  // FTZ, DAZ, round toward +Inf
      _mm_setcsr(flushing);
      const Bytes got = run(view(x), axis, Element::kE4M3);
      const unsigned after = _mm_getcsr();
      _mm_setcsr(saved);
      CHECK(different(got, want) == 0);
      CHECK((after & ~0x3fu) == (flushing & ~0x3fu));  // sticky exception bits aside, the mode is put back
    }
  }
}

TEST_CASE("formats: MXFP8 refuses shapes that do not divide") {
  CHECK(check_mxfp8_shape(3, 64, Axis::kRow).ok());
  CHECK(check_mxfp8_shape(64, 3, Axis::kCol).ok());
  const Status row = check_mxfp8_shape(32, 48, Axis::kRow);
  CHECK(exit_code(row) == ExitCode::kBadData);
  CHECK(message_of(row).find("[32, 48]") != std::string_view::npos);
  CHECK_FALSE(check_mxfp8_shape(31, 64, Axis::kCol).ok());
}
