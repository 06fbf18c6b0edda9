#pragma once
// The reference policy of the KL terms: a checkpoint in BF16 that is never updated, in an arena of its own.
// Where the policy is all BF16 and still has the reference's weights, both give the same bits.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "controller/reference_forward.hpp"
#include "device/device.hpp"
#include "recipe/recipe.hpp"
#include "trainer/packing.hpp"
#include "trainer/trainer.hpp"

namespace accord::controller {

// The directory of the reference policy that a run of this recipe needs: model.reference, else
// model.checkpoint; none when neither algorithm.kl_coefficient nor algorithm.reference_kl asks for one.
std::optional<std::string> reference_of(const recipe::Recipe& recipe);

// The config of that reference, which must be of the policy's architecture and vocabulary size (65).
StatusOr<ModelConfig> read_reference_config(const std::string& reference, const recipe::Recipe& recipe,
                                            const ModelConfig& policy);

// Bytes of its arena.
StatusOr<int64_t> reference_bytes(const ModelConfig& reference);

class ReferencePolicy {
 public:
  // On the policy's kind of device, whose arithmetic it shares. Errors: what LocalModel::load refuses; a
  // reference that does not fit the policy, or the device.
  static StatusOr<std::unique_ptr<ReferencePolicy>> load(const std::string& reference,
                                                         const recipe::Recipe& recipe,
                                                         const ModelConfig& policy, int threads,
                                                         const Device& device = {});

  // Fills ref_logprobs: of the response tokens, at each sample's temperature, routed by the reference's own
  // scores. Samples are packed as the trainer packs them, which changes no bit. An error (a sequence longer
  // than the reference's positions) changes nothing.
  Status fill(std::span<trainer::TrainSample> samples);

 private:
  ReferencePolicy(std::unique_ptr<ReferenceForward> forward, int64_t positions, int64_t tokens_per_microbatch)
      : forward_(std::move(forward)), positions_(positions), tokens_per_microbatch_(tokens_per_microbatch) {}

  Status fill_packed(std::span<trainer::TrainSample> samples, std::span<const int32_t> members);

  const std::unique_ptr<ReferenceForward> forward_;
  const int64_t positions_;  // that the reference has
  const int64_t tokens_per_microbatch_;
  trainer::PackedBatch packed_;
};

}  // namespace accord::controller
