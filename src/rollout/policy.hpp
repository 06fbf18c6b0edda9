#pragma once
// What the engine asks of a model: a forward over a batch of cache-backed rows, and tokens drawn from the
// logits of some of them. One implementation runs model::Model, one model::CudaModel; tests bring their own.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <span>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "device/thread_pool.hpp"
#include "model/forward.hpp"
#include "rollout/sampler.hpp"

namespace accord::model {
class CudaModel;
}

namespace accord::rollout {

// A token to draw from the logits of one row of the last forward's batch. Tasks of one row (a prompt's
// samples, whose first tokens come from its last row) are neighbours.
struct DrawTask {
  int32_t row = 0;
  const SamplingParams* sampling = nullptr;
  uint64_t random = 0;  // token_random
};

// One forward over a batch, and the tokens to draw from it.
struct Step {
  model::Batch batch;
  // Per row, the task of the step before that draws its token; -1: batch.tokens has it. Empty: all -1.
  std::span<const int32_t> token_tasks;
  std::span<const DrawTask> tasks;
  bool record_routing = false;
};

struct StepResult {
  // [i] is what draw_token gives for the logits of tasks[i].row; a row whose logits cannot be drawn from is
  // its own entry's error.
  std::vector<StatusOr<DrawnToken>> drawn;
  std::vector<int32_t> routing;   // [rows of the batch, routing_width] where it was recorded
  double sampling_seconds = 0.0;  // of the step's time, what drawing took
};

// Of captured graphs, on a CUDA device.
struct GraphCounts {
  uint64_t captures = 0;
  uint64_t replays = 0;  // forwards
};

class Policy {
 public:
  virtual ~Policy() = default;

  virtual int64_t vocab_size() const = 0;
  virtual int64_t max_positions() const = 0;  // longest sequence; 0: no limit
  virtual int64_t routing_width() const = 0;  // expert ids per row: MoE layers * experts per token
  virtual int64_t num_experts() const = 0;
  virtual int64_t cache_row_bytes() const = 0;

  // Called once, before anything else runs. May throw std::bad_alloc where the memory is the host's.
  virtual Status reserve(int64_t cache_rows, int64_t max_batch_rows) = 0;
  // The cache where it is memory of the host, free for other use between generates; else empty.
  virtual std::span<std::byte> cache_memory() = 0;
  // The same where it is memory of a device.
  virtual std::span<std::byte> device_cache_memory() { return {}; }

  // Around the calls below, which come from the thread that calls begin(). After end(), which follows an
  // error too, nothing of theirs runs any more: weights may change. Steps that were not collected are gone.
  virtual Status begin() { return absl::OkStatus(); }
  virtual Status end() { return absl::OkStatus(); }
  // Copies `count` cache rows of every layer. The ranges do not overlap.
  virtual void copy_rows(int32_t from, int32_t to, int32_t count) = 0;

  // Steps that may be under way when the next one is submitted: 0 (each is collected first) or 1.
  virtual size_t max_steps_ahead() const { return 0; }
  // Starts a step, which writes the batch's keys and values. Copies what it needs of `step`.
  virtual Status submit(const Step& step) = 0;
  // Waits for the oldest step that was not collected yet.
  virtual Status collect(StepResult& result) = 0;

  // Since the last call.
  virtual GraphCounts take_graph_counts() { return {}; }
};

// A policy that is done with a step when submit() returns.
class HostPolicy : public Policy {
 public:
  Status submit(const Step& step) final;
  Status collect(StepResult& result) final;

 protected:
  // Fills `routing` when it is not null.
  virtual Status forward(const model::Batch& batch, std::vector<int32_t>* routing) = 0;
  // The status is about the call as a whole.
  virtual Status draw(std::span<const DrawTask> tasks, std::span<StatusOr<DrawnToken>> drawn,
                      double& sampling_seconds) = 0;

 private:
  StepResult result_;
};

// `model` and `pool` must outlive the policy.
std::unique_ptr<Policy> make_model_policy(model::Model& model, ThreadPool& pool);

// Keys, values and everything else on the model's device and stream; both must outlive the policy. Errors: a
// build without CUDA; a vocabulary that the device's sampler does not take. `graphs`: decode steps are
// captured once a size and replayed (graph_cache.hpp); no bit depends on it.
StatusOr<std::unique_ptr<Policy>> make_cuda_policy(model::CudaModel& model, bool graphs);

}  // namespace accord::rollout
