#include "random_values.hpp"

#include <cmath>
#include <cstring>

#include "base/philox.hpp"

namespace accord::kernels::testing {

std::vector<float> normal_values(int64_t count, uint64_t seed, double scale) {
  PhiloxStream random(seed, 2);
  std::vector<float> out(static_cast<size_t>(count));
  for (float& x : out) x = static_cast<float>(scale * random.next_normal());
  return out;
}

std::vector<BF16> rounded(const std::vector<float>& values) {
  std::vector<BF16> out;
  for (const float x : values) out.push_back(to_bf16(x));
  return out;
}

std::vector<float> widened(const std::vector<BF16>& values) {
  std::vector<float> out;
  for (const BF16 x : values) out.push_back(to_float(x));
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

double ulps(float a, double b) {
  const double unit = std::ldexp(1.0, std::ilogb(b) - 23);
  return std::abs(double{a} - b) / unit;
}

}  // namespace accord::kernels::testing
