#pragma once
// Backward of latent attention (model/latent_attention.hpp) in both forms, from the gradient of the residual
// stream after o_proj to that of the input norm's output. H heads, kv_b_proj = per head W_UK [nope, latent]
// and W_UV [v, latent], c the normed latent.
//
//   plain      (dk, dv) of all heads enter kv_b_proj's backward as one linear
//   absorbed   o = W_UV a:        da = do W_UV;       dW_UV += do^T a        a: what attention returned
//              a = attention(q', (c, k_rot), c)       dc from the keys and from the values, one row for all
//              heads q' = W_UK^T q:     dq = dq' W_UK^T;    dW_UK += q^T dq'
//
// Gradients that enter a product are rounded to bf16 first, as everywhere (contract, section 5).
#include <cstdint>

#include "base/status.hpp"
#include "model/forward.hpp"
#include "trainer/linear_backward.hpp"
#include "trainer/matmul.hpp"
#include "trainer/workspace.hpp"

namespace accord::trainer {

class LatentAttentionBackward {
 public:
  LatentAttentionBackward(Workspace& workspace, LinearBackward& linears) : w_(workspace), linears_(linears) {}

  // dy_TH: the residual's gradient as an operand (rounded); dnorm_TH (fp32) is overwritten.
  Status run(const LayerParams& params, const model::Batch& batch, const model::LayerWeights& weights,
             const model::KvLayer& kv, const model::LayerTape& tape, const float* dy_TH, float* dnorm_TH);

 private:
  struct Call {
    const LayerParams& params;
    const model::Batch& batch;
    const model::LayerWeights& weights;
    const model::KvLayer& kv;
    const model::LayerTape& tape;
    int64_t rows;
  };
  // [rows, heads * stride] -> [heads][rows][count] from `first` of each head on, and back.
  void gather_heads(const float* in, int64_t stride, int64_t first, int64_t count, int64_t rows, float* out);
  void scatter_heads(const float* in, int64_t stride, int64_t first, int64_t count, int64_t rows, float* out);

  Status plain(const Call& call);
  Status absorbed(const Call& call);
  Status output_products(const Call& call, const float* kv_b, float* dattn_latent);
  Status query_products(const Call& call, const float* kv_b, const float* dq_latent);
  void attention(const Call& call, MatrixView q, MatrixView out, const float* dout, int64_t kv_heads,
                 int64_t head_dim, int64_t v_dim);
  Status projections(const Call& call, float* dnorm_TH);
  float* scratch(Buffer& buffer, int64_t count);

  Workspace& w_;
  LinearBackward& linears_;
  Products products_;
  // fp32, reused by every layer.
  Buffer attn_, dattn_, raw_dq_, dk_, dv_, dq_, dkv_a_, dlatent_, latent_, dexpanded_, dq_a_, q_a_, norm_;
  Buffer kv_b_, transposed_, wide_, heads_dy_, heads_x_, heads_dx_, dattn_latent_;
};

}  // namespace accord::trainer
