#include "controller/step_loop.hpp"

#include <algorithm>
#include <chrono>
#include <cmath>
#include <numeric>

#include "base/log.hpp"
#include "controller/checkpointing.hpp"
#include "controller/evaluation.hpp"
#include "controller/recorded_steps.hpp"
#include "controller/rollout_phase.hpp"
#include "controller/sample_rewards.hpp"
#include "controller/samples_file.hpp"
#include "controller/step_metrics.hpp"
#include "controller/trainer_pool.hpp"
#include "controller/weight_check.hpp"
#include "telemetry/metrics_writer.hpp"
#include "telemetry/progress.hpp"
#include "telemetry/tensorboard.hpp"
#include "text/epoch_sampler.hpp"
#include "trainer/objective.hpp"
#include "weights/ledger.hpp"

namespace accord::controller {
namespace {

using Clock = std::chrono::steady_clock;

double seconds_since(Clock::time_point begin) {
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

Millis seconds(int64_t count) { return std::chrono::seconds(count); }

}  // namespace

struct StepLoop::Impl {
  const RunInputs& inputs;
  const recipe::Recipe& recipe;
  const Pools& pools;
  RunDirectory& directory;
  RunState& state;
  const LoopOptions options;

  text::MixtureSampler prompts_order = prompt_order(inputs);
  std::unique_ptr<telemetry::MetricsWriter> metrics_file;
  std::unique_ptr<telemetry::TensorBoardWriter> tensorboard;
  std::unique_ptr<weights::Ledger> ledger;
  RewardWatch reward_watch;
  uint64_t version = 0;
  const bool rollout_only = inputs.recipe.debug.mode == recipe::DebugMode::kRolloutOnly;
  const bool train_only = inputs.recipe.debug.mode == recipe::DebugMode::kTrainOnly;

  Impl(const RunInputs& in, const Pools& p, RunDirectory& d, RunState& s, const LoopOptions& o)
      : inputs(in), recipe(in.recipe), pools(p), directory(d), state(s), options(o) {}

