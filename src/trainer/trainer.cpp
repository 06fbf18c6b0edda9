#include "trainer/trainer.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/batch_stats.hpp"
#include "trainer/linear_backward.hpp"
#include "trainer/objective.hpp"
#include "trainer/optimizer.hpp"
#include "trainer/packing.hpp"
#include "trainer/pass.hpp"
#include "trainer/routing.hpp"
#include "trainer/samples.hpp"
#include "trainer/token_objective.hpp"

namespace accord::trainer {

namespace {

Status validate_options(const TrainerOptions& options) {
  if (options.tokens_per_microbatch < 1) {
    return recipe_error("trainer.tokens_per_microbatch is {}, must be at least 1",
                        options.tokens_per_microbatch);
  }
  if (options.compute_dtype != Dtype::kF32 && options.compute_dtype != Dtype::kBF16) {
    return recipe_error("model.compute_dtype must be float32 or bfloat16");
  }
  return absl::OkStatus();
}

Status validate_schedule(const recipe::OptimizerPart& optimizer, int64_t total_steps) {
  if (optimizer.schedule != recipe::Schedule::kConstant && total_steps <= 0) {
    return recipe_error("optimizer.schedule: linear and cosine need the number of steps of the run");
  }
  return absl::OkStatus();
}

StatusOr<BackwardOptions> backward_options(const TrainerOptions& options, const Parameters& parameters) {
  BackwardOptions out{options.backward, std::vector<bool>(static_cast<size_t>(parameters.count()))};
  for (const std::string& name : options.e5m2_gradients) {
    const int64_t index = parameters.index(name);
    if (index < 0) return internal_error("e5m2_gradients: no parameter '{}'", name);
    out.e5m2_gradients[static_cast<size_t>(index)] = true;
  }
  return out;
}

// A view over the sequences of a step, of either kind.
struct StepSequences {
  std::vector<Sequence> sequences;
  std::vector<float> temperatures;
  std::vector<int64_t> first_token;  // of each sequence among all response tokens
  int64_t num_tokens = 0;            // response tokens

  void add(std::span<const int32_t> tokens, int32_t prompt_length, float temperature) {
    sequences.push_back({tokens, prompt_length});
    temperatures.push_back(temperature);
    first_token.push_back(num_tokens);
    num_tokens += sequences.back().num_responses();
  }
};

StepSequences sequences_of(std::span<const TrainSample> samples) {
  StepSequences out;
  for (const TrainSample& s : samples) out.add(s.tokens, s.prompt_length, s.temperature);
  return out;
}

}  // namespace

struct Trainer::Impl {
  ModelConfig config;
  TrainerOptions options;
  ThreadPool& pool;
  Parameters parameters;
  Workspace workspace;
  std::unique_ptr<model::Model> model;
  std::unique_ptr<Pass> pass;
  int64_t optimizer_steps = 0;
  int64_t num_micro_batches = 0;  // of the last step

  Impl(const ModelConfig& c, const TrainerOptions& o, ThreadPool& p, Parameters params,
       BackwardOptions backward)
      : config(c),
        options(o),
        pool(p),
        parameters(std::move(params)),
        workspace(config, parameters, pool, options.compute_dtype, std::move(backward)) {}

