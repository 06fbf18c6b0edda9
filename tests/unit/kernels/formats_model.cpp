#include "formats_model.hpp"

#include <bit>
#include <cmath>
#include <limits>

namespace formats_model {
namespace {

constexpr double kFloatMax = std::numeric_limits<float>::max();

float f32(uint32_t bits) { return std::bit_cast<float>(bits); }
float fl(double x) { return static_cast<float>(x); }
float mul(float a, float b) { return fl(static_cast<double>(a) * static_cast<double>(b)); }
float div(float a, float b) { return fl(static_cast<double>(a) / static_cast<double>(b)); }
float add(float a, float b) { return fl(static_cast<double>(a) + static_cast<double>(b)); }

struct Shape {
  int mantissa;
  int bias;
  int max_code;
  int nan_code;
  int sign;
};
Shape shape(Format format) {
  switch (format) {
    case Format::kE4M3:
      return {3, 7, 0x7e, 0x7f, 0x80};
    case Format::kE5M2:
      return {2, 15, 0x7b, 0x7f, 0x80};
    case Format::kE2M1:
      return {1, 1, 0x7, 0x7, 0x8};
  }
  return {};
}

float amax_of(const std::vector<float>& values) {
  float result = 0.0F;
  for (float v : values) {
    if (!std::isnan(v) && std::fabs(v) > result) {
      result = std::fabs(v);
    }
  }
  return result;
}

}  // namespace

double value(Format format, int code) {
  const Shape s = shape(format);
  const int fraction = code % (1 << s.mantissa);
  const int exponent = code >> s.mantissa;
  const double unit = std::ldexp(1.0, -s.mantissa);
  return exponent == 0 ? std::ldexp(fraction * unit, 1 - s.bias)
                       : std::ldexp(1.0 + fraction * unit, exponent - s.bias);
}

uint8_t cast(Format format, float x) {
  const Shape s = shape(format);
  if (std::isnan(x)) {
    return static_cast<uint8_t>(s.nan_code);
  }
  const double a = std::fabs(static_cast<double>(x));
  int low = 0;
  int high = s.max_code + 1;  // value(low) <= a
  while (high - low > 1) {
    const int middle = (low + high) / 2;
    (value(format, middle) <= a ? low : high) = middle;
  }
  int code = low;
  if (low < s.max_code) {
    const double down = a - value(format, low);
    const double up = value(format, low + 1) - a;
    code = (down < up || (down == up && low % 2 == 0)) ? low : low + 1;
  }
  return static_cast<uint8_t>(code + (std::signbit(x) ? s.sign : 0));
}

uint8_t e8m0_up(float x) {
  if (std::isnan(x)) {
    return 0xff;
  }
  int e = 0;
  while (e < 0xfe && std::ldexp(1.0, e - 127) < static_cast<double>(x)) {
    ++e;
  }
  return static_cast<uint8_t>(e);
}

float decode(Format format, uint8_t code) {
  const Shape s = shape(format);
  const int magnitude = code & (s.sign - 1);
  const double sign = (code & s.sign) != 0 ? -1.0 : 1.0;
  if (format == Format::kE4M3 && magnitude == 0x7f) {
    return std::numeric_limits<float>::quiet_NaN();
  }
  if (format == Format::kE5M2 && magnitude > 0x7b) {
    return magnitude == 0x7c ? fl(sign) * std::numeric_limits<float>::infinity()
                             : std::numeric_limits<float>::quiet_NaN();
  }
  return fl(sign * value(format, magnitude));
}

float e8m0(uint8_t code) {
  return code == 255 ? std::numeric_limits<float>::quiet_NaN() : fl(std::ldexp(1.0, code - 127));
}

Mxfp8 mxfp8(const Matrix& x, bool columns, Format format) {
  Mxfp8 out;
  out.q.resize(x.x.size());
  out.scale.resize(x.x.size() / 32);
  const float factor = format == Format::kE4M3 ? f32(0x3b124925) : f32(0x37924925);
  const int64_t blocks_across = columns ? x.cols : x.cols / 32;
  for (size_t block = 0; block < out.scale.size(); ++block) {
    const int64_t down = static_cast<int64_t>(block) / blocks_across;
    const int64_t across = static_cast<int64_t>(block) % blocks_across;
    const auto index = [&](int64_t i) {
      return static_cast<size_t>(columns ? (down * 32 + i) * x.cols + across
                                         : down * x.cols + across * 32 + i);
    };
    std::vector<float> values;
    for (int64_t i = 0; i < 32; ++i) {
      values.push_back(x.x[index(i)]);
    }
    const int e = e8m0_up(mul(amax_of(values), factor));
    out.scale[block] = static_cast<uint8_t>(e);
    for (int64_t i = 0; i < 32; ++i) {
      out.q[index(i)] = cast(format, mul(values[static_cast<size_t>(i)], fl(std::ldexp(1.0, 127 - e))));
    }
  }
  return out;
}

namespace {

struct Outer {
  float a;
  float s;
  float sd;
  int range;
};

Outer make_outer(float a, int range) {
  float s = 1.0F;
  if (a != 0.0F) {
    const double quotient = static_cast<double>(div(fl(6.0 * range), a));
    s = fl(quotient < kFloatMax ? quotient : kFloatMax);
    if (s == 0.0F) {
      s = 1.0F;
    }
  }
  return {a, s, div(1.0F, s), range};
}

float multiplier(uint8_t s, const Outer& outer) {
  const float k = div(1.0F, mul(decode(Format::kE4M3, s), outer.sd));
  return static_cast<double>(k) < kFloatMax ? k : fl(kFloatMax);
}

float block_error(const std::vector<std::vector<float>>& block, uint8_t s, const Outer& outer, Error error,
                  Flaw flaw) {
  std::vector<float> rows;
  for (const std::vector<float>& row : block) {
    float e = 0.0F;
    for (float x : row) {
      const float q = decode(Format::kE2M1, cast(Format::kE2M1, mul(x, multiplier(s, outer))));
      const float d = add(div(mul(mul(q, decode(Format::kE4M3, s)), outer.a), fl(6.0 * outer.range)), -x);
      if (flaw == Flaw::kFusedSquare && error == Error::kSquared) {
        e = std::fma(d, d, e);
      } else {
        e = add(e, error == Error::kAbsolute ? std::fabs(d) : mul(d, d));
      }
    }
    rows.push_back(e);
  }
  if (flaw == Flaw::kSequentialRows) {
    float sum = 0.0F;
    for (float e : rows) {
      sum = add(sum, e);
    }
    return sum;
  }
  for (size_t w = rows.size() / 2; w >= 1; w /= 2) {
    for (size_t r = 0; r < w; ++r) {
      rows[r] = add(rows[r], rows[r + w]);
    }
  }
  return rows[0];
}

uint8_t block_scale(const std::vector<std::vector<float>>& block, const Outer& outer, Error error,
                    Flaw flaw) {
  std::vector<float> all;
  for (const auto& row : block) {
    all.insert(all.end(), row.begin(), row.end());
  }
  const float block_amax = amax_of(all);
  if (error == Error::kNone) {
    const float t = mul(outer.s, f32(0x3e2aaaab));
    const float product = mul(block_amax, t);
    return cast(Format::kE4M3, static_cast<double>(product) < kFloatMax ? product : fl(kFloatMax));
  }
  const float base = mul(div(block_amax, 6.0F), outer.s);
  const float larger = mul(base, 1.5F);
  const uint8_t s6 = cast(Format::kE4M3, base < 448.0F ? base : 448.0F);
  const uint8_t s4 = cast(Format::kE4M3, larger < 448.0F ? larger : 448.0F);
  const float e6 = block_error(block, s6, outer, error, flaw);
  const float e4 = block_error(block, s4, outer, error, flaw);
  return e4 < e6 ? s4 : s6;
}

}  // namespace

Nvfp4 nvfp4(const Matrix& x, bool per_row, bool square, Error error, int range, const float* amax,
            Flaw flaw) {
  Nvfp4 out;
  out.q.resize(x.x.size() / 2);
  out.scale.resize(x.x.size() / 16);
  out.decoded.resize(x.x.size());
  const auto at = [&](int64_t r, int64_t c) { return static_cast<size_t>(r * x.cols + c); };
  if (!per_row) {
    out.amax.push_back(amax != nullptr ? *amax : amax_of(x.x));
  }
  const int64_t height = square ? 16 : 1;
  for (int64_t r = 0; r < x.rows; r += height) {
    if (per_row) {
      out.amax.push_back(amax_of(
          {x.x.begin() + static_cast<int64_t>(at(r, 0)), x.x.begin() + static_cast<int64_t>(at(r, x.cols))}));
    }
    const Outer outer = make_outer(out.amax.back(), range);
    for (int64_t c = 0; c < x.cols; c += 16) {
      std::vector<std::vector<float>> block;
      for (int64_t i = 0; i < height; ++i) {
        block.emplace_back(x.x.begin() + static_cast<int64_t>(at(r + i, c)),
                           x.x.begin() + static_cast<int64_t>(at(r + i, c)) + 16);
      }
      const uint8_t s = block_scale(block, outer, error, flaw);
      const float inverse = range == 448 ? f32(0x39c30c31) : f32(0x3a2aaaab);
      const float scale = mul(mul(decode(Format::kE4M3, s), outer.a), inverse);
      for (int64_t i = 0; i < height; ++i) {
        out.scale[at(r + i, c) / 16] = s;
        for (int64_t j = 0; j < 16; ++j) {
          const size_t element = at(r + i, c + j);
          const uint8_t code = cast(Format::kE2M1, mul(x.x[element], multiplier(s, outer)));
          out.q[element / 2] = static_cast<uint8_t>(out.q[element / 2] | (j % 2 == 0 ? code : code << 4));
          out.decoded[element] = mul(decode(Format::kE2M1, code), scale);
        }
      }
    }
  }
  return out;
}

}  // namespace formats_model
