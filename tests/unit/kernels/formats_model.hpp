#pragma once
// The formats of docs/contract.md once more, written from its text alone: element values by enumeration,
// casts by search for the nearest value, arithmetic in double rounded to float after every operation (one
// rounding of an exact result, or a double rounding that 53 >= 2*24+2 bits make harmless). Shares no code
// with kernels/formats and is slow.
#include <cstdint>
#include <vector>

namespace formats_model {

enum class Format { kE4M3, kE5M2, kE2M1 };

double value(Format format, int code);      // of a non-negative finite code
uint8_t cast(Format format, float x);       // round to nearest, ties to the even code
uint8_t e8m0_up(float x);                   // by comparison with powers of two
float decode(Format format, uint8_t code);  // NaN, Inf and sign included
float e8m0(uint8_t code);

struct Matrix {
  std::vector<float> x;
  int64_t rows = 0;
  int64_t cols = 0;
};

struct Mxfp8 {
  std::vector<uint8_t> q;
  std::vector<uint8_t> scale;
};
Mxfp8 mxfp8(const Matrix& x, bool columns, Format format);

enum class Error { kNone, kAbsolute, kSquared };
// Deviations that four-over-six must not have, to show that a case can tell them apart.
enum class Flaw { kNone, kFusedSquare, kSequentialRows };

struct Nvfp4 {
  std::vector<uint8_t> q;
  std::vector<uint8_t> scale;
  std::vector<float> amax;
  std::vector<float> decoded;
};
Nvfp4 nvfp4(const Matrix& x, bool per_row, bool square, Error error, int range, const float* amax = nullptr,
            Flaw flaw = Flaw::kNone);

}  // namespace formats_model
