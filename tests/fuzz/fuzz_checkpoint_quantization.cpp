// quantization_config and hf_quant_config.json are refused, or mean the same when what they say is written.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>

#include "checkpoint/quantization_config.hpp"
#include "checkpoint/strict_json.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using namespace accord;
  using namespace accord::checkpoint;
  const std::string text(reinterpret_cast<const char*>(data), size);
  for (const auto& config : {parse_quantization_config(text, "config.json"),
                             parse_hf_quant_config(text, "hf_quant_config.json")}) {
    if (!config.ok() || (config->method != QuantMethod::kMxfp8 && config->method != QuantMethod::kModelopt)) {
      continue;
    }
    const auto written = add_quantization_config("{}", config->method, {"lm_head"}, config->nvfp4);
    if (!written.ok()) {
      std::abort();
    }
    const auto again = parse_quantization_config(
        accord::parse_json(*written)->at("quantization_config").dump(), "config.json");
    if (!again.ok() || again->method != config->method || again->nvfp4 != config->nvfp4) {
      std::abort();
    }
  }
  return 0;
}
