#pragma once
// Hugging Face config.json <-> ModelConfig, for LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM and
// DeepseekV3ForCausalLM.
// Old names (num_experts, rope_theta and rope_scaling, torch_dtype) and those of transformers 5
// (num_local_experts, rope_parameters, dtype) are both read, and both are written. Whatever would change the
// numbers and is not computed here (biases, sliding windows, dynamic rotary scaling, other activations,
// quantized weights, ...) is an error that names the key and the remedy. Keys that transformers does not read
// for these models are kept and ignored.
#include <string>
#include <string_view>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "checkpoint/quantization_config.hpp"

namespace accord::checkpoint {

// A checkpoint's configuration as accord understands it, with the files' own text.
struct HfConfig {
  ModelConfig model;
  std::string config_json;
  std::string generation_config_json;  // empty: the directory has none
  QuantizationConfig quantization;     // how the weights beside it are stored
};

struct HfConfigOptions {
  bool allow_quantization =
      false;  // read a config.json that has quantization_config (its content is ignored)
};

// DIR/config.json and, if present, DIR/generation_config.json, whose end-of-text tokens are added.
StatusOr<HfConfig> read_hf_config(const std::string& dir, const HfConfigOptions& options = {});

// One config.json; `path` is named in errors. Defaults of missing keys are those of transformers.
StatusOr<HfConfig> read_hf_config_file(const std::string& path, const HfConfigOptions& options = {});
StatusOr<ModelConfig> parse_hf_config(std::string_view text, const std::string& path,
                                      const HfConfigOptions& options = {});

// Appends eos ids of a generation_config.json that `config` lacks.
Status add_generation_config(std::string_view text, const std::string& path, ModelConfig& config);

// The original config.json with what transformers 4.5x and 5.x need to load bfloat16 weights of this model:
// dtype, rotary and expert keys under both names, head_dim, architectures. Everything else stays.
StatusOr<std::string> normalized_config_json(std::string_view original, const std::string& path);

// A config.json and a generation_config.json from nothing but a ModelConfig.
std::string make_config_json(const ModelConfig& config);
std::string make_generation_config_json(const ModelConfig& config);

}  // namespace accord::checkpoint
