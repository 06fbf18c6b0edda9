#pragma once
// The explicit backward of one transformer layer over a packed micro-batch. The picture, forward upwards:
//
//   x_out = x_mid + mlp(norm2(x_mid))        mlp: down(silu(gate) * up), or a router and its chosen experts
//   x_mid = x_in + o(attention(rope(qknorm(q(n1))), rope(qknorm(k(n1))), v(n1))),  n1 = norm1(x_in)
//
// The residual gradient is fp32 throughout; a gradient that enters a matrix product is rounded to bf16 first
// (contract, section 5), and goes through LinearBackward, which knows the recipe's mode. Weight gradients are
// added to the parameters' gradients.
#include "base/status.hpp"
#include "model/forward.hpp"
#include "trainer/linear_backward.hpp"
#include "trainer/workspace.hpp"

namespace accord::trainer {

class LayerBackward {
 public:
  explicit LayerBackward(Workspace& workspace) : w_(workspace), linears_(workspace) {}

  // `x_in`: the layer's input. `tape` and `kv`: of this batch and layer. dx_TH holds the gradient of the
  // layer's output and is replaced by that of its input.
  Status run(int64_t layer, const model::Batch& batch, const model::LayerWeights& weights, MatrixView x_in,
             const model::KvLayer& kv, const model::LayerTape& tape, float* dx_TH);

 private:
  Status dense_mlp(const LayerParams& params, const model::LayerWeights& weights,
                   const model::LayerTape& tape, int64_t rows, const float* dx_TH);
  Status experts(const LayerParams& params, const model::LayerWeights& weights, const model::LayerTape& tape,
                 int64_t rows, const float* dx_TH);
  Status attention(const LayerParams& params, const model::Batch& batch, const model::LayerWeights& weights,
                   const model::KvLayer& kv, const model::LayerTape& tape, const float* dx_TH);
  // fp32 copy of dx as the operand of a matrix product.
  const float* gradient_operand(const float* dx, int64_t count);
  float* scratch(Buffer& buffer, int64_t count);

  Workspace& w_;
  LinearBackward linears_;
  // Named after what they hold; all fp32, reused by every layer.
  Buffer dy_, norm_, dnorm_, act_, dact_, dgate_, attn_, dattn_, dq_, dk_, dv_;
  Buffer expert_in_, dexpert_in_, ddown_, dweights_, dlogits_;
  std::vector<int32_t> rows_of_slots_;
};

}  // namespace accord::trainer
