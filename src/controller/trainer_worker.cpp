#include "controller/trainer_worker.hpp"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <map>
#include <optional>

#include "base/log.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "comm/gloo_communicator.hpp"
#include "controller/checkpointing.hpp"
#include "controller/engine_limits.hpp"
#include "controller/policy_setup.hpp"
#include "controller/step_batch.hpp"
#include "controller/update_channel.hpp"
#include "device/thread_pool.hpp"
#include "trainer/trainer.hpp"
#include "trainer/updates.hpp"
#include "weights/arena.hpp"
#include "weights/export.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {
namespace {

constexpr char kOptimizerStepsKey[] = "optimizer_steps";

// Where the learning rate schedule of the RL phase ends.
int64_t total_updates(const recipe::Recipe& recipe) {
  return recipe.run.steps * recipe.trainer.updates_per_step;
}

class TrainerWorkerImpl final : public TrainerWorker {
 public:
  TrainerWorkerImpl(int32_t rank, comm::Store& store, FetchSamples fetch)
      : rank_(rank), store_(store), fetch_(fetch_recorded(std::move(fetch))) {}

  std::string address() const override { return ""; }  // known to the process that serves this worker
  StatusOr<SetupReport> setup(const SetupJob& job) override;
  Status join(const GroupJob& job) override;
  StatusOr<SyncReport> sync(const SyncJob& job) override;
  StatusOr<std::vector<TensorRecord>> export_weights(uint64_t version) override;
  StatusOr<Metrics> train(const TrainJob& job) override;
  StatusOr<Metrics> sft(const SftJob& job) override;
  Status save(const SaveJob& job) override;

 private:
  enum class Phase { kNone, kSft, kRl };

  Status load_state(const std::string& checkpoint_dir);
  Status enter(Phase phase);
  Status quantize_masters();
  StatusOr<std::vector<trainer::TrainSample>> gather(const TrainJob& job) const;
  StatusOr<Metrics> update(std::span<const trainer::TrainSample> samples, uint64_t step, size_t& updates);

