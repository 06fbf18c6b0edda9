#pragma once
// Inputs that are hard on quantizers, and byte comparison.
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "formats_model.hpp"

namespace formats_inputs {

// normal: N(0,1); ties: 0.25*rint(4*N(0,1)); heavy: N(0,1) with exponents over a wide range; tiny: near the
// smallest normals; denormal: subnormals and zeros; bits: uniform bit patterns, NaN and Inf included;
// sparse: one in eight of ties, else zero. special: normal with a few NaN (both signs), Inf, -0, FLT_MAX and
// subnormals.
const std::vector<std::string>& kinds();
formats_model::Matrix make(const std::string& kind, int64_t rows, int64_t cols, uint64_t seed);

// The same values after rounding to bf16, and as bf16.
formats_model::Matrix rounded_to_bf16(const formats_model::Matrix& x);
std::vector<accord::BF16> as_bf16(const formats_model::Matrix& x);

int64_t count_different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b);
// Bits compared; any NaN equals any NaN.
int64_t count_different(const std::vector<float>& a, const std::vector<float>& b);

}  // namespace formats_inputs