  // `loss(sequence, offset in its response, value)`.
  using LossFn = std::function<TokenGradient(size_t sequence, int64_t offset, const TokenValue& value)>;
  Status run_micro_batches(const StepSequences& step, std::span<const TrainSample> routed, bool backward,
                           const LossFn& loss, RecordedRouting& recorded);
  // Reduction, norm, clipping, update. `what` names the step in errors.
  StatusOr<Metrics> update(const std::string& what);
};

Trainer::Trainer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Trainer::~Trainer() = default;

StatusOr<std::unique_ptr<Trainer>> Trainer::create(const ModelConfig& config, const TrainerOptions& options,
                                                   ThreadPool& pool, const LoadMaster& load_master) {
  ACCORD_RETURN_IF_ERROR(validate(config));
  ACCORD_RETURN_IF_ERROR(validate_options(options));
  ACCORD_RETURN_IF_ERROR(validate_schedule(options.optimizer, options.total_steps));
  ACCORD_ASSIGN_OR_RETURN(Parameters parameters, Parameters::create(config, options.no_weight_decay));
  ACCORD_ASSIGN_OR_RETURN(BackwardOptions backward, backward_options(options, parameters));
  auto impl = std::make_unique<Impl>(config, options, pool, std::move(parameters), std::move(backward));
  for (int64_t i = 0; i < impl->parameters.count(); ++i) {
    const ParamSpec& spec = impl->parameters.specs()[static_cast<size_t>(i)];
    const Status status = load_master(spec, impl->parameters.master(i));
    if (!status.ok()) return annotate(status, spec.name);
  }
  return std::unique_ptr<Trainer>(new Trainer(std::move(impl)));
}

Status Trainer::bind_arena(const WeightManifest& manifest, const void* arena) {
  ACCORD_RETURN_IF_ERROR(check_backward(manifest, impl_->options.backward));
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights weights, model::bind_weights(impl_->config, manifest, arena));
  ACCORD_ASSIGN_OR_RETURN(impl_->model, model::Model::create(impl_->config, std::move(weights),
                                                             impl_->options.compute_dtype, impl_->pool));
  impl_->pass = std::make_unique<Pass>(impl_->workspace, *impl_->model, impl_->options.activation_bytes);
  return absl::OkStatus();
}

std::span<float> Trainer::master(std::string_view name) {
  const int64_t index = impl_->parameters.index(name);
  return index < 0 ? std::span<float>() : impl_->parameters.master(index);
}

std::span<const float> Trainer::gradient(std::string_view name) const {
  const int64_t index = impl_->parameters.index(name);
  return index < 0 ? std::span<const float>() : impl_->parameters.gradient(index);
}

std::span<const ParamSpec> Trainer::parameters() const { return impl_->parameters.specs(); }

Status Trainer::Impl::run_micro_batches(const StepSequences& step, std::span<const TrainSample> routed,
                                        bool backward, const LossFn& loss, RecordedRouting& recorded) {
  if (pass == nullptr) return internal_error("trainer: bind_arena was not called before the first step");
  std::vector<int64_t> lengths;
  for (const Sequence& s : step.sequences) lengths.push_back(s.num_rows());
  PackedBatch packed;
  const MicroBatchPlan plan = pack_sequences(lengths, options.tokens_per_microbatch);
  num_micro_batches = static_cast<int64_t>(plan.size());
  for (const std::vector<int32_t>& members : plan) {
    std::vector<Sequence> sequences;
    std::vector<float> temperatures;
    std::vector<int64_t> first;  // packed index of each member's first response token
    int64_t count = 0;
    for (int32_t m : members) {
      sequences.push_back(step.sequences[static_cast<size_t>(m)]);
      temperatures.push_back(step.temperatures[static_cast<size_t>(m)]);
      first.push_back(count);
      count += sequences.back().num_responses();
    }
    packed.build(sequences);
    recorded.build(routed, members);
    PassRouting routing;
    if (!recorded.ids().empty()) {
      if (options.algorithm.routing_replay) routing.replay = recorded.ids();
      routing.observe = [&](int64_t layer, const float* probs_TE) { recorded.compare(layer, probs_TE); };
    }
    const TokenLossFn token_loss = [&](int64_t token, const TokenValue& value) {
      const size_t s = static_cast<size_t>(packed.response_sequences()[static_cast<size_t>(token)]);
      return loss(static_cast<size_t>(members[s]), token - first[s], value);
    };
    ACCORD_RETURN_IF_ERROR(backward ? pass->forward_backward(packed, temperatures, routing, token_loss)
                                    : pass->forward(packed, temperatures, routing, token_loss));
  }
  return absl::OkStatus();
}

