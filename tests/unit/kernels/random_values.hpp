#pragma once
// Random operands for the kernel tests.
#include <cstdint>
#include <vector>

#include "base/dtype.hpp"

namespace accord::kernels::testing {

std::vector<float> normal_values(int64_t count, uint64_t seed, double scale = 1.0);
std::vector<BF16> rounded(const std::vector<float>& values);
std::vector<float> widened(const std::vector<BF16>& values);
bool same_bits(const std::vector<float>& a, const std::vector<float>& b);
// |a - b| in units of the last place of b, b finite and normal.
double ulps(float a, double b);

}  // namespace accord::kernels::testing
