// A config.json is refused, or means the same after normalization.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/hf_config.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accord;
  const std::string text(reinterpret_cast<const char*>(data), size);
  ModelConfig generation;
  (void)checkpoint::add_generation_config(text, "generation_config.json", generation);
  const auto config = checkpoint::parse_hf_config(text, "config.json");
  if (!config.ok()) {
    return 0;
  }
  const auto normalized = checkpoint::normalized_config_json(text, "config.json");
  if (!normalized.ok()) {
    std::abort();
  }
  const auto again = checkpoint::parse_hf_config(*normalized, "config.json");
  const auto made = checkpoint::parse_hf_config(checkpoint::make_config_json(*config), "config.json");
  if (!again.ok() || !(*again == *config) || !made.ok() || !(*made == *config)) {
    std::abort();
  }
  return 0;
}
