#pragma once
// The explicit backward of one transformer layer over a packed micro-batch. The picture, forward upwards:
//
//   x_out = x_mid + mlp(norm2(x_mid))        mlp: down(silu(gate) * up), or a router and its chosen experts
//   x_mid = x_in + o(attention(rope(qknorm(q(n1))), rope(qknorm(k(n1))), v(n1))),  n1 = norm1(x_in)
//
// The residual gradient is fp32 throughout; a gradient that enters a matrix product is rounded to bf16 first
// (contract, section 5), and goes through LinearBackward, which knows the recipe's mode. Weight gradients are
// added to the parameters' gradients.
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "model/expert_exchange.hpp"
#include "model/forward.hpp"
#include "trainer/latent_attention_backward.hpp"
#include "trainer/linear_backward.hpp"
#include "trainer/workspace.hpp"

namespace accord::trainer {

class LayerBackward {
 public:
  explicit LayerBackward(Workspace& workspace)
      : w_(workspace), linears_(workspace), latent_(workspace, linears_) {}

  // `x_in`: the layer's input. `tape` and `kv`: of this batch and layer. dx_TH holds the gradient of the
  // layer's output and is replaced by that of its input. With an expert group (`exchange` not null) every
  // place calls this, also with 0 rows: gradients of expert outputs travel to the experts' places and those
  // of their inputs back; each place adds to the gradients of the experts it holds, over all arrived rows in
  // owner order (model/expert_exchange.hpp).
  Status run(int64_t layer, const model::Batch& batch, const model::LayerWeights& weights, MatrixView x_in,
             const model::KvLayer& kv, const model::LayerTape& tape, float* dx_TH,
             model::ExpertExchange* exchange);

 private:
  // An MLP that every row passes: dense, or the shared experts.
  struct RowMlp {
    const MlpParams& params;
    const model::MlpWeights& weights;
    int64_t width;
    const Buffer &gate, &up, &act;
  };
  Status row_mlp(const RowMlp& mlp, const model::LayerTape& tape, int64_t rows, const float* dx_TH,
                 float* dnorm_TH);
  // In layer_backward_experts.cpp.
  Status experts(const LayerParams& params, const model::LayerWeights& weights, const model::LayerTape& tape,
                 int64_t rows, const float* dx_TH, model::ExpertExchange* exchange);
  // Rows of the experts from `first` on, sorted by expert.
  struct ExpertRows {
    int64_t first = 0;
    std::span<const int32_t> offsets;  // first row of each expert, and the end
    const float* in_RH = nullptr;
    const float* ddown_RH = nullptr;
    int64_t count() const { return offsets.back(); }
    int64_t num_experts() const { return static_cast<int64_t>(offsets.size()) - 1; }
  };
  Status expert_mlps(const LayerParams& params, const model::LayerWeights& weights,
                     const model::LayerTape& tape, const ExpertRows& rows, float* din_RH);
  Status exchanged_expert_mlps(const LayerParams& params, const model::LayerWeights& weights,
                               const model::LayerTape& tape, float* ddown_RH, float* din_RH,
                               model::ExpertExchange& exchange);
  Status attention(const LayerParams& params, const model::Batch& batch, const model::LayerWeights& weights,
                   const model::KvLayer& kv, const model::LayerTape& tape, const float* dx_TH);
  // fp32 copy of dx as the operand of a matrix product.
  const float* gradient_operand(const float* dx, int64_t count);
  float* scratch(Buffer& buffer, int64_t count);

  Workspace& w_;
  LinearBackward linears_;
  LatentAttentionBackward latent_;
  // Named after what they hold; all fp32, reused by every layer.
  Buffer shared_dnorm_, dy_, norm_, dnorm_, act_, dact_, dgate_, attn_, dattn_, dq_, dk_, dv_;
  Buffer expert_in_, dexpert_in_, ddown_, dweights_, dlogits_;
  Buffer arrived_ddown_, arrived_din_;  // [A,H]
  Buffer travel_out_, travel_in_;       // rows on their way, in the dtype that travels
  std::vector<int32_t> rows_of_slots_;
};

}  // namespace accord::trainer
