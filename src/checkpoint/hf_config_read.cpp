#include <algorithm>
#include <filesystem>
#include <limits>
#include <optional>
#include <utility>

#include "base/files.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/json_fields.hpp"

namespace accord::checkpoint {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxDim = std::numeric_limits<int32_t>::max();
constexpr int64_t kMaxLayers = 1024;
constexpr int64_t kMaxExperts = 4096;

struct Family {
  Architecture architecture;
  std::string_view class_name;
  std::string_view model_type;
};
constexpr Family kFamilies[] = {{Architecture::kLlama, "LlamaForCausalLM", "llama"},
                                {Architecture::kQwen3, "Qwen3ForCausalLM", "qwen3"},
                                {Architecture::kQwen3Moe, "Qwen3MoeForCausalLM", "qwen3_moe"},
                                {Architecture::kDeepseekV3, "DeepseekV3ForCausalLM", "deepseek_v3"}};

constexpr std::string_view kSupported =
    "supported are LlamaForCausalLM, Qwen3ForCausalLM, Qwen3MoeForCausalLM and DeepseekV3ForCausalLM";

std::optional<Architecture> read_architecture(JsonFields& fields) {
  const Json* classes = fields.find("architectures");
  const std::string type = fields.text("model_type", "");
  if (classes != nullptr && (!classes->is_array() || classes->size() != 1 || !classes->front().is_string())) {
    fields.fail("architectures", fmt::format("must be a list of one class name; {}", kSupported));
    return std::nullopt;
  }
  for (const Family& family : kFamilies) {
    const bool class_fits =
        classes == nullptr || classes->front().get_ref<const std::string&>() == family.class_name;
    const bool type_fits = type.empty() || type == family.model_type;
    if (class_fits && type_fits && (classes != nullptr || !type.empty())) {
      return family.architecture;
    }
  }
  fields.fail("architectures", fmt::format("{} with model_type '{}' is not supported; {}",
                                           classes == nullptr ? "(absent)" : printable(classes->dump()),
                                           printable(type), kSupported));
  return std::nullopt;
}

// Keys that must have their neutral value, because the forward has no code for another.
void refuse_unsupported(JsonFields& fields, Architecture architecture, const HfConfigOptions& options) {
  for (const char* key : {"attention_bias", "mlp_bias", "use_sliding_window", "attention_out_bias"}) {
    if (fields.boolean(key, false)) {
      fields.fail(key, "true is not supported; use a checkpoint without it");
    }
  }
  if (const std::string act = fields.text("hidden_act", "silu"); act != "silu" && act != "swish") {
    fields.fail("hidden_act", fmt::format("'{}' is not supported; use a model with silu", printable(act)));
  }
  if (fields.number("attention_dropout", 0.0) != 0.0) {
    fields.fail("attention_dropout", "must be 0: training here uses no dropout; set it to 0.0");
  }
  if (fields.number("partial_rotary_factor", 1.0) != 1.0) {
    fields.fail("partial_rotary_factor", "must be 1: rotary embedding covers whole heads; use another model");
  }
  if (const Json* types = fields.find("layer_types"); types != nullptr) {
    const bool all_full =
        types->is_array() &&
        std::all_of(types->begin(), types->end(), [](const Json& type) { return type == "full_attention"; });
    if (!all_full) {
      fields.fail("layer_types",
                  "must all be 'full_attention'; sliding or linear attention is not supported");
    }
  }
  if (fields.has("index_topk")) {
    fields.fail("index_topk",
                "asks for sparse attention over the tokens that an indexer chooses, which is not supported; "
                "use a model with full attention");
  }
  // DeepSeek's own checkpoints name code that says the same as transformers' class.
  if (const Json* map = fields.find("auto_map");
      map != nullptr && architecture != Architecture::kDeepseekV3) {
    fields.fail("auto_map",
                "asks for code of the checkpoint's own, which is never run; use a standard model");
  }
  if (!options.allow_quantization) {
    for (const char* key : {"quantization_config", "compression_config"}) {
      const Json* value = fields.find(key);
      if (value == nullptr) {
        continue;
      }
      const Status status =
          parse_quantization_config(value->dump(-1, ' ', false, Json::error_handler_t::replace), key)
              .status();
      if (!status.ok()) {
        fields.fail(key, fmt::format("is not supported: {}", message_of(status)));
      }
    }
  }
}

// The parameters of one scaling, as transformers' modeling_rope_utils reads them. A factor that is written as
// null under yarn is the ratio of the context lengths.
void read_scaling(JsonFields& fields, const std::string& type, bool null_factor, int64_t max_positions,
                  RopeScaling& scaling) {
  constexpr std::string_view kOriginal = "original_max_position_embeddings";
  if (type == "default") {
    return;
  }
  if (type == "dynamic" || type == "longrope") {
    fields.fail(
        "rope_type",
        fmt::format("'{}' makes the angles depend on a sequence's length, so that the trainer's pass over "
                    "a whole sequence cannot equal the sampler's pass token by token; use a checkpoint "
                    "with yarn, or remove the scaling if the context length allows it",
                    type));
    return;
  }
  if (type == "linear") {
    scaling.kind = RopeKind::kLinear;
    scaling.factor = fields.number("factor");
  } else if (type == "llama3") {
    scaling.kind = RopeKind::kLlama3;
    scaling.factor = fields.number("factor");
    scaling.low_freq_factor = fields.number("low_freq_factor");
    scaling.high_freq_factor = fields.number("high_freq_factor");
    scaling.original_max_position = fields.integer(kOriginal, 1, kMaxDim);
  } else if (type == "yarn") {
    scaling.kind = RopeKind::kYarn;
    scaling.original_max_position = fields.integer(kOriginal, 1, kMaxDim, max_positions);
    scaling.factor =
        null_factor ? static_cast<double>(max_positions) / static_cast<double>(scaling.original_max_position)
                    : fields.number("factor");
    scaling.beta_fast = fields.number("beta_fast", scaling.beta_fast);
    scaling.beta_slow = fields.number("beta_slow", scaling.beta_slow);
    scaling.truncate = fields.boolean("truncate", scaling.truncate);
    scaling.mscale = fields.number("mscale", 0.0);
    scaling.mscale_all_dim = fields.number("mscale_all_dim", 0.0);
    scaling.attention_factor = fields.number("attention_factor", 0.0);
    if (scaling.beta_slow <= 0.0 || scaling.beta_fast < scaling.beta_slow) {
      fields.fail("beta_fast", "must be at least beta_slow, and beta_slow positive");
    }
    if (scaling.mscale < 0.0 || scaling.mscale_all_dim < 0.0 || scaling.attention_factor < 0.0) {
      fields.fail("mscale", "and mscale_all_dim and attention_factor must not be negative");
    }
  } else {
    fields.fail("rope_type",
                fmt::format("'{}' is not supported, only default, linear, llama3 and yarn; remove "
                            "the scaling if the context length allows it",
                            printable(type)));
    return;
  }
  if (!fields.status().ok()) {
    return;
  }
  if (!(scaling.factor >= 1.0)) {
    fields.fail("factor", fmt::format("is {}, must be at least 1", scaling.factor));
  }
  if (!(scaling.low_freq_factor > 0.0 && scaling.high_freq_factor > scaling.low_freq_factor)) {
    fields.fail("low_freq_factor", "must be positive and below high_freq_factor");
  }
}

struct Rope {
  std::optional<double> theta;
  RopeScaling scaling;
};

// Parameters of a scaling without its type would do nothing, and two types cannot both be meant.
std::string read_rope_type(JsonFields& fields) {
  const std::string old = fields.text("type", "");
  const std::string type = fields.text("rope_type", old);
  if (!old.empty() && type != old) {
    fields.fail("rope_type", fmt::format("is '{}', type, its old name, says '{}'; make them agree",
                                         printable(type), printable(old)));
  }
  if (!type.empty()) {
    return type;
  }
  for (const char* key :
       {"factor", "original_max_position_embeddings", "low_freq_factor", "high_freq_factor", "beta_fast",
        "beta_slow", "mscale", "mscale_all_dim", "attention_factor", "short_factor", "long_factor"}) {
    if (fields.has(key)) {
      fields.fail("rope_type", fmt::format("is missing, but {} is there; say which scaling it is of", key));
    }
  }
  return "default";
}

// `key` is rope_parameters (transformers 5) or rope_scaling (before); both hold {rope_type | type, ...}.
std::optional<Rope> read_rope(JsonFields& outer, std::string_view key, int64_t max_positions,
                              Status& status) {
  const Json* value = outer.find(key);
  if (value == nullptr) {
    return std::nullopt;
  }
  if (!value->is_object()) {
    outer.fail(key, "must be an object");
    return std::nullopt;
  }
  JsonFields fields(*value, fmt::format("{}: {}", outer.where(), key));
  Rope rope;
  for (const auto& [name, member] : value->items()) {
    if (member.is_object()) {
      fields.fail(printable(name),
                  "per layer type is not supported; all layers must share one rotary embedding");
    }
  }
  const std::string type = read_rope_type(fields);
  if (fields.has("rope_theta")) {
    rope.theta = fields.number("rope_theta");
  }
  if (fields.number("partial_rotary_factor", 1.0) != 1.0) {
    fields.fail("partial_rotary_factor", "must be 1: rotary embedding covers whole heads; use another model");
  }
  const bool null_factor = value->contains("factor") && !fields.has("factor");
  read_scaling(fields, type, null_factor, max_positions, rope.scaling);
  if (status.ok()) {
    status = fields.status();
  }
  return rope;
}

Status read_rotary(JsonFields& fields, ModelConfig& config) {
  Status status;
  const std::optional<Rope> modern =
      read_rope(fields, "rope_parameters", config.max_position_embeddings, status);
  const std::optional<Rope> old = read_rope(fields, "rope_scaling", config.max_position_embeddings, status);
  ACCORD_RETURN_IF_ERROR(status);
  std::optional<double> old_theta;
  if (fields.has("rope_theta")) {
    old_theta = fields.number("rope_theta");
  }
  // Either object may hold it as well.
  for (const auto& [key, rope] : {std::pair{"rope_parameters", &modern}, {"rope_scaling", &old}}) {
    const std::optional<double> theta = *rope ? (*rope)->theta : std::nullopt;
    if (theta && old_theta && *theta != *old_theta) {
      fields.fail("rope_theta", fmt::format("is {}, {} says {}; make them agree", *old_theta, key, *theta));
    }
  }
  if (modern && old && modern->theta && old->theta && *modern->theta != *old->theta) {
    fields.fail("rope_scaling", "contradicts rope_parameters in rope_theta; make them agree");
  }
  if (modern && old && !(modern->scaling == old->scaling)) {
    fields.fail("rope_scaling", "contradicts rope_parameters; make them agree");
  }
  if (modern) {
    config.rope_scaling = modern->scaling;
  } else if (old) {
    config.rope_scaling = old->scaling;
  }
  constexpr double kDefaultTheta = 10000.0;
  config.rope_theta = modern && modern->theta ? *modern->theta
                      : old && old->theta     ? *old->theta
                                              : old_theta.value_or(kDefaultTheta);
  return absl::OkStatus();
}

void read_sizes(JsonFields& fields, ModelConfig& config) {
  config.vocab_size = fields.integer("vocab_size", 1, kMaxDim);
  config.hidden_size = fields.integer("hidden_size", 1, kMaxDim);
  config.num_layers = fields.integer("num_hidden_layers", 1, kMaxLayers);
  config.num_heads = fields.integer("num_attention_heads", 1, kMaxDim);
  config.num_kv_heads = fields.integer("num_key_value_heads", 1, kMaxDim, config.num_heads);
  config.max_position_embeddings = fields.integer("max_position_embeddings", 1, kMaxDim);
  config.rms_norm_eps = fields.number("rms_norm_eps", 1e-6);
  config.initializer_range = fields.number("initializer_range", 0.02);
  config.tie_word_embeddings = fields.boolean("tie_word_embeddings", false);
  constexpr int64_t kQwen3HeadDim = 128;  // what transformers assumes when the key is absent
  const int64_t fallback = config.architecture == Architecture::kQwen3
                               ? kQwen3HeadDim
                               : config.hidden_size / std::max<int64_t>(config.num_heads, 1);
  config.head_dim = fields.integer("head_dim", 1, kMaxDim, fallback);
  if (config.initializer_range < 0.0) {
    fields.fail("initializer_range", "is a standard deviation and must not be negative");
  }
}

void read_experts(JsonFields& fields, ModelConfig& config) {
  const bool both = fields.has("num_experts") && fields.has("num_local_experts");
  const char* key = fields.has("num_experts") ? "num_experts" : "num_local_experts";
  config.num_experts = fields.integer(key, 0, kMaxExperts);
  if (both && fields.integer("num_local_experts", 0, kMaxExperts) != config.num_experts) {
    fields.fail("num_local_experts", "differs from num_experts, its old name; make them agree");
  }
  config.num_experts_per_token = fields.integer("num_experts_per_tok", 0, kMaxExperts);
  config.moe_intermediate_size = fields.integer("moe_intermediate_size", 0, kMaxDim);
  config.norm_topk_prob = fields.boolean("norm_topk_prob", false);
  const int64_t every = fields.integer("decoder_sparse_step", 1, kMaxDim, 1);
  for (size_t layer = 0; layer < config.layer_is_moe.size(); ++layer) {
    config.layer_is_moe[layer] = config.num_experts > 0 && (static_cast<int64_t>(layer) + 1) % every == 0;
  }
  const Json* dense = fields.find("mlp_only_layers");
  if (dense == nullptr) {
    return;
  }
  if (!dense->is_array()) {
    fields.fail("mlp_only_layers", "must be a list of layer numbers");
    return;
  }
  for (const Json& layer : *dense) {
    if (!layer.is_number_unsigned() || layer.get<uint64_t>() >= config.layer_is_moe.size()) {
      fields.fail("mlp_only_layers", fmt::format("holds {}, which is not one of the {} layers",
                                                 printable(layer.dump()), config.layer_is_moe.size()));
      return;
    }
    config.layer_is_moe[layer.get<size_t>()] = false;
  }
}

// Keys of DeepseekV3Config; absent ones have transformers' defaults only where the value is a choice, not a
// size.
void read_deepseek(JsonFields& fields, ModelConfig& config) {
  MlaConfig& mla = config.mla;
  mla.q_lora_rank = fields.integer("q_lora_rank", 1, kMaxDim, 0);
  mla.kv_lora_rank = fields.integer("kv_lora_rank", 1, kMaxDim);
  mla.qk_nope_head_dim = fields.integer("qk_nope_head_dim", 1, kMaxDim);
  mla.qk_rope_head_dim = fields.integer("qk_rope_head_dim", 1, kMaxDim);
  mla.v_head_dim = fields.integer("v_head_dim", 1, kMaxDim);
  mla.rope_interleave = fields.boolean("rope_interleave", true);
  const auto must_be = [&](const char* key, int64_t expected, const char* what) {
    if (fields.integer(key, 0, kMaxDim, expected) != expected) {
      fields.fail(key, fmt::format("must be {} ({})", expected, what));
    }
  };
  must_be("head_dim", mla.qk_rope_head_dim, "qk_rope_head_dim");
  must_be("qk_head_dim", mla.qk_head_dim(), "qk_nope_head_dim + qk_rope_head_dim");
  must_be("moe_layer_freq", 1, "every layer after first_k_dense_replace is a mixture of experts");
  config.head_dim = mla.qk_rope_head_dim;

  const char* key = fields.has("n_routed_experts") ? "n_routed_experts" : "num_local_experts";
  config.num_experts = fields.integer(key, 1, kMaxExperts);
  if (fields.has("num_local_experts")) {
    must_be("num_local_experts", config.num_experts, "n_routed_experts");
  }
  config.num_experts_per_token = fields.integer("num_experts_per_tok", 1, kMaxExperts);
  config.moe_intermediate_size = fields.integer("moe_intermediate_size", 1, kMaxDim);
  config.num_shared_experts = fields.integer("n_shared_experts", 0, kMaxExperts);
  config.num_expert_groups = fields.integer("n_group", 1, kMaxExperts);
  config.num_chosen_groups = fields.integer("topk_group", 1, kMaxExperts);
  config.routed_scaling_factor = fields.number("routed_scaling_factor");
  config.norm_topk_prob = fields.boolean("norm_topk_prob", true);
  config.router_bias = true;
  config.router_scoring = RouterScoring::kSigmoid;
  if (const std::string f = fields.text("scoring_func", "sigmoid"); f != "sigmoid") {
    fields.fail("scoring_func", fmt::format("'{}' is not DeepSeek-V3's; use sigmoid", printable(f)));
  }
  if (const std::string m = fields.text("topk_method", "noaux_tc"); m != "noaux_tc") {
    fields.fail("topk_method", fmt::format("'{}' is not DeepSeek-V3's; use noaux_tc", printable(m)));
  }
  const int64_t dense = fields.integer("first_k_dense_replace", 0, kMaxLayers);
  for (size_t layer = 0; layer < config.layer_is_moe.size(); ++layer) {
    config.layer_is_moe[layer] = static_cast<int64_t>(layer) >= dense;
  }
}

// An id, a list of ids, or null. -1 stands for none in some files.
std::vector<int32_t> read_ids(JsonFields& fields, std::string_view key) {
  const Json* value = fields.find(key);
  if (value == nullptr) {
    return {};
  }
  std::vector<int32_t> ids;
  const Json list = value->is_array() ? *value : Json::array({*value});
  for (const Json& id : list) {
    if (!id.is_number_integer() || (id.is_number_unsigned() && id.get<uint64_t>() > kMaxDim) ||
        id.get<int64_t>() < -1 || id.get<int64_t>() > kMaxDim) {
      fields.fail(key, fmt::format("holds {}, which is not a token id", printable(id.dump())));
      return {};
    }
    if (id.get<int64_t>() >= 0) {
      ids.push_back(id.get<int32_t>());
    }
  }
  return ids;
}

int32_t read_id(JsonFields& fields, std::string_view key) {
  const std::vector<int32_t> ids = read_ids(fields, key);
  return ids.empty() ? -1 : ids.front();
}

}  // namespace