  const int32_t rank_;
  comm::Store& store_;
  const FetchSamples fetch_;
  std::optional<PolicySetup> policy_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<weights::Arena> arena_;
  std::unique_ptr<trainer::Trainer> trainer_;
  std::unique_ptr<Communicator> group_;
  weights::ExportReport exported_;   // of what the arena holds
  std::optional<uint64_t> version_;  // none while the masters are ahead of the arena
  Phase phase_ = Phase::kNone;
};

StatusOr<SetupReport> TrainerWorkerImpl::setup(const SetupJob& job) {
  ACCORD_ASSIGN_OR_RETURN(policy_, make_policy_setup(job));
  const recipe::Recipe& recipe = policy_->recipe;
  pool_ = std::make_unique<ThreadPool>(worker_threads(recipe.trainer.threads, recipe.trainer.workers));

  trainer::TrainerOptions options;
  options.algorithm = recipe.algorithm;
  options.optimizer = recipe.trainer.optimizer;
  options.total_steps = total_updates(recipe);
  options.tokens_per_microbatch = recipe.trainer.tokens_per_microbatch;
  options.compute_dtype = recipe.model.compute_dtype;
  options.backward = recipe.precision.backward;
  for (const precision::PlanRow& row : policy_->plan.rows) {
    if (!row.weight_decay) {
      options.no_weight_decay.push_back(row.name);
    }
    if (row.e5m2_gradients) {
      options.e5m2_gradients.push_back(row.name);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::HfCheckpoint source,
                          checkpoint::HfCheckpoint::open(recipe.model.checkpoint));
  ACCORD_ASSIGN_OR_RETURN(trainer_,
                          trainer::Trainer::create(policy_->hf.model, options, *pool_,
                                                   [&](const ParamSpec& spec, std::span<float> values) {
                                                     return source.read_f32(spec.name, values);
                                                   }));
  if (!job.resume_dir.empty()) {
    ACCORD_RETURN_IF_ERROR(load_state(job.resume_dir));
    phase_ = Phase::kRl;
  }
  ACCORD_ASSIGN_OR_RETURN(arena_, weights::Arena::create(policy_->manifest.arena_bytes));
  ACCORD_RETURN_IF_ERROR(quantize_masters());
  ACCORD_RETURN_IF_ERROR(trainer_->bind_arena(policy_->manifest, arena_->data()));
  return SetupReport{"cpu", policy_->manifest.arena_bytes, pool_->num_threads()};
}

Status TrainerWorkerImpl::load_state(const std::string& checkpoint_dir) {
  const std::string path = checkpoint_dir + "/" + kTrainingStateFile;
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::SafetensorsFile file, checkpoint::SafetensorsFile::open(path));
  const std::vector<trainer::StateTensor> state = trainer_->state();
  if (file.tensors().size() != state.size()) {
    return data_error("{}: holds {} tensors, this model's training state has {}", path, file.tensors().size(),
                      state.size());
  }
  for (const trainer::StateTensor& tensor : state) {
    ACCORD_RETURN_IF_ERROR(file.require(tensor.name, Dtype::kF32, tensor.shape).status());
  }
  const auto steps = file.metadata().find(kOptimizerStepsKey);
  int64_t optimizer_steps = 0;
  if (steps == file.metadata().end() || !absl::SimpleAtoi(steps->second, &optimizer_steps) ||
      optimizer_steps < 0) {
    return data_error("{}: its metadata has no valid {}", path, kOptimizerStepsKey);
  }
  for (const trainer::StateTensor& tensor : state) {
    ACCORD_RETURN_IF_ERROR(file.read_f32(tensor.name, tensor.values));
  }
  trainer_->set_optimizer_steps(optimizer_steps);
  return absl::OkStatus();
}

Status TrainerWorkerImpl::join(const GroupJob& job) {
  comm::GlooOptions options;
  options.group = job.group;
  options.rank = job.rank;
  options.size = job.size;
  ACCORD_ASSIGN_OR_RETURN(group_,
                          comm::GlooCommunicator::create(options, store_, Deadline::after(job.timeout)));
  return absl::OkStatus();
}

// Both phases have their own optimizer settings; moments do not carry over from the warm start.
Status TrainerWorkerImpl::enter(Phase phase) {
  if (phase_ == phase) {
    return absl::OkStatus();
  }
  const recipe::Recipe& recipe = policy_->recipe;
  if (phase == Phase::kSft) {
    ACCORD_RETURN_IF_ERROR(trainer_->set_optimizer(recipe.sft->optimizer, recipe.sft->steps, /*reset=*/true));
  } else {
    ACCORD_RETURN_IF_ERROR(
        trainer_->set_optimizer(recipe.trainer.optimizer, total_updates(recipe), /*reset=*/true));
  }
  phase_ = phase;
  return absl::OkStatus();
}

Status TrainerWorkerImpl::quantize_masters() {
  ACCORD_ASSIGN_OR_RETURN(exported_, weights::export_weights(
                                         policy_->manifest, policy_->plan,
                                         [this](const std::string& name) -> std::span<const float> {
                                           return trainer_->master(name);
                                         },
                                         *arena_, *pool_));
  return absl::OkStatus();
}

StatusOr<std::vector<TensorRecord>> TrainerWorkerImpl::export_weights(uint64_t version) {
  if (!trainer_) {
    return internal_error("export of version {} before setup", version);
  }
  ACCORD_RETURN_IF_ERROR(quantize_masters());
  version_ = version;
  std::vector<TensorRecord> records;
  records.reserve(exported_.tensors.size());
  for (const weights::ExportedTensor& t : exported_.tensors) {
    records.push_back({t.name, t.digest, t.amax, t.saturated, t.flushed});
  }
  return records;
}

StatusOr<SyncReport> TrainerWorkerImpl::sync(const SyncJob& job) {
  if (!group_ || version_ != job.version) {
    return internal_error("sync of version {}, but the arena was not exported as that version", job.version);
  }
  std::vector<std::string> digests;
  for (const weights::ExportedTensor& tensor : exported_.tensors) {
    digests.push_back(tensor.digest);
  }
  weights::UpdateOptions options;
  options.version = job.version;
  ACCORD_ASSIGN_OR_RETURN(const weights::UpdateReport report,
                          weights::send_update(policy_->manifest, arena_->data(), {digests, {}}, options,
                                               make_update_channel(*group_, Deadline::after(job.timeout))));
  return SyncReport{report.version, report.bytes, report.attempts};
}

// Trajectories come from their holders, grouped by holder, and are put back into the job's order.
StatusOr<std::vector<trainer::TrainSample>> TrainerWorkerImpl::gather(const TrainJob& job) const {
  std::map<std::string, std::vector<size_t>> by_holder;
  for (size_t i = 0; i < job.samples.size(); ++i) {
    by_holder[job.samples[i].holder].push_back(i);
  }
  std::vector<trainer::TrainSample> samples(job.samples.size());
  for (const auto& [holder, indices] : by_holder) {
    std::vector<SampleKey> keys;
    for (const size_t i : indices) {
      keys.push_back(job.samples[i].key);
    }
    ACCORD_ASSIGN_OR_RETURN(std::vector<Sample> fetched, fetch_(holder, keys));
    for (size_t j = 0; j < indices.size(); ++j) {
      Sample& sample = fetched[j];
      const TrainSampleRef& ref = job.samples[indices[j]];
      // A recorded batch may be of any version: the mismatch metrics say how far it is from this policy.
      const bool other_version = sample.weight_version != job.weight_version && recorded_path(holder).empty();
      if (sample.key != ref.key || other_version ||
          static_cast<int32_t>(sample.tokens.size()) != ref.num_tokens) {
        return internal_error(
            "{} sent sample {} of prompt {} (version {}, {} tokens) where sample {} of prompt {} (version "
            "{}, {} tokens) "
            "was asked for",
            holder, sample.key.sample_index, sample.key.prompt_id, sample.weight_version,
            sample.tokens.size(), ref.key.sample_index, ref.key.prompt_id, job.weight_version,
            ref.num_tokens);
      }
      trainer::TrainSample& out = samples[indices[j]];
      out.key = sample.key;
      out.tokens = std::move(sample.tokens);
      out.prompt_length = sample.prompt_length;
      out.rollout_logprobs = std::move(sample.logprobs);
      out.advantage = ref.advantage;
      out.temperature = static_cast<float>(policy_->recipe.rollout.temperature);
    }
  }
  return samples;
}

StatusOr<Metrics> TrainerWorkerImpl::train(const TrainJob& job) {
  if (version_ != job.weight_version) {
    return internal_error("step {} trains on samples of version {}, but the arena does not hold that version",
                          job.step, job.weight_version);
  }
  ACCORD_RETURN_IF_ERROR(enter(Phase::kRl));
  const recipe::Recipe& recipe = policy_->recipe;
  Metrics metrics;
  size_t updates = 0;
  if (!job.samples.empty()) {
    ACCORD_ASSIGN_OR_RETURN(std::vector<trainer::TrainSample> samples, gather(job));
    if (recipe.algorithm.importance_correction != recipe::ImportanceCorrection::kNone) {
      ACCORD_ASSIGN_OR_RETURN(std::vector<std::vector<float>> old, trainer_->logprobs(samples));
      for (size_t i = 0; i < samples.size(); ++i) {
        samples[i].old_logprobs = std::move(old[i]);
      }
    }
    version_.reset();
    ACCORD_ASSIGN_OR_RETURN(metrics, update(samples, job.step, updates));
  }
  if (recipe.trainer.updates_per_step > 1 || recipe.algorithm.filter_zero_std) {
    metrics["train/updates"] = static_cast<double>(updates);
  }
  return metrics;
}

// Every update but the last leaves its weights in the arena, from which the next one computes. Rollout
// workers do not see those.
StatusOr<Metrics> TrainerWorkerImpl::update(std::span<const trainer::TrainSample> samples, uint64_t step,
                                            size_t& updates) {
  const recipe::Recipe& recipe = policy_->recipe;
  const std::vector<trainer::SampleRange> ranges =
      trainer::split_updates(static_cast<int64_t>(samples.size()), recipe.rollout.samples_per_prompt,
                             recipe.trainer.updates_per_step);
  std::vector<trainer::StepReport> reports;
  for (const trainer::SampleRange& range : ranges) {
    if (!reports.empty()) {
      ACCORD_RETURN_IF_ERROR(quantize_masters());
    }
    StatusOr<trainer::StepReport> report =
        trainer_->train_step(samples.subspan(range.begin, range.count), step);
    if (!report.ok()) {
      return ranges.size() == 1 ? report.status()
                                : annotate(report.status(),
                                           fmt::format("update {} of {}", reports.size() + 1, ranges.size()));
    }
    reports.push_back(*std::move(report));
  }
  updates = reports.size();
  return trainer::combine_updates(reports);
}

StatusOr<Metrics> TrainerWorkerImpl::sft(const SftJob& job) {
  ACCORD_RETURN_IF_ERROR(enter(Phase::kSft));
  std::vector<trainer::SftSample> samples;
  samples.reserve(job.samples.size());
  for (const SftSample& sample : job.samples) {
    samples.push_back({sample.tokens, sample.prompt_length});
  }
  version_.reset();
  ACCORD_ASSIGN_OR_RETURN(trainer::SftReport report, trainer_->sft_step(samples, job.step));
  ACCORD_RETURN_IF_ERROR(quantize_masters());
  return std::move(report.metrics);
}

Status TrainerWorkerImpl::save(const SaveJob& job) {
  std::vector<checkpoint::TensorData> tensors;
  for (const trainer::StateTensor& tensor : trainer_->state()) {
    tensors.push_back({{tensor.name, Dtype::kF32, tensor.shape}, tensor.values.data()});
  }
  ACCORD_RETURN_IF_ERROR(
      checkpoint::write_safetensors(job.directory + "/" + kTrainingStateFile, tensors,
                                    {{kOptimizerStepsKey, std::to_string(trainer_->optimizer_steps())}}));
  if (!job.save_hf) {
    return absl::OkStatus();
  }
  std::vector<BF16> values;
  const auto provide = [&](const ParamSpec& spec) -> StatusOr<std::span<const BF16>> {
    const std::span<const float> master = trainer_->master(spec.name);
    values.resize(master.size());
    std::transform(master.begin(), master.end(), values.begin(), to_bf16);
    return std::span<const BF16>(values);
  };
  checkpoint::HfWriteOptions options;
  options.tokenizer_dir = policy_->recipe.model.checkpoint;
  return checkpoint::write_hf_checkpoint(job.directory + "/" + kHfDirectory, policy_->hf, provide, options);
}

}  // namespace

std::unique_ptr<TrainerWorker> make_trainer_worker(int32_t rank, comm::Store& store, FetchSamples fetch) {
  return std::make_unique<TrainerWorkerImpl>(rank, store, std::move(fetch));
}

}  // namespace accord::controller
