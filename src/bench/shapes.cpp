#include "bench/shapes.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <filesystem>

#include "checkpoint/hf_config.hpp"

namespace accord::bench {
namespace {

ModelConfig smollm2() {
  ModelConfig c;
  c.architecture = Architecture::kLlama;
  c.vocab_size = 49152;
  c.hidden_size = 576;
  c.num_layers = 30;
  c.num_heads = 9;
  c.num_kv_heads = 3;
  c.head_dim = 64;
  c.intermediate_size = 1536;
  c.layer_is_moe.assign(30, false);
  c.tie_word_embeddings = true;
  c.rope_theta = 100000.0;
  c.max_position_embeddings = 8192;
  return c;
}

ModelConfig qwen3_moe() {
  ModelConfig c;
  c.architecture = Architecture::kQwen3Moe;
  c.vocab_size = 151936;
  c.hidden_size = 2048;
  c.num_layers = 48;
  c.num_heads = 32;
  c.num_kv_heads = 4;
  c.head_dim = 128;
  c.intermediate_size = 6144;
  c.num_experts = 128;
  c.num_experts_per_token = 8;
  c.moe_intermediate_size = 768;
  c.layer_is_moe.assign(48, true);
  c.qk_norm = true;
  c.rope_theta = 1000000.0;
  c.max_position_embeddings = 40960;
  return c;
}

ModelConfig tiny(ModelConfig c) {
  c.vocab_size = 320;
  c.hidden_size = 128;
  c.num_layers = 2;
  c.layer_is_moe.resize(2);
  c.num_heads = 4;
  c.num_kv_heads = 2;
  c.head_dim = 32;
  c.intermediate_size = 192;
  if (c.num_experts == 0) return c;
  c.num_experts = 8;
  c.num_experts_per_token = 2;
  c.moe_intermediate_size = 64;
  return c;
}

}  // namespace

const std::vector<std::string>& shape_names() {
  static const std::vector<std::string> names{"qwen3-30b-a3b", "smollm2-135m", "tiny", "tiny-moe"};
  return names;
}

StatusOr<Shape> find_shape(const std::string& name) {
  if (name == "qwen3-30b-a3b") return Shape{"Qwen3-30B-A3B", qwen3_moe()};
  if (name == "smollm2-135m") return Shape{"SmolLM2-135M", smollm2()};
  if (name == "tiny") return Shape{"tiny", tiny(smollm2())};
  if (name == "tiny-moe") return Shape{"tiny MoE", tiny(qwen3_moe())};
  std::error_code error;
  if (!std::filesystem::is_regular_file(name, error)) {
    return usage_error("--shape: '{}' is neither a config.json nor one of {}", name,
                       fmt::join(shape_names(), ", "));
  }
  ACCORD_ASSIGN_OR_RETURN(checkpoint::HfConfig config,
                          checkpoint::read_hf_config_file(name, {.allow_quantization = true}));
  return Shape{name, std::move(config.model)};
}

Sizes::Sizes(const ModelConfig& c, const Phase& phase)
    : rows(phase.rows),
      hidden(c.hidden_size),
      q_width(c.num_heads * c.head_dim),
      kv_width(c.num_kv_heads * c.head_dim),
      heads(c.num_heads),
      kv_heads(c.num_kv_heads),
      head_dim(c.head_dim),
      vocab(c.vocab_size),
      moe(c.layer_is_moe.back()),
      experts(c.num_experts),
      slots(c.num_experts_per_token),
      sorted(moe ? phase.rows * slots : phase.rows),
      width(moe ? c.moe_intermediate_size : c.intermediate_size) {}

ModelConfig with_layers(ModelConfig config, int64_t count) {
  const int64_t dropped = config.num_layers - std::min(count, config.num_layers);
  config.num_layers -= dropped;
  config.layer_is_moe.erase(config.layer_is_moe.begin(), config.layer_is_moe.begin() + dropped);
  return config;
}

}  // namespace accord::bench
