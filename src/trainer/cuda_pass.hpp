#pragma once
// pass.hpp on CUDA: one micro-batch through CudaModel and back, in stream order. The host waits for the
// stream once per chunk of response rows, whose log-probs the loss is computed from, and where a router is
// observed.
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "device/thread_pool.hpp"
#include "kernels/embedding/embedding_backward_cuda.hpp"
#include "model/cuda_model.hpp"
#include "trainer/backend.hpp"
#include "trainer/cuda_layer_backward.hpp"
#include "trainer/cuda_scratch.hpp"

namespace accord::trainer {

class CudaPass {
 public:
  // `activation_bytes` bounds the tapes that are kept. Everything is borrowed.
  static StatusOr<std::unique_ptr<CudaPass>> create(const CudaContext& context, model::CudaModel& model,
                                                    int64_t activation_bytes, ThreadPool& pool);

  Status forward_backward(const PackedBatch& packed, std::span<const float> temperatures,
                          const PassRouting& routing, const TokenLossFn& loss);
  Status forward(const PackedBatch& packed, std::span<const float> temperatures, const PassRouting& routing,
                 const TokenLossFn& visit);

  void add_memory(TrainerMemory& memory) const;

 private:
  struct Slot {  // what one layer leaves for its backward
    model::CudaLayerTape tape;
    DeviceBuffer k, v;
    int64_t bytes = 0;  // of the largest micro-batch
  };
  // The micro-batch on the device, besides CudaModel's batch.
  struct Inputs {
    const int32_t* response_rows = nullptr;
    const int32_t* response_tokens = nullptr;
    const float* temperatures = nullptr;  // per response token
    kernels::cuda::TokenRows token_rows;
    CudaLayerBackward::AttentionTiles attention;
    const int32_t* replay = nullptr;  // [MoE layers, T, K]; null: none
  };

  CudaPass(const CudaContext& context, model::CudaModel& model, int64_t activation_bytes, ThreadPool& pool);

  Status upload(const PackedBatch& packed, std::span<const float> temperatures, const PassRouting& routing);
  Status run_layers(const PackedBatch& packed, const PassRouting& routing, bool keep);
  Status run_layer(int64_t layer, MatrixView x, const PassRouting& routing, bool observe, Slot& slot,
                   bool with_tape);
  Status observe_router(int64_t layer, const PassRouting& routing, const model::CudaLayerTape& tape);
  Status reserve(Slot& slot, int64_t layer, bool with_tape);
  int64_t slot_bytes(int64_t layer) const;
  // In cuda_head_cuda.cpp.
  Status head(const PackedBatch& packed, const TokenLossFn& loss, bool backward);
  struct HeadRows;  // one chunk of response rows
  Status head_backward(const HeadRows& rows);
  Status layers_backward(const PassRouting& routing);

  MatrixView input_of(int64_t layer) const;  // num_layers: the last layer's output
  Status copy_input(int64_t layer);          // the layer's input into the next one's place
  int64_t rows() const { return model_.num_rows(); }

  const CudaContext& c_;
  model::CudaModel& model_;
  const int64_t activation_bytes_;
  ThreadPool& pool_;
  const std::vector<int64_t> moe_slots_;
  std::unique_ptr<CudaLayerBackward> layer_backward_;
  std::vector<DeviceBuffer> inputs_;  // [layers + 1]
  std::vector<Slot> slots_;           // slot 0 is shared by layers without a slot of their own
  std::vector<size_t> slot_of_layer_;
  std::vector<std::vector<float>> router_biases_;  // per layer, read when first observed
  std::vector<float> observed_;                    // [T,E]
  Inputs in_;
  DeviceBuffer staging_, uploaded_;  // of the inputs: pinned, and on the device
  DeviceBuffer values_;              // pinned, of a chunk's tokens
  DeviceBuffer dx_;                  // [T,H] fp32
  CudaScratch scratch_;
};

}  // namespace accord::trainer
