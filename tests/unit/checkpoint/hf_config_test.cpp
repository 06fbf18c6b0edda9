#include "checkpoint/hf_config.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"
#include "temp_dir.hpp"

using namespace accord;
using namespace accord::checkpoint;

namespace {

const std::string kLlama =
    R"("architectures":["LlamaForCausalLM"],"model_type":"llama","vocab_size":320,"hidden_size":64,"num_hidden_layers":2,"num_attention_heads":4,"num_key_value_heads":2,"intermediate_size":96,"max_position_embeddings":512)";
const std::string kMoe =
    R"("architectures":["Qwen3MoeForCausalLM"],"model_type":"qwen3_moe","vocab_size":320,"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":2,"head_dim":32,"intermediate_size":96,"max_position_embeddings":512,"num_experts_per_tok":2,"moe_intermediate_size":32)";

StatusOr<ModelConfig> parse(const std::string& members) {
  return parse_hf_config("{" + members + "}", "c.json");
}

ModelConfig good(const std::string& members) {
  const auto config = parse(members);
  INFO(members);
  INFO(message_of(config.status()));
  REQUIRE(config.ok());
  return *config;
}

void refused(const std::string& members, const std::string& part) {
  const auto config = parse(members);
  INFO(members);
  REQUIRE_FALSE(config.ok());
  CHECK(exit_code(config.status()) == ExitCode::kBadData);
  const std::string message(message_of(config.status()));
  INFO(message << "\n  lacks: " << part);
  CHECK(message.find("c.json") == 0);
  CHECK(message.find(part) != std::string::npos);
}

}  // namespace

TEST_CASE("configurations of transformers 5 are read") {
  const auto moe = read_hf_config(std::string(ACCORD_TEST_DATA) + "/hf/qwen3_moe");
  REQUIRE(moe.ok());
  const ModelConfig& c = moe->model;
  CHECK(c.architecture == Architecture::kQwen3Moe);
  CHECK(c.num_experts == 8);
  CHECK(c.num_experts_per_token == 2);
  CHECK(c.moe_intermediate_size == 32);
  CHECK(c.layer_is_moe == std::vector<bool>{true, true, true});
  CHECK(c.norm_topk_prob);
  CHECK(c.qk_norm);
  CHECK(c.head_dim == 32);
  CHECK(c.rope_theta == 10000.0);
  CHECK(c.rope_scaling == RopeScaling{});
  CHECK(c.initializer_range == 0.12);
  CHECK(c.eos_token_ids == std::vector<int32_t>{2});
  CHECK(c.bos_token_id == 1);
  CHECK(c.pad_token_id == 0);
  CHECK_FALSE(c.tie_word_embeddings);
  const auto llama = read_hf_config(std::string(ACCORD_TEST_DATA) + "/hf/llama_tied");
  REQUIRE(llama.ok());
  CHECK(llama->model.rope_theta == 100000.0);
  CHECK(llama->model.tie_word_embeddings);
  CHECK_FALSE(llama->model.qk_norm);
  CHECK(read_hf_config(std::string(ACCORD_TEST_DATA) + "/hf/qwen3_dense_tied").ok());
}

TEST_CASE("old and new names mean the same") {
  const std::string scaling =
      R"("factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192)";
  const ModelConfig old_names =
      good(kLlama + R"(,"rope_theta":500000.0,"rope_scaling":{)" + scaling + R"(,"rope_type":"llama3"})");
  const ModelConfig new_names =
      good(kLlama + R"(,"rope_parameters":{"rope_type":"llama3","rope_theta":500000.0,)" + scaling + "}");
  CHECK(old_names == new_names);
  CHECK(old_names.rope_theta == 500000.0);
  CHECK(old_names.rope_scaling.factor == 8.0);
  CHECK(old_names.rope_scaling.original_max_position == 8192);
  CHECK(good(kLlama + R"(,"rope_scaling":null,"rope_theta":7)") ==
        good(kLlama + R"(,"rope_parameters":{"rope_theta":7})"));
  CHECK(good(kLlama).rope_theta == 10000.0);
  CHECK(good(kMoe + R"(,"num_experts":8)") == good(kMoe + R"(,"num_local_experts":8)"));
  CHECK(good(kMoe + R"(,"num_experts":8,"num_local_experts":8)").num_experts == 8);
  refused(kMoe + R"(,"num_experts":8,"num_local_experts":4)", "num_local_experts differs from num_experts");
  refused(kLlama + R"(,"rope_theta":7,"rope_parameters":{"rope_theta":8})",
          "rope_theta is 7, rope_parameters says 8");
  refused(kLlama + R"(,"rope_parameters":{"rope_theta":8},"rope_scaling":{"type":"llama3",)" + scaling + "}",
          "rope_scaling contradicts");
}

