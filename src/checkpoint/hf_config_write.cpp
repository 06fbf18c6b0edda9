#include <algorithm>
#include <utility>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/strict_json.hpp"

namespace accord::checkpoint {
namespace {

constexpr int kIndent = 2;

std::string pretty(const Json& json) { return json.dump(kIndent) + "\n"; }

void set_class(Json& json, Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      json["architectures"] = {"LlamaForCausalLM"};
      json["model_type"] = "llama";
      return;
    case Architecture::kQwen3:
      json["architectures"] = {"Qwen3ForCausalLM"};
      json["model_type"] = "qwen3";
      return;
    case Architecture::kQwen3Moe:
      json["architectures"] = {"Qwen3MoeForCausalLM"};
      json["model_type"] = "qwen3_moe";
      return;
    case Architecture::kDeepseekV3:
      json["architectures"] = {"DeepseekV3ForCausalLM"};
      json["model_type"] = "deepseek_v3";
      return;
  }
}

Json scaling_json(const RopeScaling& s) {
  switch (s.kind) {
    case RopeKind::kDefault:
      break;
    case RopeKind::kLinear:
      return {{"rope_type", "linear"}, {"factor", s.factor}};
    case RopeKind::kLlama3:
      return {{"rope_type", "llama3"},
              {"factor", s.factor},
              {"low_freq_factor", s.low_freq_factor},
              {"high_freq_factor", s.high_freq_factor},
              {"original_max_position_embeddings", s.original_max_position}};
    case RopeKind::kYarn: {
      Json json = {{"rope_type", "yarn"},      {"factor", s.factor},
                   {"beta_fast", s.beta_fast}, {"beta_slow", s.beta_slow},
                   {"truncate", s.truncate},   {"original_max_position_embeddings", s.original_max_position}};
      for (const auto& [key, value] : {std::pair{"mscale", s.mscale},
                                       {"mscale_all_dim", s.mscale_all_dim},
                                       {"attention_factor", s.attention_factor}}) {
        if (value != 0.0) {
          json[key] = value;
        }
      }
      return json;
    }
  }
  return {{"rope_type", "default"}};
}

// transformers before 5 silently ignores rope_parameters and takes theta 10000; 5 reads either form.
void set_both_names(Json& json, const ModelConfig& config) {
  json["dtype"] = "bfloat16";
  json["torch_dtype"] = "bfloat16";
  json["head_dim"] = config.head_dim;
  json["tie_word_embeddings"] = config.tie_word_embeddings;
  Json rope = scaling_json(config.rope_scaling);
  json["rope_scaling"] = config.rope_scaling.kind == RopeKind::kDefault ? Json() : rope;
  rope["rope_theta"] = config.rope_theta;
  json["rope_theta"] = config.rope_theta;
  json["rope_parameters"] = rope;
  if (config.architecture == Architecture::kQwen3Moe) {
    json["num_experts"] = config.num_experts;
    json["num_local_experts"] = config.num_experts;
  }
  if (config.architecture == Architecture::kDeepseekV3) {
    json["n_routed_experts"] = config.num_experts;
    json.erase("num_local_experts");  // transformers 5's name for it, which older ones do not read
  }
}

void set_deepseek(Json& json, const ModelConfig& config) {
  const auto first_moe = std::find(config.layer_is_moe.begin(), config.layer_is_moe.end(), true);
  json["first_k_dense_replace"] = first_moe - config.layer_is_moe.begin();
  json["q_lora_rank"] = config.mla.q_lora_rank > 0 ? Json(config.mla.q_lora_rank) : Json();
  json["kv_lora_rank"] = config.mla.kv_lora_rank;
  json["qk_nope_head_dim"] = config.mla.qk_nope_head_dim;
  json["qk_rope_head_dim"] = config.mla.qk_rope_head_dim;
  json["v_head_dim"] = config.mla.v_head_dim;
  json["rope_interleave"] = config.mla.rope_interleave;
  json["num_experts_per_tok"] = config.num_experts_per_token;
  json["moe_intermediate_size"] = config.moe_intermediate_size;
  json["moe_layer_freq"] = 1;
  json["norm_topk_prob"] = config.norm_topk_prob;
  json["n_shared_experts"] = config.num_shared_experts;
  json["n_group"] = config.num_expert_groups;
  json["topk_group"] = config.num_chosen_groups;
  json["routed_scaling_factor"] = config.routed_scaling_factor;
  json["scoring_func"] = "sigmoid";
  json["topk_method"] = "noaux_tc";
}

void set_tokens(Json& json, const ModelConfig& config) {
  if (config.eos_token_ids.size() == 1) {
    json["eos_token_id"] = config.eos_token_ids.front();
  } else if (!config.eos_token_ids.empty()) {
    json["eos_token_id"] = config.eos_token_ids;
  }
  if (config.bos_token_id >= 0) {
    json["bos_token_id"] = config.bos_token_id;
  }
  if (config.pad_token_id >= 0) {
    json["pad_token_id"] = config.pad_token_id;
  }
}

}  // namespace

StatusOr<std::string> normalized_config_json(std::string_view original, const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const ModelConfig config,
                          parse_hf_config(original, path, {.allow_quantization = true}));
  ACCORD_ASSIGN_OR_RETURN(Json json, parse_json(original, path));
  for (const char* key : {"quantization_config", "compression_config"}) {
    json.erase(key);  // the weights written beside it are plain bfloat16
  }
  set_class(json, config.architecture);
  set_both_names(json, config);
  return pretty(json);
}

std::string make_config_json(const ModelConfig& config) {
  Json json;
  set_class(json, config.architecture);
  set_tokens(json, config);
  json["attention_bias"] = false;
  json["attention_dropout"] = 0.0;
  json["hidden_act"] = "silu";
  json["hidden_size"] = config.hidden_size;
  json["initializer_range"] = config.initializer_range;
  json["intermediate_size"] = config.intermediate_size;
  json["max_position_embeddings"] = config.max_position_embeddings;
  json["num_attention_heads"] = config.num_heads;
  json["num_hidden_layers"] = config.num_layers;
  json["num_key_value_heads"] = config.num_kv_heads;
  json["rms_norm_eps"] = config.rms_norm_eps;
  json["use_cache"] = true;
  json["vocab_size"] = config.vocab_size;
  if (config.architecture == Architecture::kQwen3Moe) {
    json["num_experts_per_tok"] = config.num_experts_per_token;
    json["moe_intermediate_size"] = config.moe_intermediate_size;
    json["norm_topk_prob"] = config.norm_topk_prob;
    json["decoder_sparse_step"] = 1;
    json["mlp_only_layers"] = Json::array();
    for (size_t layer = 0; layer < config.layer_is_moe.size(); ++layer) {
      if (!config.layer_is_moe[layer]) {
        json["mlp_only_layers"].push_back(layer);
      }
    }
  }
  if (config.architecture == Architecture::kDeepseekV3) {
    set_deepseek(json, config);
  }
  set_both_names(json, config);
  return pretty(json);
}

std::string make_generation_config_json(const ModelConfig& config) {
  Json json = Json::object();
  set_tokens(json, config);
  return pretty(json);
}

}  // namespace accord::checkpoint
