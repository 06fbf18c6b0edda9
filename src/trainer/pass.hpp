#pragma once
// One micro-batch through the model and back:
//
//   embed -> layers (each layer's input is kept; its tape too while it fits) -> per chunk of response rows:
//   logits -> log-probs -> loss derivatives -> head backward -> layers backward (recomputed where no tape was
//   kept) -> embedding backward
#include <cstdint>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "model/forward.hpp"
#include "trainer/backend.hpp"
#include "trainer/layer_backward.hpp"
#include "trainer/packing.hpp"
#include "trainer/workspace.hpp"

namespace accord::trainer {

// With an expert group (Model::set_expert_group) all places make the same calls, those without a sequence
// with an empty micro-batch; the caller renews the exchange's deadline.
class Pass {
 public:
  // `activation_bytes` bounds the tapes that are kept. In an expert group it is the same at every place.
  Pass(Workspace& workspace, model::Model& model, int64_t activation_bytes);

  // Adds the micro-batch's gradients to the parameters' gradients. `temperatures`: per sequence.
  Status forward_backward(const PackedBatch& packed, std::span<const float> temperatures,
                          const PassRouting& routing, const TokenLossFn& loss);
  // Forward only; the returned derivatives are ignored.
  Status forward(const PackedBatch& packed, std::span<const float> temperatures, const PassRouting& routing,
                 const TokenLossFn& visit);

 private:
  struct Slot {  // what one layer leaves for its backward
    model::LayerTape tape;
    Buffer k, v;
  };

  Status run_layers(const PackedBatch& packed, const PassRouting& routing, bool keep);
  Status run_layer(int64_t layer, const PackedBatch& packed, MatrixView x, const PassRouting& routing,
                   bool observe, Slot& slot, bool with_tape);
  Status head(const PackedBatch& packed, std::span<const float> temperatures, const TokenLossFn& loss,
              bool backward);
  Status head_backward(std::span<const int32_t> rows, float* dlogits, MatrixView normed, const float* inv_rms,
                       const float* head_weight);
  Status layers_backward(const PackedBatch& packed, const PassRouting& routing);

  MatrixView input_of(int64_t layer, int64_t rows) const;  // num_layers: the last layer's output
  Slot& slot_of(int64_t layer);
  bool nothing_to_do(const PackedBatch& packed) const;

  Workspace& w_;
  model::Model& model_;
  const int64_t activation_bytes_;
  const std::vector<int64_t> moe_slots_;
  LayerBackward layer_backward_;
  Products products_;
  std::vector<Buffer> inputs_;         // [layers + 1]
  std::vector<Slot> slots_;            // slot 0 is shared by layers without a slot of their own
  std::vector<size_t> slot_of_layer_;  // of the forward under way
  Buffer logits_, normed_, inv_rms_, head_weight_, normed_operand_, dnormed_, x_rows_, dx_rows_, dx_;
};

}  // namespace accord::trainer