StatusOr<Metrics> Trainer::Impl::update(const std::string& what) {
  if (options.reduce_gradients) ACCORD_RETURN_IF_ERROR(options.reduce_gradients(parameters.all_gradients()));
  const double norm = gradient_norm(parameters, pool);
  if (!std::isfinite(norm)) {
    const std::string name = first_non_finite_gradient(parameters);
    return data_error("{}: the gradient of {} is not finite (global norm {}); the weights were not changed",
                      what, name.empty() ? "no single tensor" : name, norm);
  }
  clip_gradients(parameters, norm, options.optimizer.clip_grad, pool);
  const double lr = learning_rate(options.optimizer, options.total_steps, optimizer_steps);
  adamw_update(parameters, options.optimizer, lr, optimizer_steps + 1, pool);
  ++optimizer_steps;
  return Metrics{{"train/grad_norm", norm}, {"train/learning_rate", lr}};
}

StatusOr<StepReport> Trainer::train_step(std::span<const TrainSample> samples, uint64_t step,
                                         BatchTotals totals) {
  Impl& t = *impl_;
  ACCORD_RETURN_IF_ERROR(validate_samples(samples, t.config, true));
  const StepSequences sequences = sequences_of(samples);
  if (totals.num_tokens == 0) totals.num_tokens = sequences.num_tokens;
  if (totals.num_samples == 0) totals.num_samples = static_cast<int64_t>(samples.size());
  const recipe::AlgorithmPart& algorithm = t.options.algorithm;
  const bool has_reference = !samples[0].ref_logprobs.empty();
  if (algorithm.kl_coefficient != 0.0 && !has_reference) {
    return data_error(
        "step {}: algorithm.kl_coefficient is set, but the samples carry no reference log-probs", step);
  }
  const bool corrected = algorithm.importance_correction != recipe::ImportanceCorrection::kNone;
  if (corrected && samples[0].old_logprobs.empty()) {
    return data_error(
        "step {}: algorithm.importance_correction is set, but the samples carry no log-probs of the trainer",
        step);
  }

  std::vector<TokenRecord> records(static_cast<size_t>(sequences.num_tokens));
  const auto loss = [&](size_t s, int64_t offset, const TokenValue& value) {
    const TrainSample& sample = samples[s];
    const size_t o = static_cast<size_t>(offset);
    TokenContext context;
    context.rollout_logprob = sample.rollout_logprobs[o];
    context.old_logprob = sample.old_logprobs.empty() ? context.rollout_logprob : sample.old_logprobs[o];
    if (has_reference) context.ref_logprob = sample.ref_logprobs[o];
    context.advantage = sample.advantage;
    context.weight =
        token_weight(algorithm.aggregate, sample.response_length(), totals.num_tokens, totals.num_samples);
    return token_objective(algorithm, context, value,
                           records[static_cast<size_t>(sequences.first_token[s]) + o]);
  };
  t.parameters.clear_gradients();
  RecordedRouting recorded(t.config);
  ACCORD_RETURN_IF_ERROR(t.run_micro_batches(sequences, samples, true, loss, recorded));

  StepReport report;
  double total_loss = 0.0;
  for (size_t s = 0; s < samples.size(); ++s) {
    const auto mine = std::span(records).subspan(static_cast<size_t>(sequences.first_token[s]),
                                                 static_cast<size_t>(samples[s].response_length()));
    report.logprobs.emplace_back();
    for (size_t o = 0; o < mine.size(); ++o) {
      total_loss += mine[o].loss;
      report.logprobs.back().push_back(mine[o].logprob);
      if (!std::isfinite(mine[o].loss)) {
        return data_error(
            "step {}: the loss of {} is not finite at response token {} (log-prob {}, rollout {}); the "
            "weights were not changed",
            step, describe(samples[s].key), o, mine[o].logprob, mine[o].rollout_logprob);
      }
    }
  }
  report.metrics = token_metrics(records, has_reference, corrected);
  report.metrics["train/loss"] = total_loss;
  report.metrics["train/microbatches"] = static_cast<double>(t.num_micro_batches);
  if (recorded.compared()) report.metrics["mismatch/expert_overlap"] = recorded.overlap();
  ACCORD_ASSIGN_OR_RETURN(const Metrics update, t.update(fmt::format("step {}", step)));
  report.metrics.insert(update.begin(), update.end());
  return report;
}