  Status run();
  Status start();
  Status warm_start(Metrics& metrics);
  Status step(uint64_t step);
  Status sync(uint64_t new_version, Metrics& metrics);
  Status save(uint64_t step);
  void verify_weights_if_asked();
  Status train(const TrainJob& job, Metrics& metrics);
  Status evaluate(uint64_t step, bool due_only, Metrics& metrics);
  Status commit(uint64_t step, const Metrics& metrics);
  StatusOr<std::vector<ScoredSample>> roll_out_and_score(uint64_t step, std::span<const Prompt> prompts,
                                                         std::span<const PromptSource> sources,
                                                         Metrics& metrics);
  StatusOr<std::vector<ScoredSample>> recorded_samples(uint64_t step, Metrics& metrics) const;
  void describe_samples(std::span<const ScoredSample> samples, Metrics& metrics) const;
  std::string holder_of(const ScoredSample& sample, uint64_t step) const;
  double penalty_of(const SampleSummary& sample) const;
  TrainJob train_job(uint64_t step, std::span<const ScoredSample> samples) const;
};

StepLoop::StepLoop(const RunInputs& inputs, const Pools& pools, RunDirectory& directory, RunState& state,
                   const LoopOptions& options)
    : impl_(std::make_unique<Impl>(inputs, pools, directory, state, options)) {}
StepLoop::~StepLoop() = default;

Status StepLoop::run() { return impl_->run(); }

Status StepLoop::Impl::run() {
  ACCORD_RETURN_IF_ERROR(start());
  const auto last = static_cast<uint64_t>(recipe.run.steps);
  uint64_t done = options.resume_step;
  uint64_t saved = options.resume_step;
  telemetry::ProgressBar progress("steps", recipe.run.steps);
  progress.start_at(static_cast<int64_t>(done));
  verify_weights_if_asked();
  while (done < last && !state.stop_requested()) {
    ACCORD_RETURN_IF_ERROR(annotate(step(done + 1), fmt::format("step {}", done + 1)));
    ++done;
    const Metrics m = state.snapshot().last->metrics;
    progress.update(static_cast<int64_t>(done),
                    m.contains("rollout/reward_mean")
                        ? fmt::format("reward {:.3f}", m.at("rollout/reward_mean"))
                        : "no reward");
    const bool due =
        recipe.checkpoint.every > 0 && done % static_cast<uint64_t>(recipe.checkpoint.every) == 0;
    if (state.take_checkpoint_request() || due || done == last || state.stop_requested()) {
      ACCORD_RETURN_IF_ERROR(save(done));
      saved = done;
    }
    verify_weights_if_asked();
  }
  if (const auto request = state.stop_requested(); request && done < last) {
    if (saved != done) {  // the request came after the last look at it
      ACCORD_RETURN_IF_ERROR(save(done));
    }
    const std::string message = fmt::format("after step {} of {} as asked ({}){}", done, last,
                                            request->reason, rollout_only ? "" : "; continue with --resume");
    if (request->drain) {
      return make_error(ExitCode::kDrained, "drained " + message);
    }
    log::info("stopped {}", message);
  }
  state.set_phase("done");
  return absl::OkStatus();
}

// Between steps no arena changes. What is found is for whoever asked; the run goes on.
void StepLoop::Impl::verify_weights_if_asked() {
  const std::optional<uint64_t> request = state.weight_check_requested();
  if (!request) {
    return;
  }
  state.set_phase("verify");
  const StatusOr<WeightCheck> check = check_weights(pools, directory.file("ledger.jsonl"), version);
  if (check.ok()) {
    for (const WeightDifference& d : check->differences) {
      state.warn(fmt::format("verify-weights: {} {}: {} in the ledger, {} held", d.worker, d.tensor, d.ledger,
                             d.held));
    }
  }
  state.answer_weight_check(*request, check);
}

// Sampling alone changes no weights: there is nothing to save.
Status StepLoop::Impl::save(uint64_t step) {
  if (rollout_only) {
    return absl::OkStatus();
  }
  state.set_phase("checkpoint");
  return save_checkpoint(inputs, pools, directory, step, version);
}

Status StepLoop::Impl::start() {
  state.set_phase("starting");
  if (recipe.debug.dump_batches) {
    ACCORD_RETURN_IF_ERROR(directory.create(kBatchesDirectory));
  }
  const SetupJob setup{inputs.recipe_yaml, inputs.plan.digest, inputs.manifest.digest, options.resume_dir};
  std::vector<SetupReport> reports(pools.size());
  ACCORD_RETURN_IF_ERROR(for_all(pools.size(), [&](size_t i) -> Status {
    SetupReport& report = reports[i];
    ACCORD_ASSIGN_OR_RETURN(report, pools.member(i).setup(setup));
    log::info("{}: {} with {} threads, arena of {:.1f} MB", pools.name(i), report.device, report.threads,
              static_cast<double>(report.arena_bytes) * 1e-6);
    return absl::OkStatus();
  }));
  ACCORD_RETURN_IF_ERROR(check_arithmetic(pools, reports));
  ACCORD_RETURN_IF_ERROR(join_groups(pools, recipe));

  const bool fresh = options.resume_step == 0;
  const auto resume_step = static_cast<int64_t>(options.resume_step);
  ACCORD_ASSIGN_OR_RETURN(metrics_file, telemetry::MetricsWriter::open(directory.file("metrics.jsonl"),
                                                                       fresh ? -1 : resume_step));
  ACCORD_ASSIGN_OR_RETURN(ledger,
                          weights::Ledger::open(directory.file("ledger.jsonl"), fresh ? -1 : resume_step));
  if (recipe.monitor.tensorboard) {
    ACCORD_ASSIGN_OR_RETURN(
        tensorboard, telemetry::TensorBoardWriter::create(directory.path(), fresh ? 0 : resume_step + 1));
  }
  prompts_order.seek(options.resume_step * static_cast<uint64_t>(recipe.rollout.prompts_per_step));

  Metrics metrics;
  if (fresh) {
    ACCORD_RETURN_IF_ERROR(warm_start(metrics));
    if (state.stop_requested()) {
      return absl::OkStatus();
    }
  }
  ACCORD_RETURN_IF_ERROR(sync(options.resume_step, metrics));
  if (fresh) {  // line 0: the policy before the first step
    ACCORD_RETURN_IF_ERROR(evaluate(0, /*due_only=*/false, metrics));
    ACCORD_RETURN_IF_ERROR(commit(0, metrics));
  }
  return absl::OkStatus();
}

// Supervised steps on the trainer, before the pools see any weights.
Status StepLoop::Impl::warm_start(Metrics& metrics) {
  if (inputs.sft.empty()) {
    return absl::OkStatus();
  }
  state.set_phase("sft");
  const auto begin = Clock::now();
  const recipe::SftPart& sft = *recipe.sft;
  text::EpochSampler order(recipe.run.seed, inputs.sft.size());
  telemetry::ProgressBar progress("supervised warm start", sft.steps);
  double loss = 0.0;
  for (int64_t i = 1; i <= sft.steps; ++i) {
    if (state.stop_requested()) {
      log::warn("the warm start ends after {} of {} steps as asked; nothing of it is saved", i - 1,
                sft.steps);
      return absl::OkStatus();
    }
    SftJob job{static_cast<uint64_t>(i), {}, seconds(recipe.deadlines.train)};
    for (const uint64_t index : order.next(static_cast<uint64_t>(sft.batch_size))) {
      job.samples.push_back(inputs.sft[index]);
    }
    ACCORD_ASSIGN_OR_RETURN(const Metrics trained,
                            on_all_trainers(pools, [&](TrainerWorker& trainer) { return trainer.sft(job); }));
    loss = trained.at("train/loss");
    progress.update(i, fmt::format("loss {:.3f}", loss));
  }
  metrics["sft/loss"] = loss;
  metrics["time/sft"] = seconds_since(begin);
  log::info("supervised warm start: {} steps, last loss {:.4f}", sft.steps, loss);
  return absl::OkStatus();
}

Status StepLoop::Impl::step(uint64_t step) {
  const auto begin = Clock::now();
  Metrics metrics;
  std::vector<Prompt> prompts;
  std::vector<std::string> texts;
  std::vector<PromptSource> sources;
  for (const auto& drawn : prompts_order.next(static_cast<uint64_t>(recipe.rollout.prompts_per_step))) {
    const text::Dataset& data = *inputs.train[drawn.source].data;
    const auto index = static_cast<int64_t>(drawn.index);
    sources.push_back({&data, index});
    prompts.push_back(data.at(index));
    texts.push_back(data.text(index));
  }
  ACCORD_ASSIGN_OR_RETURN(
      const std::vector<ScoredSample> samples,
      train_only ? recorded_samples(step, metrics) : roll_out_and_score(step, prompts, sources, metrics));
  if (!train_only) {
    if (const std::string warning = reward_watch.observe(samples, prompts, texts); !warning.empty()) {
      state.warn(warning);
    }
  }
  const TrainJob job = train_job(step, samples);
  if (recipe.debug.dump_batches) {
    ACCORD_RETURN_IF_ERROR(
        record_step(inputs, pools, samples, job, options.build,
                    directory.file(fmt::format("{}/{}", kBatchesDirectory, batch_file_name(step)))));
  }
  if (rollout_only) {
    metrics["train/updates"] = 0.0;
    metrics["sync/version"] = static_cast<double>(version);
  } else {
    ACCORD_RETURN_IF_ERROR(train(job, metrics));
  }
  ACCORD_RETURN_IF_ERROR(
      for_all(pools.rollout.size(), [&](size_t i) { return pools.rollout[i]->release(step); }));

  if (!rollout_only) {
    ACCORD_RETURN_IF_ERROR(sync(step, metrics));
  }
  ACCORD_RETURN_IF_ERROR(
      evaluate(step, /*due_only=*/step != static_cast<uint64_t>(recipe.run.steps), metrics));
  if (!train_only) {
    ACCORD_RETURN_IF_ERROR(write_samples(directory, step, samples, prompts, texts));
  }
  metrics["time/step"] = seconds_since(begin);
  return commit(step, metrics);
}

Status StepLoop::Impl::train(const TrainJob& job, Metrics& metrics) {
  state.set_phase("train");
  const auto begin = Clock::now();
  ACCORD_ASSIGN_OR_RETURN(const Metrics trained,
                          on_all_trainers(pools, [&](TrainerWorker& trainer) { return trainer.train(job); }));
  metrics.insert(trained.begin(), trained.end());
  metrics["time/train"] = seconds_since(begin);
  if (recipe.algorithm.filter_zero_std || recipe.reward.drops()) {
    metrics["train/samples"] = static_cast<double>(job.samples.size());
  }
  if (job.samples.empty()) {
    state.warn(
        fmt::format("step {}: {} left no sample to train on: the weights stay as they were", job.step,
                    recipe.reward.drops()
                        ? "failed rewards (reward.on_failure: drop) and groups of equal rewards"
                        : "the rewards of each group are all equal, so that algorithm.filter_zero_std"));
  } else if (const double equal = metrics.at("mismatch/equal_fraction"); !(equal == 1.0)) {
    state.warn(fmt::format(
        "step {}: only {} of the sampled tokens have the same log-prob, bit for bit, in rollout and "
        "trainer: the two do not run the same policy",
        job.step, equal));
  }
  return absl::OkStatus();
}

// What another run drew (debug.mode train_only); the advantages follow this run's recipe.
StatusOr<std::vector<ScoredSample>> StepLoop::Impl::recorded_samples(uint64_t step, Metrics& metrics) const {
  ACCORD_ASSIGN_OR_RETURN(std::vector<ScoredSample> samples,
                          load_recorded_step(batch_path(*recipe.debug.load_batches, step)));
  describe_samples(samples, metrics);
  return samples;
}

StatusOr<std::vector<ScoredSample>> StepLoop::Impl::roll_out_and_score(uint64_t step,
                                                                       std::span<const Prompt> prompts,
                                                                       std::span<const PromptSource> sources,
                                                                       Metrics& metrics) {
  state.set_phase("rollout");
  const auto rollout_begin = Clock::now();
  RolloutPhase phase;
  phase.step = step;
  phase.prompts = prompts;
  phase.num_samples = static_cast<int32_t>(recipe.rollout.samples_per_prompt);
  phase.sampling = training_sampling(inputs);
  phase.keep = true;
  phase.timeout = seconds(recipe.deadlines.rollout);
  ACCORD_ASSIGN_OR_RETURN(std::vector<RolledSample> rolled, roll_out(pools, phase, version, {}));
  const double rollout_seconds = seconds_since(rollout_begin);

  state.set_phase("reward");
  const auto reward_begin = Clock::now();
  ACCORD_ASSIGN_OR_RETURN(std::vector<reward::Reward> rewards,
                          score_samples(inputs, "train", step, rolled, sources));
  metrics.merge(failure_metrics(inputs, "rollout/", rewards));
  if (const double share =
          metrics.contains("rollout/reward_failures") ? metrics["rollout/reward_failures"] : 0.0;
      share > 0.0) {
    state.warn(fmt::format(
        "step {}: no score came for a share of {} of the samples; {}", step, share,
        recipe.reward.drops() ? "their groups are not trained on" : "they have reward.failure_score"));
  }
  std::vector<ScoredSample> samples;
  samples.reserve(rolled.size());
  double tokens = 0.0;
  for (size_t i = 0; i < rolled.size(); ++i) {
    tokens += rolled[i].summary.response_length;
    const double penalty = penalty_of(rolled[i].summary);
    samples.push_back({std::move(rolled[i]), rewards[i].score + penalty, penalty,
                       rewards[i].pred.value_or(""), std::move(rewards[i].extra), rewards[i].failed});
  }
  describe_samples(samples, metrics);
  metrics["rollout/tokens_per_second"] = tokens / rollout_seconds;
  metrics["time/rollout"] = rollout_seconds;
  metrics["time/reward"] = seconds_since(reward_begin);
  return samples;
}

void StepLoop::Impl::describe_samples(std::span<const ScoredSample> samples, Metrics& metrics) const {
  metrics.merge(rollout_metrics(samples, static_cast<size_t>(recipe.rollout.samples_per_prompt)));
  if (recipe.algorithm.overlong_penalty) {
    double sum = 0.0;
    for (const ScoredSample& sample : samples) {
      sum += sample.penalty;
    }
    metrics["rollout/overlong_penalty_mean"] = sum / static_cast<double>(samples.size());
  }
}

std::string StepLoop::Impl::holder_of(const ScoredSample& sample, uint64_t step) const {
  return train_only ? recorded_holder(batch_path(*recipe.debug.load_batches, step))
                    : pools.rollout[sample.rolled.worker]->address();
}

double StepLoop::Impl::penalty_of(const SampleSummary& sample) const {
  const auto& penalty = recipe.algorithm.overlong_penalty;
  return penalty ? trainer::overlong_penalty(*penalty, sample.response_length,
                                             recipe.rollout.max_response_tokens, sample.truncated)
                 : 0.0;
}

TrainJob StepLoop::Impl::train_job(uint64_t step, std::span<const ScoredSample> samples) const {
  std::vector<double> rewards;
  rewards.reserve(samples.size());
  for (const ScoredSample& sample : samples) {
    rewards.push_back(sample.reward);
  }
  const auto group_size = static_cast<size_t>(recipe.rollout.samples_per_prompt);
  std::vector<double> advantages(rewards.size());
  trainer::group_advantages(recipe.algorithm.advantage, rewards, recipe.rollout.samples_per_prompt,
                            advantages);
  TrainJob job{step, version, {}, seconds(recipe.deadlines.train)};
  std::vector<size_t> chosen(samples.size());
  std::iota(chosen.begin(), chosen.end(), size_t{0});
  if (recipe.algorithm.filter_zero_std) {
    chosen = trainer::samples_that_vary(rewards, recipe.rollout.samples_per_prompt);
  }
  for (const size_t i : in_whole_groups(samples, chosen, group_size)) {
    const SampleSummary& summary = samples[i].rolled.summary;
    job.samples.push_back({summary.key, holder_of(samples[i], step),
                           summary.prompt_length + summary.response_length, summary.response_length,
                           advantages[i], 0});
  }
  assign_ranks(recipe, static_cast<int32_t>(pools.trainer.size()), job.samples);
  return job;
}

Status StepLoop::Impl::sync(uint64_t new_version, Metrics& metrics) {
  state.set_phase("sync");
  const auto begin = Clock::now();
  const ExportJob export_job{new_version, seconds(recipe.deadlines.sync)};
  ACCORD_ASSIGN_OR_RETURN(
      const std::vector<TensorRecord> records,
      on_all_trainers(pools, [&](TrainerWorker& trainer) { return trainer.export_weights(export_job); }));
  const SyncJob job{new_version, inputs.manifest.digest, seconds(recipe.deadlines.sync)};
  int64_t bytes = 0;
  ACCORD_RETURN_IF_ERROR(for_all(pools.size(), [&](size_t i) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const SyncReport report, pools.member(i).sync(job));
    if (report.version != new_version) {
      return internal_error("{} serves version {} after the sync of version {}", pools.name(i),
                            report.version, new_version);
    }
    state.update_worker(pools.name(i), "ready", report.version);
    if (i == 0) {
      bytes = report.bytes;
    }
    return absl::OkStatus();
  }));
  ACCORD_RETURN_IF_ERROR(append_ledger(*ledger, inputs, options.build, new_version, records));
  version = new_version;
  state.set_version(new_version);
  metrics["sync/bytes"] = static_cast<double>(bytes);
  metrics["sync/version"] = static_cast<double>(new_version);
  metrics["time/sync"] = seconds_since(begin);
  return absl::OkStatus();
}

Status StepLoop::Impl::evaluate(uint64_t step, bool due_only, Metrics& metrics) {
  for (size_t i = 0; i < inputs.evals.size(); ++i) {
    const EvalInput& eval = inputs.evals[i];
    if (due_only && (eval.options.every == 0 || step % static_cast<uint64_t>(eval.options.every) != 0)) {
      continue;
    }
    state.set_phase("eval");
    ACCORD_ASSIGN_OR_RETURN(const Metrics result, evaluate_set(inputs, pools, i, step, version));
    metrics.insert(result.begin(), result.end());
  }
  return absl::OkStatus();
}

Status StepLoop::Impl::commit(uint64_t step, const Metrics& metrics) {
  ACCORD_RETURN_IF_ERROR(metrics_file->write(static_cast<int64_t>(step), metrics));
  if (tensorboard) {
    ACCORD_RETURN_IF_ERROR(tensorboard->write(static_cast<int64_t>(step), metrics));
  }
  state.commit({step, metrics});
  // A number that is not one ends the run after it was recorded as it is.
  for (const auto& [name, value] : metrics) {
    if (!std::isfinite(value)) {
      return data_error("metric {} is {}; the run stops (the last checkpoint is kept)", name, value);
    }
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