TEST_CASE("absent keys take the defaults of transformers") {
  CHECK(good(kLlama).head_dim == 16);
  CHECK_FALSE(good(kLlama).tie_word_embeddings);
  CHECK(good(kLlama).rms_norm_eps == 1e-6);
  CHECK(good(kLlama).eos_token_ids.empty());
  CHECK(good(kLlama).bos_token_id == -1);
  CHECK_FALSE(good(kMoe + R"(,"num_experts":8)").norm_topk_prob);
  std::string qwen = kLlama;
  qwen.replace(qwen.find("LlamaForCausalLM"), 16, "Qwen3ForCausalLM");
  qwen.replace(qwen.find("\"llama\""), 7, "\"qwen3\"");
  CHECK(good(qwen).head_dim == 128);
  CHECK(good(qwen + R"(,"head_dim":null)").head_dim == 128);
}

TEST_CASE("sparse step and dense layers decide which layers have experts") {
  const std::string experts = kMoe + R"(,"num_experts":8)";
  CHECK(good(experts).layer_is_moe == std::vector<bool>{true, true, true, true});
  CHECK(good(experts + R"(,"decoder_sparse_step":2)").layer_is_moe ==
        std::vector<bool>{false, true, false, true});
  CHECK(good(experts + R"(,"decoder_sparse_step":1,"mlp_only_layers":[0,3])").layer_is_moe ==
        std::vector<bool>{false, true, true, false});
  refused(experts + R"(,"mlp_only_layers":[4])", "mlp_only_layers holds 4, which is not one of the 4 layers");
  refused(experts + R"(,"decoder_sparse_step":0)", "decoder_sparse_step is 0");
}

TEST_CASE("token ids come as one, as a list, or not at all") {
  CHECK(good(kLlama + R"(,"eos_token_id":[5,6])").eos_token_ids == std::vector<int32_t>{5, 6});
  CHECK(good(kLlama + R"(,"eos_token_id":null,"pad_token_id":-1)").pad_token_id == -1);
  refused(kLlama + R"(,"eos_token_id":"x")", "eos_token_id holds \"x\", which is not a token id");
  refused(kLlama + R"(,"eos_token_id":18446744073709551615)", "not a token id");
  ModelConfig config = good(kLlama + R"(,"eos_token_id":5)");
  REQUIRE(add_generation_config(R"({"eos_token_id":[5,7]})", "g.json", config).ok());
  CHECK(config.eos_token_ids == std::vector<int32_t>{5, 7});
  REQUIRE(add_generation_config("{}", "g.json", config).ok());
  CHECK_FALSE(add_generation_config("[]", "g.json", config).ok());
}

