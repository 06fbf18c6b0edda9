#include "cli/command.hpp"

#include <charconv>

namespace accord::cli {
namespace {

CLI::Validator number_check(const char* name, const char* rule, bool (*accepts)(double)) {
  return {[rule, accepts](std::string& text) {
            double value = 0.0;
            const bool good = CLI::detail::lexical_cast(text, value) && accepts(value);
            return good ? std::string() : fmt::format("must be {}, is '{}'", rule, text);
          },
          name};
}

}  // namespace

CLI::Validator positive_number() {
  return number_check("POSITIVE", "above 0", [](double value) { return value > 0.0; });
}

CLI::Validator nonnegative_number() {
  return number_check("NONNEGATIVE", "0 or more", [](double value) { return value >= 0.0; });
}

CLI::Validator seed_number() {
  return {[](std::string& text) {
            uint64_t value = 0;
            const char* const end = text.data() + text.size();
            const auto parsed = std::from_chars(text.data(), end, value);
            const bool padded = text.size() > 1 && text[0] == '0';  // the library would read it as octal
            const bool good = parsed.ec == std::errc() && parsed.ptr == end && !padded;
            return good ? std::string()
                        : fmt::format("must be a whole number from 0 to 2^64-1, is '{}'", text);
          },
          "SEED"};
}

void add_device_option(CLI::App& command, std::string& device) {
  command.add_option("--device", device, "Where it computes: cpu or cuda:N")->capture_default_str();
}

StatusOr<Device> open_device(const std::string& device) {
  const StatusOr<DeviceId> id = parse_device(device);
  if (!id.ok()) {
    return annotate(id.status(), "--device");
  }
  StatusOr<Device> opened = Device::open(*id);
  if (!opened.ok()) {
    return annotate(opened.status(), "--device");
  }
  return opened;
}

}  // namespace accord::cli
