#pragma once
// The trainer's inside, shared by trainer.cpp (state) and trainer_step.cpp (steps).
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "trainer/backend.hpp"
#include "trainer/packing.hpp"
#include "trainer/rank_group.hpp"
#include "trainer/routing.hpp"
#include "trainer/step_scope.hpp"
#include "trainer/trainer.hpp"

namespace accord::trainer {

// A view over this rank's sequences of a step, of either kind, and the micro-batches that they run in.
struct StepSequences {
  std::vector<Sequence> sequences;
  std::vector<float> temperatures;
  std::vector<int64_t> first_token;  // of each sequence among this rank's response tokens
  std::vector<int64_t> lengths;      // response tokens of each sequence
  int64_t num_tokens = 0;            // response tokens
  MicroBatchPlan micro_batches;

  void add(std::span<const int32_t> tokens, int32_t prompt_length, float temperature);
  void pack(int64_t tokens_per_microbatch);
};

struct Trainer::Impl {
  ModelConfig config;
  TrainerOptions options;
  std::unique_ptr<TrainingBackend> backend;
  const ParameterTable& parameters;  // the backend's
  RankGroup group;
  bool experts_connected = false;
  int64_t optimizer_steps = 0;

  Impl(const ModelConfig& c, const TrainerOptions& o, std::unique_ptr<TrainingBackend> b);

  // Of a tensor that this rank owns; read_master and read_gradient.
  Status read(StateKind kind, std::string_view name, std::span<float> out) const;

  // `loss(sequence, offset in its response, value)`.
  using LossFn = std::function<TokenGradient(size_t sequence, int64_t offset, const TokenValue& value)>;
  // Runs `rounds` micro-batches: those of the step, then empty ones. Exchanges of experts' rows end by
  // `deadline`.
  Status run_micro_batches(const StepSequences& step, int64_t rounds, std::span<const TrainSample> routed,
                           bool backward, const LossFn& loss, RecordedRouting& recorded, Deadline deadline);
  // Reduction, norm, clipping, update. `what` names the step in errors.
  StatusOr<Metrics> update(const std::string& what, Deadline deadline);
  // Whether this rank can take a step with these samples.
  Status check_ready() const;  // bound and connected
  Status check_samples(std::span<const TrainSample> samples, bool needs_logprobs) const;
  Status check_step(std::span<const TrainSample> samples, std::span<const int64_t> places) const;
  Status check_step(std::span<const SftSample> samples, std::span<const int64_t> places) const;
  Status check_places(std::span<const int64_t> places, size_t num_samples) const;
};

}  // namespace accord::trainer
