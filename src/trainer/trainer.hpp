#pragma once
// The trainer: fp32 masters, their gradients and AdamW moments, and one optimizer step on a batch of samples.
//
//   masters --(src/weights: Q(bf16(master)))--> arena --bind_arena--> forward (model/forward.hpp, the
//   rollout's own functions and bytes) -> log-probs -> loss -> explicit backward -> gradients -> AdamW ->
//   masters
//
// After every step that returned OK the caller exports the masters into the arena before the next one.
// Results depend on the samples, their order and tokens_per_microbatch, never on the number of threads.
//
// Several ranks train one policy: each on its own samples of a step, normalized by the totals of the whole
// step; gradients are summed on the rank that owns the tensor, which alone keeps its master and moments
// (shards.hpp). Calls marked collective are made by all ranks in the same order, and fail on all or on none,
// unless the communicator breaks.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/export_counts.hpp"
#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "device/device.hpp"
#include "device/stream.hpp"
#include "device/thread_pool.hpp"
#include "recipe/recipe.hpp"

namespace accord::trainer {

struct TrainSample {
  SampleKey key;
  std::vector<int32_t> tokens;  // prompt and response
  int32_t prompt_length = 0;    // at least 1 and less than tokens.size()
  // Per response token, of the distribution softmax(logits / temperature).
  std::vector<float> rollout_logprobs;
  // The `old` policy of the ratio, per response token: the trainer's own before the step's first update.
  // Required by an importance correction; empty: rollout_logprobs are the old policy.
  std::vector<float> old_logprobs;
  std::vector<float> ref_logprobs;  // per response token; empty: no reference policy
  ExpertIds routing;                // of the rollout; empty: route by score
  double advantage = 0.0;
  float temperature = 1.0F;  // > 0

  int32_t response_length() const { return static_cast<int32_t>(tokens.size()) - prompt_length; }
};

struct SftSample {
  std::vector<int32_t> tokens;
  int32_t prompt_length = 0;  // at least 1 and less than tokens.size()
};

struct StepReport {
  // train/loss, grad_norm, clip_fraction, entropy, ppo_kl, learning_rate, microbatches (and ref_kl with a
  // reference; importance_mean and importance_clip_fraction with an importance correction);
  // mismatch/logprob_abs_diff_mean|max, kl_k1, kl_k3, equal_fraction, ess_ratio (and expert_overlap when the
  // samples carry routing).
  // Over the samples of all ranks, and the same on all of them.
  Metrics metrics;
  std::vector<std::vector<float>> logprobs;  // per sample of this rank, per response token
  int64_t num_tokens = 0;                    // response tokens of all ranks' samples
};

struct SftReport {
  Metrics metrics;  // train/loss (mean over response tokens), train/grad_norm, train/learning_rate
};

// Sizes of the whole batch of an update, over all ranks; the loss is normalized by them. Zero: count the
// ranks' samples.
struct BatchTotals {
  int64_t num_tokens = 0;  // response tokens
  int64_t num_samples = 0;
};

struct TrainerOptions {
  recipe::AlgorithmPart algorithm;
  recipe::OptimizerPart optimizer;
  int64_t total_steps = 0;  // where linear and cosine schedules end; 0 is refused with those
  int64_t tokens_per_microbatch = 32768;
  Dtype compute_dtype = Dtype::kBF16;
  // Weights that do not decay besides norms: canonical names (the plan's low-precision weights).
  std::vector<std::string> no_weight_decay;
  // How quantized linears are differentiated (contract, section 5), and the weights whose gradient copies are
  // E5M2 under `quantized`.
  recipe::BackwardMode backward = recipe::BackwardMode::kHighPrecision;
  std::vector<std::string> e5m2_gradients;
  // Intermediates of a layer are kept from the forward while they fit; other layers are recomputed, which
  // changes no bit. None: 1 GiB on the CPU, a part of the memory that is free at bind_arena on a device.
  std::optional<int64_t> activation_bytes;
  // This rank among those that train the policy, and how many ranks share the experts of a layer.
  int32_t rank = 0;
  int32_t size = 1;
  int32_t expert_parallel = 1;
  // Per parameter, canonical order: the plan's unit (its tensors have one owner); empty: none.
  std::vector<std::string> units;
  // Where masters, moments and gradients lie and passes run.
  DeviceId device;
};

// A named piece of training state, wherever it lies; valid while the trainer lives.
struct StateTensor {
  std::string name;  // master.<canonical>, exp_avg.<canonical>, exp_avg_sq.<canonical>
  std::vector<int64_t> shape;
  int64_t numel = 0;
  std::function<Status(std::span<float> out)> read;        // [numel]
  std::function<Status(std::span<const float> in)> write;  // [numel]
};

// Bytes of the device that the trainer has taken so far; it keeps what it takes. Zeros on the CPU.
struct TrainerMemory {
  int64_t masters = 0;
  int64_t moments = 0;
  int64_t gradients = 0;
  int64_t activations = 0;  // layer inputs and what is kept for the backward
  int64_t workspace = 0;    // of one layer's or the head's backward, and batches
};

class Trainer {
 public:
  // Fills `values` with one tensor's initial masters. Called for the tensors that this rank owns.
  using LoadMaster = std::function<Status(const ParamSpec& spec, std::span<float> values)>;