StatusOr<SftReport> Trainer::sft_step(std::span<const SftSample> samples, uint64_t step, BatchTotals totals) {
  Impl& t = *impl_;
  ACCORD_RETURN_IF_ERROR(validate_samples(samples, t.config));
  StepSequences sequences;
  for (const SftSample& s : samples) sequences.add(s.tokens, s.prompt_length, 1.0F);
  if (totals.num_tokens == 0) totals.num_tokens = sequences.num_tokens;
  const double weight = 1.0 / static_cast<double>(totals.num_tokens);
  std::vector<double> losses(static_cast<size_t>(sequences.num_tokens));
  const auto loss = [&](size_t s, int64_t offset, const TokenValue& value) {
    losses[static_cast<size_t>(sequences.first_token[s] + offset)] =
        -static_cast<double>(value.logprob) * weight;
    return TokenGradient{-weight, 0.0};
  };
  t.parameters.clear_gradients();
  RecordedRouting recorded(t.config);  // none
  ACCORD_RETURN_IF_ERROR(t.run_micro_batches(sequences, {}, true, loss, recorded));
  double total_loss = 0.0;
  for (double value : losses) total_loss += value;
  if (!std::isfinite(total_loss)) {
    return data_error("supervised step {}: the loss is {}; the weights were not changed", step, total_loss);
  }
  ACCORD_ASSIGN_OR_RETURN(Metrics metrics, t.update(fmt::format("supervised step {}", step)));
  metrics["train/loss"] = total_loss;
  return SftReport{std::move(metrics)};
}

StatusOr<std::vector<std::vector<float>>> Trainer::logprobs(std::span<const TrainSample> samples) {
  Impl& t = *impl_;
  ACCORD_RETURN_IF_ERROR(validate_samples(samples, t.config, false));
  std::vector<std::vector<float>> out;
  for (const TrainSample& s : samples) out.emplace_back(static_cast<size_t>(s.response_length()));
  const auto visit = [&](size_t s, int64_t offset, const TokenValue& value) {
    out[s][static_cast<size_t>(offset)] = value.logprob;
    return TokenGradient{};
  };
  RecordedRouting recorded(t.config);
  ACCORD_RETURN_IF_ERROR(t.run_micro_batches(sequences_of(samples), samples, false, visit, recorded));
  return out;
}

std::vector<StateTensor> Trainer::state() {
  const Parameters& p = impl_->parameters;
  std::vector<StateTensor> out;
  for (int64_t i = 0; i < p.count(); ++i) {
    const ParamSpec& spec = p.specs()[static_cast<size_t>(i)];
    out.push_back({"master." + spec.name, spec.shape, p.master(i)});
    out.push_back({"exp_avg." + spec.name, spec.shape, p.exp_avg(i)});
    out.push_back({"exp_avg_sq." + spec.name, spec.shape, p.exp_avg_sq(i)});
  }
  return out;
}

int64_t Trainer::optimizer_steps() const { return impl_->optimizer_steps; }
void Trainer::set_optimizer_steps(int64_t steps) { impl_->optimizer_steps = steps; }

Status Trainer::set_optimizer(const recipe::OptimizerPart& optimizer, int64_t total_steps, bool reset) {
  ACCORD_RETURN_IF_ERROR(validate_schedule(optimizer, total_steps));
  impl_->options.optimizer = optimizer;
  impl_->options.total_steps = total_steps;
  if (reset) {
    impl_->parameters.clear_moments();
    impl_->optimizer_steps = 0;
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