TEST_CASE("what would change the numbers is refused by name") {
  refused(kLlama + R"(,"attention_bias":true)", "attention_bias true is not supported");
  refused(kLlama + R"(,"mlp_bias":true)", "mlp_bias true");
  refused(kLlama + R"(,"use_sliding_window":true)", "use_sliding_window");
  refused(kLlama + R"(,"layer_types":["full_attention","sliding_attention"])", "layer_types");
  refused(kLlama + R"(,"hidden_act":"gelu")", "hidden_act 'gelu' is not supported");
  refused(kLlama + R"(,"attention_dropout":0.1)", "attention_dropout");
  refused(kLlama + R"(,"partial_rotary_factor":0.5)", "partial_rotary_factor");
  refused(kLlama + R"(,"auto_map":{"AutoModel":"x.Y"})", "auto_map");
  refused(kLlama + R"(,"quantization_config":{"quant_method":"fp8"})", "load the BF16 checkpoint");
  refused(kLlama + R"(,"rope_scaling":{"type":"dynamic","factor":4.0})", "depend on a sequence's length");
  refused(kLlama + R"(,"rope_scaling":{"type":"longrope","factor":4.0})", "depend on a sequence's length");
  refused(kLlama + R"(,"rope_scaling":{"type":"ntk","factor":4.0})", "rope_type 'ntk' is not supported");
  refused(kLlama + R"(,"rope_scaling":{"type":"yarn","factor":0.5})", "factor is 0.5, must be at least 1");
  refused(kLlama + R"(,"rope_parameters":{"full_attention":{"rope_theta":1.0}})", "per layer type");
  refused(kLlama + R"(,"rope_scaling":{"rope_type":"llama3","factor":8.0})", "low_freq_factor is missing");
  refused(kLlama + R"(,"rope_scaling":5)", "rope_scaling must be an object");
  refused(R"("architectures":["MistralForCausalLM"])", "supported are LlamaForCausalLM");
  refused(R"("architectures":["LlamaForCausalLM"],"model_type":"qwen3")",
          "model_type 'qwen3' is not supported");
  refused(R"("architectures":[],"model_type":"llama")", "list of one class name");
  refused(R"("hidden_size":5)", "architectures");
  REQUIRE(
      parse_hf_config("{" + kLlama + R"(,"quantization_config":{}})", "c.json", {.allow_quantization = true})
          .ok());
}

namespace {
const std::string kDeepseek =
    R"("architectures":["DeepseekV3ForCausalLM"],"model_type":"deepseek_v3","vocab_size":320,"hidden_size":64,"num_hidden_layers":4,"num_attention_heads":4,"num_key_value_heads":4,"intermediate_size":96,"max_position_embeddings":163840,"num_experts_per_tok":2,"moe_intermediate_size":32,"n_routed_experts":8,"n_shared_experts":1,"first_k_dense_replace":1,"n_group":4,"topk_group":2,"routed_scaling_factor":2.5,"kv_lora_rank":32,"qk_nope_head_dim":32,"qk_rope_head_dim":16,"v_head_dim":24)";
}  // namespace

