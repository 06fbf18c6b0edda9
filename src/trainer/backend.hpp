#pragma once
// Where a trainer's state lies and its passes run: the CPU (cpu_backend.hpp) or a CUDA device
// (cuda_backend.hpp). Steps, ranks, records, schedule and errors are the trainer's, the same on both.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/export_counts.hpp"
#include "base/flow.hpp"
#include "base/status.hpp"
#include "device/stream.hpp"
#include "recipe/recipe.hpp"
#include "trainer/packing.hpp"
#include "trainer/parameter_table.hpp"
#include "trainer/trainer.hpp"

namespace accord::trainer {

// Derivatives of the batch's loss with respect to one response token's log-prob and entropy.
struct TokenGradient {
  double dlogprob = 0.0;
  double dentropy = 0.0;
};

struct TokenValue {
  float logprob = 0.0F;
  float entropy = 0.0F;  // nats, at the sample's temperature
};

// Called once for each response token of the micro-batch (packed order), from any thread.
using TokenLossFn = std::function<TokenGradient(int64_t token, const TokenValue& value)>;

// Expert choices of a micro-batch. Host memory.
struct PassRouting {
  std::span<const int32_t> replay;  // [MoE layers, T, K]; empty: route by score
  // Called per MoE layer with its router probabilities [T,E] and the router's bias [E], or null, when set.
  std::function<void(int64_t layer, const float* probs_TE, const float* bias_E)> observe;
};

// What one parameter has a value of per element.
enum class StateKind : uint8_t { kMaster, kGradient, kExpAvg, kExpAvgSq };

class TrainingBackend {
 public:
  virtual ~TrainingBackend() = default;

  virtual const ParameterTable& table() const = 0;
  virtual const Stream* stream() const { return nullptr; }
  virtual TrainerMemory memory() const { return {}; }
  virtual std::string products() const { return {}; }

  // State of a tensor that this rank owns, by host copies. The spans have its size.
  virtual Status read(StateKind kind, int64_t parameter, std::span<float> out) const = 0;
  virtual Status write(StateKind kind, int64_t parameter, std::span<const float> in) = 0;
  // The same in place, where it lies in host memory, and the master where it lies on a device; else empty.
  virtual std::span<float> host_values(StateKind, int64_t) const { return {}; }
  virtual const float* device_master(int64_t) const { return nullptr; }
  virtual Status clear_moments() = 0;

  // Trainer::bind_arena, connect_experts and share_originals.
  virtual Status bind(const WeightManifest& manifest, void* arena) = 0;
  virtual bool bound() const = 0;
  virtual StatusOr<std::span<const ExportCounts>> exported() const { return std::span<const ExportCounts>(); }
  virtual Status set_expert_group(Communicator* group) = 0;
  virtual Status share_originals(Communicator& group, Deadline deadline) = 0;

  // Before the micro-batches of a step, or of log-probs: the arena may have changed.
  virtual Status begin_passes(Deadline deadline) = 0;
  // Adds the micro-batch's gradients to the parameters' gradients. `temperatures`: per sequence.
  virtual Status forward_backward(const PackedBatch& packed, std::span<const float> temperatures,
                                  const PassRouting& routing, const TokenLossFn& loss) = 0;
  // Forward only; the returned derivatives are ignored.
  virtual Status forward(const PackedBatch& packed, std::span<const float> temperatures,
                         const PassRouting& routing, const TokenLossFn& visit) = 0;

  virtual Status clear_gradients() = 0;
  // exchange.hpp.
  virtual Status reduce_gradients(Communicator& group, Deadline deadline) = 0;
  // Of the owned gradients: the sum of their squares, in an order that the sizes alone fix; and the first
  // parameter with one that is not finite, -1 if there is none.
  virtual StatusOr<double> gradient_squares() = 0;
  virtual StatusOr<int64_t> first_non_finite_gradient() = 0;
  // Clips by the global norm and updates masters and moments (optimizer.hpp), and on a device what exported()
  // says of the arena. Gradients read afterwards are the clipped ones.
  virtual Status update(const recipe::OptimizerPart& optimizer, double norm, double lr, int64_t steps) = 0;
};

}  // namespace accord::trainer
