#pragma once
// layer_backward.hpp on CUDA, in stream order: the same steps, where a gradient that enters a product is
// rounded to bf16 once.
#include <cstdint>
#include <memory>
#include <vector>

#include "kernels/attention/attention_cuda.hpp"
#include "model/cuda_model.hpp"
#include "trainer/cuda_linear_backward.hpp"
#include "trainer/cuda_scratch.hpp"

namespace accord::trainer {

// The tiles of attention's backward over packed whole sequences (host memory).
std::vector<kernels::cuda::AttentionBackwardTile> attention_backward_tiles(const model::Batch& batch);

class CudaLatentBackward;

class CudaLayerBackward {
 public:
  ~CudaLayerBackward();
  // Of the micro-batch under way, on the device.
  struct AttentionTiles {
    const kernels::cuda::AttentionBackwardTile* tiles = nullptr;
    int32_t count = 0;
  };

  // `model` holds the micro-batch (CudaModel::set_batch) whenever run() is called.
  static StatusOr<std::unique_ptr<CudaLayerBackward>> create(const CudaContext& context,
                                                             const model::CudaModel& model);

  // As LayerBackward::run; dx_TH is fp32.
  Status run(int64_t layer, const AttentionTiles& tiles, MatrixView x_in, const model::KvLayer& kv,
             const model::CudaLayerTape& tape, float* dx_TH);

  // dx (+)= the norm's backward over all rows of x; the gradient of parameter `norm` is added to. dx is fp32,
  // or bf16 and not accumulated.
  Status norm_backward(MatrixView x, const float* inv_rms, const BF16* weight, int64_t norm, const float* dy,
                       MatrixView dx, bool accumulate);

  CudaLinearBackward& linears() { return linears_; }
  int64_t bytes() const;

 private:
  // An MLP that every row passes: dense, or the shared experts.
  struct RowMlp {
    const MlpParams& params;
    const model::MlpWeights& weights;
    int64_t width;
    const DeviceBuffer &gate, &up, &act;
  };
  // Of the experts of one layer, per projection: parameters, weights in the arena, gradients.
  struct ExpertProjection {
    std::vector<int64_t> parameters;
    std::vector<model::LinearWeight> weights;
    void* const* gradients = nullptr;  // [E] on the device
  };
  struct Experts {
    ExpertProjection gate, up, down;
    DeviceBuffer tables;
  };

  CudaLayerBackward(const CudaContext& context, const model::CudaModel& model);
  Status bind_experts(int64_t layer);

  Status row_mlp(const RowMlp& mlp, MatrixView norm, const float* dx_TH, float* dnorm_TH, bool accumulate);
  Status experts(int64_t layer, const model::CudaLayerTape& tape, const float* dx_TH, float* dnorm_TH);
  Status expert_mlps(int64_t layer, const model::CudaLayerTape& tape, BF16* ddown_RH, float* din_RH);
  Status attention(const LayerParams& params, const model::LayerWeights& weights, const AttentionTiles& tiles,
                   const model::KvLayer& kv, const model::CudaLayerTape& tape, const float* dx_TH,
                   float* dnorm_TH);
  // A gradient of queries or keys before rotary and norm, as an operand.
  Status head_backward(const float* dy, int64_t heads, const DeviceBuffer& raw, const DeviceBuffer& inv_rms,
                       const BF16* weight, int64_t norm, float* turned, BF16* out);
  StatusOr<BF16*> gradient_operand(const float* dx_TH);

  MatrixView bf16(const DeviceBuffer& buffer, int64_t cols) const {
    return buffer.matrix(Dtype::kBF16, rows(), cols);
  }
  int64_t rows() const { return model_.num_rows(); }

  const CudaContext& c_;
  const model::CudaModel& model_;
  CudaLinearBackward linears_;
  CudaScratch scratch_;
  std::vector<Experts> experts_;                // per layer
  std::unique_ptr<CudaLatentBackward> latent_;  // of models that have it
};

}  // namespace accord::trainer