TEST_CASE("a DeepSeek-V3 config says what its model is") {
  // As the published files have it: old names, their own code named beside the class.
  const ModelConfig c = good(
      kDeepseek +
      R"(,"q_lora_rank":24,"auto_map":{"AutoModel":"x.Y"},"scoring_func":"sigmoid","topk_method":"noaux_tc","moe_layer_freq":1,"rope_scaling":{"type":"yarn","factor":40,"beta_fast":32,"beta_slow":1,"mscale":1.0,"mscale_all_dim":1.0,"original_max_position_embeddings":4096})");
  CHECK(c.mla == MlaConfig{24, 32, 32, 16, 24});
  CHECK(c.head_dim == 16);
  CHECK(c.layer_is_moe == std::vector<bool>{false, true, true, true});
  CHECK(c.router_scoring == RouterScoring::kSigmoid);
  CHECK(c.num_expert_groups == 4);
  CHECK(c.num_chosen_groups == 2);
  CHECK(c.routed_scaling_factor == 2.5);
  CHECK(c.norm_topk_prob);
  CHECK_FALSE(c.qk_norm);
  CHECK(c.rope_scaling.kind == RopeKind::kYarn);
  CHECK(c.rope_scaling.factor == 40.0);
  CHECK(rope_attention_factor(c.rope_scaling) == 1.0);
  const auto back = parse_hf_config(make_config_json(c), "c.json");
  REQUIRE(back.ok());
  CHECK(*back == c);
  const auto normalized = normalized_config_json("{" + kDeepseek + R"(,"num_local_experts":8})", "c.json");
  REQUIRE(normalized.ok());
  CHECK(*parse_hf_config(*normalized, "c.json") == good(kDeepseek));
  CHECK(good(kDeepseek + R"(,"q_lora_rank":null)").mla.q_lora_rank == 0);

  std::vector<std::string> names;
  for (const ParamSpec& spec : parameter_specs(c)) {
    if (spec.layer == 1 && spec.expert < 0)
      names.push_back(spec.name.substr(std::string("model.layers.1.").size()));
  }
  CHECK(names == std::vector<std::string>{
                     "input_layernorm.weight", "self_attn.q_a_proj.weight", "self_attn.q_a_layernorm.weight",
                     "self_attn.q_b_proj.weight", "self_attn.kv_a_proj_with_mqa.weight",
                     "self_attn.kv_a_layernorm.weight", "self_attn.kv_b_proj.weight",
                     "self_attn.o_proj.weight", "post_attention_layernorm.weight", "mlp.gate.weight",
                     "mlp.gate.e_score_correction_bias", "mlp.shared_experts.gate_proj.weight",
                     "mlp.shared_experts.up_proj.weight", "mlp.shared_experts.down_proj.weight"});

  refused(kDeepseek + R"(,"scoring_func":"softmax")", "scoring_func 'softmax'");
  refused(kDeepseek + R"(,"topk_method":"greedy")", "topk_method 'greedy'");
  refused(kDeepseek + R"(,"head_dim":64)", "head_dim must be 16");
  refused(kDeepseek + R"(,"moe_layer_freq":2)", "moe_layer_freq must be 1");
  refused(kDeepseek + R"(,"num_local_experts":4)", "num_local_experts must be 8");
  const auto with = [](const std::string& from, const std::string& to) {
    std::string text = kDeepseek;
    return text.replace(text.find(from), from.size(), to);
  };
  refused(with(R"("n_group":4)", R"("n_group":3)"), "n_group (3) must divide the 8 experts");
  refused(with(R"("n_group":4)", R"("n_group":8)"), "one expert per group");
  refused(with(R"("num_experts_per_tok":2)", R"("num_experts_per_tok":5)"), "hold only 4 experts");
  refused(with(R"("kv_lora_rank":32)", R"("kv_lora_rank":24)"), "kv_lora_rank (24) must be a multiple of 16");
  refused(with(R"("v_head_dim":24)", R"("v_head_dim":20)"), "v_head_dim is 20");
  refused(with(R"(,"v_head_dim":24)", ""), "v_head_dim is missing");
  refused(with(R"("num_key_value_heads":4)", R"("num_key_value_heads":2)"), "num_key_value_heads (2)");
}

TEST_CASE("wrong types, sizes and duplicates are refused by name") {
  refused(kLlama + R"(,"vocab_size":3)", "key 'vocab_size' appears twice");
  refused(R"("model_type":"llama")", "vocab_size is missing");
  refused(kLlama + R"(,"rms_norm_eps":"small")", "rms_norm_eps is \"small\", must be a finite number");
  refused(kLlama + R"(,"rms_norm_eps":0)", "rms_norm_eps");
  refused(kLlama + R"(,"tie_word_embeddings":1)", "tie_word_embeddings is 1, must be true or false");
  refused(kLlama + R"(,"head_dim":12)", "head_dim (12) is not a multiple of 8");
  refused(kLlama + R"(,"head_dim":16.0)", "head_dim is 16.0, must be an integer");
  refused(kLlama + R"(,"rope_theta":1e999)", "c.json");
  const auto list = parse_hf_config("[1]", "c.json");
  REQUIRE_FALSE(list.ok());
  CHECK(message_of(list.status()).find("must hold one JSON object") != std::string_view::npos);
}

