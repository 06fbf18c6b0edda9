#pragma once
// The transformer forward, written once. Rollout, trainer and reference call these functions over the
// same arena bytes; only the Batch differs (paged decode, chunked prefill, packed training sequences).
//
// Legend: T rows (tokens) of the batch, H hidden, Q = heads*head_dim, C = kv_heads*head_dim, V vocabulary,
//         E experts, K experts per token, I MLP width; A rows that arrived at an expert group's place.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "device/buffer.hpp"
#include "device/tensor_view.hpp"
#include "device/thread_pool.hpp"
#include "kernels/attention/attention.hpp"
#include "kernels/linear/linear.hpp"
#include "kernels/rope/rope.hpp"
#include "model/expert_exchange.hpp"

namespace accord::model {

// Consecutive positions of one sequence, the pages of its cache, and one layer's cache: attention.hpp.
using kernels::kPageSize;
using kernels::KvLayer;
using kernels::Segment;

struct Batch {
  std::span<const int32_t> tokens;     // [T]
  std::span<const int32_t> positions;  // [T]
  std::span<const int32_t> kv_rows;    // [T] the cache row that row t's key and value are written to
  std::span<const Segment> segments;
  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()); }
};

// A layer's cache of `rows` rows in memory of kv_widths(config); where values are part of the keys, `v` is
// not used and the view of the values is one of `k`.
KvLayer kv_layer(const ModelConfig& config, Dtype dtype, int64_t rows, void* k, void* v);
KvLayer kv_layer(const ModelConfig& config, Dtype dtype, int64_t rows, Buffer& k, Buffer& v);

// What one layer's backward needs, filled by layer_forward when asked for. Buffers are reused.
// All in the compute dtype unless said otherwise.
struct MlaTape {
  Buffer q_a, q_a_norm;  // [T,q_lora] before and after the norm (input of q_b)
  Buffer inv_rms_q_a;    // [T] fp32
  Buffer kv_a;           // [T,kv_lora+rope] latent before its norm, rotary key before its turn
  Buffer latent;         // [T,kv_lora] after the norm (input of kv_b)
  Buffer inv_rms_kv_a;   // [T] fp32
  Buffer q_latent;       // [T,heads*(kv_lora+rope)] absorbed: what attends
  Buffer attn_latent;    // [T,heads*kv_lora] absorbed: what attention returns
};
struct LayerTape {
  Buffer norm1;                 // [T,H] output of the input norm (input of q, k, v)
  Buffer inv_rms1;              // [T] fp32
  Buffer q_raw, k_raw;          // [T,Q], [T,C] projections before q/k norm and rotary
  Buffer inv_rms_q, inv_rms_k;  // [T,heads], [T,kv_heads] fp32 (only with q/k norm)
  Buffer q;                     // [T,Q] after norm and rotary (k after rotary and v lie in the KvLayer)
  Buffer attn;                  // [T,Q] attention output (input of o)
  Buffer lse;                   // [T,heads] fp32 log-sum-exp of the scaled scores
  Buffer x_mid;                 // [T,H] residual stream after attention
  Buffer norm2;                 // [T,H] output of the post-attention norm (input of MLP or router)
  Buffer inv_rms2;              // [T] fp32
  MlaTape mla;                  // latent attention; q and attn are above, q_raw and k_raw not used
  // MLP. Dense: one block of T rows. MoE: rows sorted by expert, then by token; R = T*K rows.
  Buffer gate, up;                      // [R,I] (with an expert group [A,I], of the A arrived rows)
  Buffer act;                           // [R,I] silu(gate)*up (input of down; [A,I] likewise)
  Buffer down;                          // [R,H] expert outputs before weighting (MoE only)
  Buffer router_probs;                  // [T,E] fp32 scores of all experts, softmax or sigmoid (MoE only)
  Buffer topk_weights;                  // [T,K] fp32 (MoE only)
  std::vector<int32_t> topk_ids;        // [T*K] expert ids, best first (MoE only)
  std::vector<int32_t> expert_offsets;  // [E+1] first sorted row of each expert
  std::vector<int32_t> sorted_tokens;   // [R] token of each sorted row
  std::vector<int32_t> sorted_slots;    // [R] its slot 0..K-1 in the token's top-k
  Buffer shared_gate, shared_up;        // [T,shared I] of the shared experts
  Buffer shared_act;                    // [T,shared I]
  // Only with an expert group; gate, up and act are in owner order.
  ExchangePlan exchange;
  Buffer arrived;  // [A,H] norm2 of the arrived rows in arrival order (input of their gate and up)
};

