#pragma once
// Latent attention of one layer, around the attention kernel itself. Not for other rooms.
//
//   project   q = q_b(norm(q_a(x))) or q(x);  (c, k_rot) = kv_a(x);  c = norm(c);  rotary on k_rot and on the
//             last `rope` of each head of q. plain: keys (W_UK c, k_rot) and values W_UV c per head go to the
//             cache. absorbed: (c, k_rot) goes to the cache, once for all heads, and each q becomes
//             (W_UK^T q, q_rot).
//   attend    by the caller, over query() into attended()
//   finish    absorbed: W_UV times what came back
#include <cstdint>

#include "model/impl.hpp"

namespace accord::model {

class LatentAttention {
 public:
  // `q`, `attn`: the layer's views of [T, q_width] and [T, attention_width].
  LatentAttention(Model::Impl& model, const LayerWeights& weights, const Batch& batch, const KvLayer& kv,
                  LayerTape& tape, MatrixView q, MatrixView attn);

  int64_t project_work() const;  // multiply-adds per row
  int64_t finish_work() const;
  void project(MatrixView norm1_TH, int64_t begin, int64_t end, ThreadPool* inner);
  void finish(int64_t begin, int64_t end, ThreadPool* inner);

  kernels::AttentionShape shape() const;
  MatrixView query() const { return absorbed_ ? q_latent_ : q_; }
  MatrixView attended() const { return absorbed_ ? attn_latent_ : attn_; }

 private:
  void project_queries(MatrixView norm1, int64_t begin, int64_t n, ThreadPool* inner);
  void expand_keys(int64_t begin, int64_t n, ThreadPool* inner);
  template <class Heads>
  void for_heads(ThreadPool* inner, const Heads& heads);

  Model::Impl& m_;
  const ModelConfig& c_;
  const LayerWeights& w_;
  const Batch& batch_;
  const KvLayer& kv_;
  const bool absorbed_;
  MatrixView q_, attn_, q_a_, q_a_norm_, kv_a_, latent_, q_latent_, attn_latent_, expanded_;
  float* inv_rms_q_a_ = nullptr;
  float* inv_rms_kv_a_ = nullptr;
};

}  // namespace accord::model