TEST_CASE("a normalized configuration speaks both dialects and means the same") {
  const std::string original =
      "{" + kMoe +
      R"(,"num_experts":8,"rope_theta":500000.0,"torch_dtype":"float32","my_key":[1,{"a":"b"}],"quantization_config":{"x":1}})";
  const auto text = normalized_config_json(original, "c.json");
  REQUIRE(text.ok());
  for (const char* part :
       {R"("dtype": "bfloat16")", R"("torch_dtype": "bfloat16")", R"("num_local_experts": 8)",
        R"("num_experts": 8)", R"("rope_theta": 500000.0)", R"("rope_scaling": null)",
        R"("rope_type": "default")", R"("my_key")", R"("tie_word_embeddings": false)"}) {
    INFO(*text << "\n lacks: " << part);
    CHECK(text->find(part) != std::string::npos);
  }
  CHECK(text->find("quantization_config") == std::string::npos);
  const auto before = parse_hf_config(original, "c.json", {.allow_quantization = true});
  const auto after = parse_hf_config(*text, "c.json");
  REQUIRE(after.ok());
  CHECK(*after == *before);
  CHECK(*normalized_config_json(*text, "c.json") == *text);
}

TEST_CASE("a configuration made from a ModelConfig reads back as the same") {
  for (const char* name : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"}) {
    const auto config = read_hf_config(std::string(ACCORD_TEST_DATA) + "/hf/" + name);
    REQUIRE(config.ok());
    const auto back = parse_hf_config(make_config_json(config->model), "c.json");
    REQUIRE(back.ok());
    CHECK(*back == config->model);
  }
  ModelConfig mixed = good(
      kMoe +
      R"(,"num_experts":8,"decoder_sparse_step":2,"eos_token_id":[3,4],"rope_scaling":{"rope_type":"llama3","factor":8.0,"low_freq_factor":1.0,"high_freq_factor":4.0,"original_max_position_embeddings":8192})");
  const auto back = parse_hf_config(make_config_json(mixed), "c.json");
  REQUIRE(back.ok());
  CHECK(*back == mixed);
  CHECK(make_generation_config_json(mixed).find("\"eos_token_id\": [") != std::string::npos);
}

TEST_CASE("rotary settings that say too little or two things are refused by name") {
  CHECK(good(kLlama + R"(,"rope_scaling":{"type":"linear","factor":2.0,"rope_theta":500000.0})").rope_theta ==
        500000.0);
  CHECK(good(kLlama + R"(,"rope_theta":7,"rope_scaling":{"type":"linear","factor":2.0,"rope_theta":7})")
            .rope_theta == 7.0);
  CHECK(good(kLlama + R"(,"rope_scaling":{"type":"yarn","rope_type":"yarn","factor":2.0})")
            .rope_scaling.factor == 2.0);
  CHECK(
      good(kLlama + R"(,"rope_scaling":{"type":"yarn","factor":null,"original_max_position_embeddings":128})")
          .rope_scaling.factor == 4.0);
  CHECK(good(kLlama + R"(,"rope_scaling":{},"index_topk":null)").rope_scaling == RopeScaling{});
  refused(kLlama + R"(,"rope_theta":7,"rope_scaling":{"type":"linear","factor":2.0,"rope_theta":8})",
          "rope_theta is 7, rope_scaling says 8");
  refused(kLlama + R"(,"rope_parameters":{"rope_theta":7},"rope_scaling":{"rope_theta":8})",
          "rope_scaling contradicts rope_parameters in rope_theta");
  refused(kLlama + R"(,"rope_scaling":{"type":"yarn"})", "rope_scaling: factor is missing");
  refused(kLlama + R"(,"rope_parameters":{"rope_type":"yarn"})", "rope_parameters: factor is missing");
  refused(kLlama + R"(,"rope_scaling":{"factor":2})", "rope_type is missing, but factor is there");
  refused(kLlama + R"(,"rope_scaling":{"type":"linear","rope_type":"yarn","factor":2})",
          "rope_type is 'yarn', type, its old name, says 'linear'");
  refused(kLlama + R"(,"index_topk":2048)", "index_topk asks for sparse attention");
}
