#pragma once
// Log-probabilities of packed sequences under fixed weights, on one device.
#include <memory>
#include <span>

#include "base/status.hpp"
#include "controller/local_model.hpp"
#include "device/device.hpp"
#include "trainer/packing.hpp"

namespace accord::controller {

class ReferenceForward {
 public:
  virtual ~ReferenceForward() = default;
  // logprobs[i]: of response token i (packed.response_tokens()) at temperatures[i].
  virtual Status logprobs(const trainer::PackedBatch& packed, std::span<const float> temperatures,
                          std::span<float> logprobs) = 0;
};

// Owns the model and computes where it lies.
std::unique_ptr<ReferenceForward> make_cpu_reference(std::unique_ptr<LocalModel> model);

// Takes over the model's weights, all BF16, into the device's memory. Unavailable in a build without CUDA.
StatusOr<std::unique_ptr<ReferenceForward>> make_cuda_reference(std::unique_ptr<LocalModel> model,
                                                                const Device& device);

// Response tokens whose logits are computed at a time.
int64_t reference_chunk(int64_t vocab_size);

}  // namespace accord::controller