StatusOr<ModelConfig> parse_hf_config(std::string_view text, const std::string& path,
                                      const HfConfigOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(text, path));
  if (!json.is_object()) {
    return data_error("{}: must hold one JSON object, not {}", path, json.type_name());
  }
  JsonFields fields(json, path);
  ModelConfig config;
  const std::optional<Architecture> architecture = read_architecture(fields);
  if (!architecture) {
    return fields.status();
  }
  config.architecture = *architecture;
  config.qk_norm = *architecture == Architecture::kQwen3 || *architecture == Architecture::kQwen3Moe;
  refuse_unsupported(fields, *architecture, options);
  read_sizes(fields, config);
  ACCORD_RETURN_IF_ERROR(fields.status());
  config.layer_is_moe.assign(static_cast<size_t>(config.num_layers), false);
  if (*architecture == Architecture::kQwen3Moe) {
    read_experts(fields, config);
  } else if (*architecture == Architecture::kDeepseekV3) {
    read_deepseek(fields, config);
  }
  const bool any_dense =
      std::find(config.layer_is_moe.begin(), config.layer_is_moe.end(), false) != config.layer_is_moe.end();
  config.intermediate_size = any_dense ? fields.integer("intermediate_size", 1, kMaxDim)
                                       : fields.integer("intermediate_size", 0, kMaxDim, 0);
  ACCORD_RETURN_IF_ERROR(read_rotary(fields, config));
  config.eos_token_ids = read_ids(fields, "eos_token_id");
  config.bos_token_id = read_id(fields, "bos_token_id");
  config.pad_token_id = read_id(fields, "pad_token_id");
  ACCORD_RETURN_IF_ERROR(fields.status());
  if (const Status status = validate(config); !status.ok()) {
    // validate() speaks of config.json in general; name this one.
    std::string_view message = message_of(status);
    constexpr std::string_view kPrefix = "config.json: ";
    if (message.substr(0, kPrefix.size()) == kPrefix) {
      message.remove_prefix(kPrefix.size());
    }
    return data_error("{}: {}", path, message);
  }
  return config;
}

