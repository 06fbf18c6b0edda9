#pragma once
// latent_attention_backward.hpp on CUDA, in stream order: the same steps, where a gradient that enters a
// product is rounded to bf16 once. Of cuda_layer_backward.hpp alone.
#include <cstdint>

#include "trainer/cuda_layer_backward.hpp"
#include "trainer/cuda_scratch.hpp"

namespace accord::trainer {

class CudaLatentBackward {
 public:
  CudaLatentBackward(const CudaContext& context, const model::CudaModel& model, CudaLayerBackward& layer);

  // dy_TH: the residual's gradient as an operand; dnorm_TH (fp32) is overwritten.
  Status run(const LayerParams& params, const model::LayerWeights& weights,
             const CudaLayerBackward::AttentionTiles& tiles, const model::KvLayer& kv,
             const model::CudaLayerTape& tape, BF16* dy_TH, float* dnorm_TH);
  int64_t bytes() const { return scratch_.bytes(); }

 private:
  struct Call {
    const LayerParams& params;
    const model::LayerWeights& weights;
    const CudaLayerBackward::AttentionTiles& tiles;
    const model::KvLayer& kv;
    const model::CudaLayerTape& tape;
    int64_t rows;
    BF16* dattn;     // [T,heads*v]
    BF16* dq;        // [T,heads*qk] of the queries before rotary
    BF16* dkv_a;     // [T,rank+rope]
    float* dlatent;  // [T,rank] of the latent after its norm
  };
  struct AttentionGradients {
    float *dq, *dk, *dv;
  };
  StatusOr<AttentionGradients> attention(const Call& call, const BF16* q, const BF16* out, const BF16* dout,
                                         const kernels::cuda::AttentionDims& dims);
  Status plain(const Call& call);
  Status absorbed(const Call& call);
  // da = do W_UV per head, and W_UV's gradient.
  void output_products(const Call& call, BF16* dattn_latent);
  // The part of dq that does not turn, and W_UK's gradient.
  void query_products(const Call& call, const BF16* dq_latent);
  Status projections(const Call& call, float* dnorm_TH);

  const CudaContext& c_;
  const model::CudaModel& model_;
  CudaLayerBackward& layer_;
  CudaScratch scratch_;
};

}  // namespace accord::trainer
