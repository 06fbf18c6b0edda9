#include "formats_inputs.hpp"

#include <bit>
#include <cmath>

#include "base/philox.hpp"

namespace formats_inputs {
namespace {

float from_bits(uint32_t bits) { return std::bit_cast<float>(bits); }

float draw(const std::string& kind, accord::PhiloxStream& random) {
  if (kind == "bits") {
    return from_bits(random.next_u32());
  }
  if (kind == "denormal") {
    const uint32_t bits = random.next_u32();
    return from_bits((bits & 0x80000000u) | ((bits & 0x7fffffu) >> (random.next_u32() % 24)));
  }
  const double normal = random.next_normal();
  if (kind == "ties" || kind == "sparse") {
    if (kind == "sparse" && random.next_below(8) != 0) {
      return 0.0F;
    }
    return static_cast<float>(0.25 * std::rint(4.0 * normal));
  }
  if (kind == "heavy") {
    return static_cast<float>(std::ldexp(normal, static_cast<int>(random.next_below(60)) - 30));
  }
  if (kind == "tiny") {
    return static_cast<float>(std::ldexp(normal, -120 - static_cast<int>(random.next_below(12))));
  }
  if (kind == "special" && random.next_below(40) == 0) {
    constexpr uint32_t kSpecial[] = {0x7fc00000, 0xffc00000, 0x7f800001, 0xff812345, 0x7f800000, 0xff800000,
                                     0x80000000, 0x7f7fffff, 0xff7fffff, 0x00000001, 0x807fffff, 0x00800000};
    return from_bits(kSpecial[random.next_below(std::size(kSpecial))]);
  }
  return static_cast<float>(normal);
}

}  // namespace

const std::vector<std::string>& kinds() {
  static const std::vector<std::string> names = {"normal",   "ties", "heavy",  "tiny",
                                                 "denormal", "bits", "special"};
  return names;
}

formats_model::Matrix make(const std::string& kind, int64_t rows, int64_t cols, uint64_t seed) {
  accord::PhiloxStream random(seed, 17);
  formats_model::Matrix m{std::vector<float>(static_cast<size_t>(rows * cols)), rows, cols};
  for (float& x : m.x) {
    x = draw(kind, random);
  }
  return m;
}

formats_model::Matrix rounded_to_bf16(const formats_model::Matrix& x) {
  formats_model::Matrix m = x;
  for (float& v : m.x) {
    v = accord::to_float(accord::to_bf16(v));
  }
  return m;
}

std::vector<accord::BF16> as_bf16(const formats_model::Matrix& x) {
  std::vector<accord::BF16> out;
  for (float v : x.x) {
    out.push_back(accord::to_bf16(v));
  }
  return out;
}

int64_t count_different(const std::vector<uint8_t>& a, const std::vector<uint8_t>& b) {
  int64_t count = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    count += a[i] != b[i] ? 1 : 0;
  }
  return count;
}

int64_t count_different(const std::vector<float>& a, const std::vector<float>& b) {
  int64_t count = a.size() == b.size() ? 0 : 1;
  for (size_t i = 0; i < std::min(a.size(), b.size()); ++i) {
    const bool both_nan = std::isnan(a[i]) && std::isnan(b[i]);
    count += !both_nan && std::bit_cast<uint32_t>(a[i]) != std::bit_cast<uint32_t>(b[i]) ? 1 : 0;
  }
  return count;
}

}  // namespace formats_inputs
