#pragma once
// The rollout engine: draws samples from a policy with continuous batching over a paged KV cache.
//
//   requests -> scheduler (which rows run now) -> policy: forward and sampler -> samples
//
// A sample's tokens and log-probabilities depend on the weights, the run seed, its key (step, prompt id,
// sample index), its prompt and its sampling parameters only: never on the batch it was in, the limits
// below, preemption, threads, or how requests are split over engines and calls.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <stop_token>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "device/thread_pool.hpp"
#include "model/forward.hpp"

namespace accord::model {
class CudaModel;
}

namespace accord::rollout {

class Policy;

struct EngineOptions {
  int32_t max_batch_rows = 256;     // rows of one forward, prefill and decode together
  int32_t prefill_chunk = 256;      // prefill rows of one forward, over all prompts
  int64_t kv_cache_tokens = 65536;  // rows of the KV cache, rounded up to whole pages
  uint64_t run_seed = 0;
  bool cuda_graphs = true;  // on a CUDA device, decode steps replay captured graphs; never changes a bit
  // Where the policy can (a CUDA device), the next step is put together and submitted while one still runs:
  // its tokens are read a step later. Never changes a bit.
  bool steps_ahead = true;
  bool record_routing = false;  // keep the samples' expert ids (MoE models); see Callbacks::on_sample
};

// Samples first_sample_index .. first_sample_index + num_samples - 1 of one prompt.
struct Request {
  uint64_t step = 0;
  Prompt prompt;
  int32_t num_samples = 1;
  uint32_t first_sample_index = 0;
  SamplingParams sampling;
};

// Text of a run of token ids; special tokens may be left out. Needed only for stop strings.
using Detokenize = std::function<std::string(std::span<const int32_t>)>;

// All are optional, and are called on the thread that runs generate().
struct Callbacks {
  // Each token as it is drawn. The tokens of one sample arrive in order.
  std::function<void(const SampleKey& key, int32_t token, float logprob)> on_token;
  // Each sample as it finishes, with its routing where that is recorded. What generate() returns has none:
  // the ids of a batch are many.
  std::function<void(Sample sample)> on_sample;
};

struct EngineStats {
  uint64_t forwards = 0;
  uint64_t graph_replays = 0;   // forwards that replayed a captured graph
  uint64_t graph_captures = 0;  // of forwards and of logits
  uint64_t generated_tokens = 0;
  uint64_t prefill_rows = 0;     // prompt rows computed for the first time
  uint64_t shared_rows = 0;      // prompt rows that a sample took over from its siblings
  uint64_t recomputed_rows = 0;  // rows computed again after a preemption
  uint64_t preemptions = 0;
  int64_t cache_rows = 0;       // capacity
  int64_t peak_cache_rows = 0;  // most rows ever held, in whole pages
  double forward_seconds = 0;
  double sample_seconds = 0;
  double total_seconds = 0;  // inside generate()
};

class Engine {
 public:
  // `model` and `pool` must outlive the engine. Errors: limits below 1, a cache that does not fit in memory.
  static StatusOr<std::unique_ptr<Engine>> create(model::Model& model, const EngineOptions& options,
                                                  ThreadPool& pool, Detokenize detokenize = {});
  // On a device, whose memory the cache takes. Unavailable in builds without CUDA.
  static StatusOr<std::unique_ptr<Engine>> create(model::CudaModel& model, const EngineOptions& options,
                                                  Detokenize detokenize = {});
  // Over any policy (see policy.hpp).
  static StatusOr<std::unique_ptr<Engine>> create(std::unique_ptr<Policy> policy,
                                                  const EngineOptions& options, Detokenize detokenize = {});
  ~Engine();
  Engine(const Engine&) = delete;
  Engine& operator=(const Engine&) = delete;

  // Draws all samples, in the order of (request, sample index). Every request is checked before the first
  // forward: an empty prompt, an unknown token id, bad sampling parameters, or a sequence that can fit
  // neither the cache nor the model's positions is an error that changes nothing. A NaN or infinite logit
  // ends the call with an error that names the sample. Returns kCancelled soon after a stop is requested.
  // Not reentrant.
  StatusOr<std::vector<Sample>> generate(std::span<const Request> requests, const Callbacks& callbacks = {},
                                         const std::stop_token& stop = {});

  // Call after the weights that the model reads have changed, while no generate() runs. Keys and values
  // live no longer than one generate(), so none of an older version can be read.
  void set_weight_version(uint64_t version);
  uint64_t weight_version() const;

  // The memory of the KV cache, free for other use (a weight update's receive buffer) between generates.
  // Empty where it is a device's; the other one then has it.
  std::span<std::byte> cache_memory();
  std::span<std::byte> device_cache_memory();

  const EngineStats& stats() const;  // since creation
  void reset_stats();

 private:
  struct Impl;
  explicit Engine(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::rollout