// Routing of one layer over a batch: recorded in rollout (`ids` filled) or replayed (`replay` read).
struct Routing {
  std::vector<int32_t>* record = nullptr;  // [T*K] out
  std::span<const int32_t> replay;         // [T*K] in; empty: route by score
};

using kernels::LinearWeight;

struct MlpWeights {
  LinearWeight gate, up, down;
};

struct LayerWeights {
  const BF16* input_norm = nullptr;
  const BF16* post_norm = nullptr;
  const BF16* q_norm = nullptr;
  const BF16* k_norm = nullptr;
  LinearWeight q, k, v, o;
  // Latent attention: q_a, its norm and q_b (or q alone), kv_a, its norm, kv_b, o.
  const BF16* q_a_norm = nullptr;
  const BF16* kv_a_norm = nullptr;
  LinearWeight q_a, q_b, kv_a, kv_b;
  LinearWeight router;                 // MoE
  const float* router_bias = nullptr;  // [E]; null: none
  MlpWeights shared;                   // MoE; n = 0: no shared experts
  std::vector<MlpWeights> mlp;         // one (dense) or one per expert
};

struct PolicyWeights {
  const BF16* embedding = nullptr;  // [V,H]
  const BF16* final_norm = nullptr;
  LinearWeight lm_head;  // the embedding when tied
  std::vector<LayerWeights> layers;
};

// Resolves names to pointers into `arena` (which must outlive the result and keep its address). Refuses a
// manifest that lacks a parameter or holds it in a shape or format that the forward cannot read.
StatusOr<PolicyWeights> bind_weights(const ModelConfig& config, const WeightManifest& manifest,
                                     const void* arena);

// Bytes of what CudaModel::keep_expert_fragments keeps.
int64_t expert_fragment_bytes(const WeightManifest& manifest);

class Model {
 public:
  // `compute_dtype`: kF32 or kBF16, the dtype of activations and the KV cache. `pool` must outlive the model.
  static StatusOr<std::unique_ptr<Model>> create(const ModelConfig& config, PolicyWeights weights,
                                                 Dtype compute_dtype, ThreadPool& pool);
  ~Model();

  const ModelConfig& config() const;
  const PolicyWeights& weights() const;
  Dtype compute_dtype() const;

  // Angles of the rotary embedding, for the backward; positions [0, count) are available afterwards.
  const kernels::RopeTable& rope(int64_t count);

  // Whether a batch can run against a cache of `kv_rows` rows: token ids, positions and rows in range, and
  // every row in exactly one segment, at its position. The calls below rely on it and check nothing.
  Status check(const Batch& batch, int64_t kv_rows) const;
  // Whether recorded expert ids can be replayed: T*K ids, each row's in range and different.
  Status check_replay(std::span<const int32_t> ids, int64_t num_rows) const;

  // x_TH = embedding rows of the tokens.
  void embed(const Batch& batch, MatrixView x_TH);

  // Spreads the experts over the places of `group` (expert_exchange.hpp), which must outlive the model or the
  // next call of this; null, or a group of one: all experts are here again. With a group every place calls
  // layer_forward for the same layers in the same order, also with 0 rows; the weights of experts that
  // another place holds are not read, and results are the same bits as without. A number of experts that does
  // not divide by the group's size is a recipe error.
  Status set_expert_group(Communicator* group);
  // Null: no group. The caller renews its deadline before calls that exchange.
  ExpertExchange* expert_exchange() const;

  // x_TH = layer(x_TH) in place; writes this batch's keys and values into `kv`. `tape` may be null. Errors:
  // only of the expert group's exchange.
  Status layer_forward(int64_t layer, const Batch& batch, const KvLayer& kv, MatrixView x_TH, Routing routing,
                       LayerTape* tape);

  // logits_RV (fp32) = lm_head(final_norm(x)) for the given rows of x. When `normed_RH` is given, the normed
  // rows (compute dtype) and `inv_rms` [R] are kept there for the backward.
  void logits(MatrixView x_TH, std::span<const int32_t> rows, MatrixView logits_RV,
              MatrixView* normed_RH = nullptr, float* inv_rms = nullptr);

 private:
  friend class LayerRun;
  friend class ExpertMlps;
  friend class LatentAttention;
  struct Impl;
  explicit Model(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::model
