#include "tests/emulation/capability.hpp"

#include <charconv>
#include <cstdlib>
#include <string_view>
#include <system_error>

namespace accord::emulation {

Capability capability() {
  const char* const text = std::getenv("ACCORD_EMULATED_CAPABILITY");
  if (text == nullptr) return {};
  const std::string_view all(text);
  const char* const end = all.data() + all.size();
  Capability found;
  const auto major = std::from_chars(all.data(), end, found.major);
  if (major.ec != std::errc() || major.ptr == end || *major.ptr != '.') return {0, 0};
  const auto minor = std::from_chars(major.ptr + 1, end, found.minor);
  return minor.ec == std::errc() && minor.ptr == end ? found : Capability{0, 0};
}

}  // namespace accord::emulation