Status add_generation_config(std::string_view text, const std::string& path, ModelConfig& config) {
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(text, path));
  if (!json.is_object()) {
    return data_error("{}: must hold one JSON object, not {}", path, json.type_name());
  }
  JsonFields fields(json, path);
  for (const int32_t id : read_ids(fields, "eos_token_id")) {
    auto& ids = config.eos_token_ids;
    if (std::find(ids.begin(), ids.end(), id) == ids.end()) {
      ids.push_back(id);
    }
  }
  return fields.status();
}

StatusOr<HfConfig> read_hf_config_file(const std::string& path, const HfConfigOptions& options) {
  HfConfig result;
  ACCORD_ASSIGN_OR_RETURN(result.config_json, read_file(path, kMaxConfigBytes));
  ACCORD_ASSIGN_OR_RETURN(result.model, parse_hf_config(result.config_json, path, options));
  return result;
}

StatusOr<HfConfig> read_hf_config(const std::string& dir, const HfConfigOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(HfConfig result, read_hf_config_file(dir + "/config.json", options));
  ACCORD_ASSIGN_OR_RETURN(result.quantization, read_quantization_config(dir, result.config_json));
  const std::string generation = dir + "/generation_config.json";
  std::error_code ignored;
  if (std::filesystem::exists(generation, ignored)) {
    ACCORD_ASSIGN_OR_RETURN(result.generation_config_json, read_file(generation, kMaxConfigBytes));
    ACCORD_RETURN_IF_ERROR(add_generation_config(result.generation_config_json, generation, result.model));
  }
  return result;
}

}  // namespace accord::checkpoint
