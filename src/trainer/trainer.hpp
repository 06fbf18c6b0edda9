#pragma once
// The trainer: fp32 masters, their gradients and AdamW moments, and one optimizer step on a batch of samples.
//
//   masters --(src/weights: Q(bf16(master)))--> arena --bind_arena--> forward (model/forward.hpp, the
//   rollout's own functions and bytes) -> log-probs -> loss -> explicit backward -> gradients -> AdamW ->
//   masters
//
// After every step that returned OK the caller exports the masters into the arena before the next one.
// Results depend on the samples, their order and tokens_per_microbatch, never on the number of threads.
#include <cstdint>
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
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
  std::vector<int32_t> routing;     // [tokens-1, layers, K] expert ids of the rollout; empty: route by score
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
  Metrics metrics;
  std::vector<std::vector<float>> logprobs;  // per sample, per response token
};

struct SftReport {
  Metrics metrics;  // train/loss (mean over response tokens), train/grad_norm, train/learning_rate
};

// Sizes of the whole batch of a step. With several trainer ranks each rank passes the global ones, so that
// the loss is normalized by the global batch; zero means: count the samples given.
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
  // Intermediates of a layer are kept from the forward while they fit; other layers are recomputed.
  int64_t activation_bytes = int64_t{1} << 30;
  // Called with the local gradients (all tensors, manifest order, zero padded) before clipping. Where
  // several ranks train, it sums over them.
  std::function<Status(std::span<float> gradients)> reduce_gradients;
};

// A named piece of training state, shared with the trainer.
struct StateTensor {
  std::string name;  // master.<canonical>, exp_avg.<canonical>, exp_avg_sq.<canonical>
  std::vector<int64_t> shape;
  std::span<float> values;
};

class Trainer {
 public:
  // Fills `values` with one tensor's initial masters.
  using LoadMaster = std::function<Status(const ParamSpec& spec, std::span<float> values)>;

  // `pool` must outlive the trainer and is used by its calls only while they run.
  static StatusOr<std::unique_ptr<Trainer>> create(const ModelConfig& config, const TrainerOptions& options,
                                                   ThreadPool& pool, const LoadMaster& load_master);
  ~Trainer();

  // The forward reads these bytes, which must keep their address and hold Q(bf16(masters)) at every step.
  Status bind_arena(const WeightManifest& manifest, const void* arena);

  // Empty when there is no such parameter.
  std::span<float> master(std::string_view name);
  // The last step's gradient, after clipping.
  std::span<const float> gradient(std::string_view name) const;
  std::span<const ParamSpec> parameters() const;

  // One optimizer step. An error leaves masters and moments as they were. A non-finite loss or gradient is
  // an error (exit code kBadData) that names the step and the sample or tensor.
  StatusOr<StepReport> train_step(std::span<const TrainSample> samples, uint64_t step,
                                  BatchTotals totals = {});
  // Cross-entropy, mean over response tokens, under the same optimizer (see set_optimizer).
  StatusOr<SftReport> sft_step(std::span<const SftSample> samples, uint64_t step, BatchTotals totals = {});
  // Log-probs of the response tokens without a step: per sample, per response token.
  StatusOr<std::vector<std::vector<float>>> logprobs(std::span<const TrainSample> samples);

  // Training state for checkpoints: write `values` out, or fill them, then set the step count. The order is
  // fixed; the spans stay valid for the trainer's life.
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
