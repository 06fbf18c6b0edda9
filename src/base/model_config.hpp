#pragma once
// What a decoder-only transformer looks like: the fields of a Hugging Face config.json that accord
// reads, after validation, and the list of its parameters under their canonical (Hugging Face) names.
#include <cstdint>
#include <string>
#include <vector>

#include "base/router_scoring.hpp"
#include "base/status.hpp"

namespace accord {

enum class Architecture : uint8_t { kLlama, kQwen3, kQwen3Moe, kDeepseekV3 };

// Rotary scaling, as rope_scaling (rope_parameters) says it. All kinds have frequencies that are fixed for a
// model: one that changed with the length of a sequence would make a cached key depend on what came later.
enum class RopeKind : uint8_t { kDefault, kLinear, kLlama3, kYarn };
struct RopeScaling {
  RopeKind kind = RopeKind::kDefault;
  double factor = 1.0;
  double low_freq_factor = 1.0;       // llama3
  double high_freq_factor = 4.0;      // llama3
  int64_t original_max_position = 0;  // llama3, yarn
  double beta_fast = 32.0;            // yarn
  double beta_slow = 1.0;             // yarn
  bool truncate = true;               // yarn: whole numbers as the ends of its ramp
  double mscale = 0.0;                // yarn; 0: absent
  double mscale_all_dim = 0.0;        // yarn; 0: absent
  double attention_factor = 0.0;      // yarn; 0: follows from factor and the mscales
  bool operator==(const RopeScaling&) const = default;
};

// Multi-head latent attention (DeepSeek-V2, arXiv 2405.04434). `plain` expands the latent into keys and
// values per head; `absorbed` carries kv_b_proj over to the query and the output, and attends to the latent
// itself. The form is the recipe's choice, not the checkpoint's; one serves a whole run.
enum class MlaForm : uint8_t { kPlain, kAbsorbed };
inline constexpr MlaForm kDefaultMlaForm = MlaForm::kAbsorbed;
struct MlaConfig {
  int64_t q_lora_rank = 0;  // 0: queries come from one projection, q_proj
  int64_t kv_lora_rank = 0;
  int64_t qk_nope_head_dim = 0;
  int64_t qk_rope_head_dim = 0;
  int64_t v_head_dim = 0;
  bool rope_interleave = true;  // rotary pairs are neighbours in q and kv_a (else halves)
  MlaForm form = kDefaultMlaForm;
  int64_t qk_head_dim() const { return qk_nope_head_dim + qk_rope_head_dim; }
  bool operator==(const MlaConfig&) const = default;
};

struct ModelConfig {
  Architecture architecture = Architecture::kQwen3Moe;
  int64_t vocab_size = 0;
  int64_t hidden_size = 0;
  int64_t num_layers = 0;
  int64_t num_heads = 0;
  int64_t num_kv_heads = 0;
  int64_t head_dim = 0;           // with latent attention: of the rotary part
  MlaConfig mla;                  // kv_lora_rank 0: grouped-query attention
  int64_t intermediate_size = 0;  // dense MLP width
  int64_t num_experts = 0;        // 0: every MLP is dense
  int64_t num_experts_per_token = 0;
  int64_t moe_intermediate_size = 0;
  bool norm_topk_prob = true;  // divide the chosen router weights by their sum
  RouterScoring router_scoring = RouterScoring::kSoftmax;
  bool router_bias = false;  // a correction bias that is added to the scores for the choice alone
  // Experts are chosen from the `num_chosen_groups` groups whose two best scores sum highest.
  int64_t num_expert_groups = 1;
  int64_t num_chosen_groups = 1;
  double routed_scaling_factor = 1.0;  // on the chosen weights
  int64_t num_shared_experts = 0;      // one MLP of this many times moe_intermediate_size beside the experts
  std::vector<bool> layer_is_moe;      // [num_layers]
  bool qk_norm = false;                // RMSNorm on every q and k head (Qwen3)
  bool tie_word_embeddings = false;
  double rms_norm_eps = 1e-6;
  double rope_theta = 10000.0;
  RopeScaling rope_scaling;
  int64_t max_position_embeddings = 0;
  double initializer_range = 0.02;
  std::vector<int32_t> eos_token_ids;
  int32_t bos_token_id = -1;  // -1: none
  int32_t pad_token_id = -1;

  bool has_mla() const { return mla.kv_lora_rank > 0; }
  bool absorbed() const { return has_mla() && mla.form == MlaForm::kAbsorbed; }
  int64_t q_width() const { return num_heads * (has_mla() ? mla.qk_head_dim() : head_dim); }
  int64_t attention_width() const {  // what the heads hand to o_proj
    return num_heads * (has_mla() ? mla.v_head_dim : head_dim);
  }
  int64_t shared_width() const { return num_shared_experts * moe_intermediate_size; }

  bool operator==(const ModelConfig&) const = default;
};

enum class ParamRole : uint8_t {
  kEmbedding,
  kLmHead,
  kNorm,
  kRouter,
  kRouterBias,  // a buffer: used for the choice of experts, never trained
  kQ,
  kK,
  kV,
  kO,  // attention projections
  kGate,
  kUp,
  kDown,  // MLP projections: dense, of an expert, or of the shared experts
  kQA,
  kQB,
  kKvA,
  kKvB,  // latent attention
};

// One parameter. Linear weights are [out_features, in_features] (the last axis is contracted).
struct ParamSpec {
  std::string name;  // canonical: model.layers.3.mlp.experts.7.gate_proj.weight
  std::vector<int64_t> shape;
  ParamRole role = ParamRole::kNorm;
  int32_t layer = -1;   // -1: not in a layer
  int32_t expert = -1;  // -1: not an expert's
  bool shared = false;  // of a layer's shared experts

  int64_t numel() const {
    int64_t n = 1;
    for (int64_t d : shape) n *= d;
    return n;
  }
};

// Every parameter in canonical order: embedding, then per layer (input norm, q, k, v, o, q/k norms, or for
// latent attention q or q_a, its norm, q_b, then kv_a, its norm, kv_b, o; post-attention norm; router, its
// bias, experts in ascending order as gate, up, down, shared experts; or dense gate, up, down), final norm,
// lm_head (absent when tied).
std::vector<ParamSpec> parameter_specs(const ModelConfig& config);

// Refuses sizes that no forward can run: zero or negative dims, heads not divisible by kv heads, odd
// head_dim, ...
Status validate(const ModelConfig& config);

// Elements of one cache row of one layer. `v` 0: values are the first kv_lora_rank columns of the key.
struct KvWidths {
  int64_t k = 0;
  int64_t v = 0;
};
KvWidths kv_widths(const ModelConfig& config);
// Bytes of one cache row over all layers, from the element size.
int64_t kv_row_bytes(const ModelConfig& config, int64_t element_bytes);

// The factor on rotary cosines and sines (1 unless yarn).
double rope_attention_factor(const RopeScaling& scaling);
// The factor on the dot products of queries and keys: 1/sqrt(d), for latent attention times
// (0.1 mscale_all_dim ln(factor) + 1)^2 under yarn.
double attention_scale(const ModelConfig& config);

// The recipe's name of a form, and back; an unknown name is an error.
const char* mla_form_name(MlaForm form);

}  // namespace accord