  // `pool` must outlive the trainer and is used by its calls only while they run.
  static StatusOr<std::unique_ptr<Trainer>> create(const ModelConfig& config, const TrainerOptions& options,
                                                   ThreadPool& pool, const LoadMaster& load_master);
  ~Trainer();

  // Before the first collective call, where there are several ranks. `group` must outlive the trainer or the
  // next connect().
  Status connect(Communicator& group);
  // The same with expert_parallel > 1, besides connect(): the ranks [g*E, (g+1)*E) of this rank's expert
  // group, in that order; another communicator than connect()'s. Steps and log-probs exchange rows over it.
  // Errors (kInternal): another rank or size than (rank % E, E).
  Status connect_experts(Communicator& group);

  DeviceId device() const;
  // The device's queue, in which a step's update ends: what follows on it sees the new masters. Null on the
  // CPU.
  const Stream* stream() const;
  TrainerMemory memory() const;
  // What computes products, where that is more than the device (CudaModel::products), once an arena is bound;
  // else empty.
  std::string products() const;

  // The forward reads these bytes of the trainer's device, which must keep their address and hold
  // Q(bf16(masters)) at every step. On a device they are written in stream(), or before the step begins; and
  // a step that returns OK has itself written what exported() says.
  Status bind_arena(const WeightManifest& manifest, void* arena);

  // On a device, the update of a step writes into the arena, in the same pass, what needs no other pass: data
  // and scales of the tensors that this rank owns, but for NVFP4 (whose outer scale comes from the largest
  // magnitude of the new masters). Until the caller has exported those, too, and found all masters finite,
  // the arena is of no version. What the export needs to know, per parameter in the order of parameters();
  // zeros for those of other ranks. Waits for the device. Empty where nothing was written, or not any more
  // (on the CPU, before the first step, after bind_arena and after masters were written): all is exported
  // then.
  StatusOr<std::span<const ExportCounts>> exported() const;

  // Copies a tensor that this rank owns into host memory; waits for the device. Errors (kInternal): there is
  // no such parameter, another rank owns it, or `out` has another size.
  Status read_master(std::string_view name, std::span<float> out) const;
  // The last step's gradient, summed over ranks and after clipping.
  Status read_gradient(std::string_view name, std::span<float> out) const;
  // The master on the device. Null on the CPU, when there is no such parameter, or another rank owns it.
  const float* device_master(std::string_view name) const;
  // The same values in place on the CPU; empty on a device, when there is no such parameter, or another rank
  // owns it.
  std::span<float> master(std::string_view name);
  std::span<const float> gradient(std::string_view name) const;
  std::span<const ParamSpec> parameters() const;
  // Whether this rank owns or holds a parameter, and who owns it (shards.hpp); false and -1: no such
  // parameter.
  bool owns(std::string_view name) const;
  bool holds(std::string_view name) const;
  int32_t owner(std::string_view name) const;

  // One optimizer step. An error leaves masters, moments and the arena as they were. A non-finite loss or
  // gradient is an error (exit code kBadData) that names the step and the sample or tensor.
  //
  // Collective. `samples` are this rank's, possibly none; `places` says where each stands among all samples
  // of the step (any numbers that differ between samples and ascend in the step's order), which is the order
  // in which metrics are summed. A single rank may leave it out.
  StatusOr<StepReport> train_step(std::span<const TrainSample> samples, uint64_t step,
                                  BatchTotals totals = {}, std::span<const int64_t> places = {},
                                  Deadline deadline = Deadline::after(std::chrono::hours(24)));
  // Cross-entropy, mean over response tokens, under the same optimizer (see set_optimizer). Collective like
  // train_step.
  StatusOr<SftReport> sft_step(std::span<const SftSample> samples, uint64_t step, BatchTotals totals = {},
                               std::span<const int64_t> places = {},
                               Deadline deadline = Deadline::after(std::chrono::hours(24)));
  // Log-probs of the response tokens without a step: per sample, per response token. Local, and a single rank
  // needs a sample; with expert_parallel > 1 collective.
  StatusOr<std::vector<std::vector<float>>> logprobs(
      std::span<const TrainSample> samples, Deadline deadline = Deadline::after(std::chrono::hours(24)));
  // Brings bf16(master) of low-precision weights to the ranks that compute with it but do not own it, where
  // the backward mode needs it. Collective; after bind_arena, and again after every update and change of
  // masters, before the next step.
  Status share_originals(Deadline deadline = Deadline::after(std::chrono::hours(24)));

  // Training state for checkpoints: read all tensors, or write all of them and set the step count. Holds the
  // tensors that this rank owns, in a fixed order.
  std::vector<StateTensor> state();
  int64_t optimizer_steps() const;
  void set_optimizer_steps(int64_t steps);

  // Switches schedule and hyperparameters (between a supervised warm start and RL), and with `reset` clears
  // the moments and the step count.
  Status set_optimizer(const recipe::OptimizerPart& optimizer, int64_t total_steps, bool reset);

 private:
  struct Impl;
  explicit Trainer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::trainer
