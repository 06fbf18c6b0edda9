#include "controller/trainer_worker.hpp"

#include <algorithm>
#include <map>
#include <optional>

#include "base/log.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "controller/checkpointing.hpp"
#include "controller/engine_limits.hpp"
#include "controller/groups.hpp"
#include "controller/policy_arena.hpp"
#include "controller/policy_setup.hpp"
#include "controller/published_policy.hpp"
#include "controller/reference_policy.hpp"
#include "controller/source_check.hpp"
#include "controller/step_batch.hpp"
#include "controller/training_state.hpp"
#include "controller/update_channel.hpp"
#include "controller/weight_check.hpp"
#include "device/thread_pool.hpp"
#include "trainer/packing.hpp"
#include "trainer/samples.hpp"
#include "trainer/trainer.hpp"
#include "trainer/updates.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {
namespace {

// Where the learning rate schedule of the RL phase ends.
int64_t total_updates(const recipe::Recipe& recipe) {
  return recipe.run.steps * recipe.trainer.updates_per_step;
}

// Places that the experts of a layer are spread over.
int32_t expert_places(const recipe::Recipe& recipe) {
  return static_cast<int32_t>(std::max<int64_t>(recipe.trainer.expert_parallel, 1));
}

class TrainerWorkerImpl final : public TrainerWorker {
 public:
  TrainerWorkerImpl(int32_t rank, comm::Store& store, FetchSamples fetch, const Device& device)
      : rank_(rank), store_(store), fetch_(fetch_recorded(std::move(fetch))), device_(device) {}

  std::string address() const override { return ""; }  // known to the process that serves this worker
  StatusOr<SetupReport> setup(const SetupJob& job) override;
  Status join(const GroupJob& job) override;
  StatusOr<SyncReport> sync(const SyncJob& job) override;
  StatusOr<HeldWeights> held_weights() override;
  StatusOr<std::vector<TensorRecord>> export_weights(const ExportJob& job) override;
  StatusOr<Metrics> train(const TrainJob& job) override;
  StatusOr<Metrics> sft(const SftJob& job) override;
  Status save(const SaveJob& job) override;

 private:
  enum class Phase { kNone, kSft, kRl };

  int32_t pool_size() const { return static_cast<int32_t>(policy_->recipe.trainer.workers); }
  // Collective calls go through this: whoever fails closes its groups, so that the others do not wait.
  template <class Work>
  auto together(const Work& work) {
    auto result = work();
    if (!result.ok()) {
      experts_group_.reset();
      trainers_group_.reset();
      weights_group_.reset();
    }
    return result;
  }
  Status ready() const;
  Status enter(Phase phase);
  Status publish(Deadline deadline);
  StatusOr<weights::UpdateReport> send(const SyncJob& job);
  StatusOr<Metrics> train_samples(const TrainJob& job);
  void log_memory(uint64_t step);
  StatusOr<Metrics> sft_samples(const SftJob& job);
  StatusOr<std::vector<trainer::TrainSample>> gather(const TrainJob& job, std::span<const size_t> mine) const;
  StatusOr<Metrics> update(const TrainJob& job, std::span<trainer::TrainSample> samples,
                           std::span<const size_t> mine, size_t& updates);

  const int32_t rank_;
  comm::Store& store_;
  const FetchSamples fetch_;
  const Device device_;
  std::optional<PolicySetup> policy_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<DeviceUpdates> updates_;  // where weights_group_ has device collectives
  std::unique_ptr<Communicator> weights_group_;
  std::unique_ptr<Communicator> trainers_group_;  // of several trainers
  std::unique_ptr<Communicator> experts_group_;   // with expert parallelism
  std::unique_ptr<trainer::Trainer> trainer_;
  std::unique_ptr<PolicyArena> arena_;
  std::unique_ptr<ReferencePolicy> reference_;  // where the recipe needs one
  std::unique_ptr<PublishedPolicy> published_;
  bool fresh_ = false;               // the arena holds the masters' bytes
  std::optional<uint64_t> version_;  // none while the masters are ahead of the arena
  Phase phase_ = Phase::kNone;
  int64_t most_memory_ = 0;  // of a step on a device
};

StatusOr<SetupReport> TrainerWorkerImpl::setup(const SetupJob& job) {
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_ASSIGN_OR_RETURN(const recipe::Recipe asked,
                          recipe::parse_recipe(job.recipe_yaml, "the controller's recipe"));
  ACCORD_ASSIGN_OR_RETURN(policy_, make_policy_setup(job, asked.trainer.expert_tensor_parallel));
  const recipe::Recipe& recipe = policy_->recipe;
  ACCORD_RETURN_IF_ERROR(check_device("trainer", recipe.trainer.device, recipe, device_));
  pool_ = std::make_unique<ThreadPool>(worker_threads(recipe.trainer.threads, recipe.trainer.workers));

  trainer::TrainerOptions options;
  options.algorithm = recipe.algorithm;
  options.optimizer = recipe.trainer.optimizer;
  options.total_steps = total_updates(recipe);
  options.tokens_per_microbatch = recipe.trainer.tokens_per_microbatch;
  options.compute_dtype = recipe.model.compute_dtype;
  options.backward = recipe.precision.backward;
  options.rank = rank_;
  options.size = pool_size();
  options.expert_parallel = expert_places(recipe);
  options.device = device_.id();
  for (const precision::PlanRow& row : policy_->plan.rows) {
    options.units.push_back(row.unit);
    if (!row.weight_decay) {
      options.no_weight_decay.push_back(row.name);
    }
    if (row.e5m2_gradients) {
      options.e5m2_gradients.push_back(row.name);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::HfCheckpoint source,
                          checkpoint::HfCheckpoint::open(recipe.model.checkpoint));
  ACCORD_RETURN_IF_ERROR(check_source_formats(source, policy_->plan));
  ACCORD_ASSIGN_OR_RETURN(trainer_,
                          trainer::Trainer::create(policy_->hf.model, options, *pool_,
                                                   [&](const ParamSpec& spec, std::span<float> values) {
                                                     return source.read_f32(spec.name, values);
                                                   }));
  if (const auto reference = reference_of(recipe)) {
    ACCORD_ASSIGN_OR_RETURN(reference_, ReferencePolicy::load(*reference, recipe, policy_->hf.model,
                                                              pool_->num_threads(), device_));
  }
  if (!job.resume_dir.empty()) {
    ACCORD_RETURN_IF_ERROR(load_training_state(job.resume_dir, *trainer_));
    phase_ = Phase::kRl;
  }
  ACCORD_ASSIGN_OR_RETURN(arena_,
                          PolicyArena::create(device_, trainer_->stream(), policy_->manifest.arena_bytes));
  ACCORD_RETURN_IF_ERROR(trainer_->bind_arena(policy_->manifest, arena_->data()));
  ACCORD_ASSIGN_OR_RETURN(published_, PublishedPolicy::create(*policy_, *trainer_, *arena_, *pool_));
  fresh_ = false;
  return report_of(device_, trainer_->products(), policy_->manifest.arena_bytes, pool_->num_threads());
}

Status TrainerWorkerImpl::join(const GroupJob& job) {
  if (!trainer_) {
    return internal_error("join of group '{}' before setup", job.group);
  }
  switch (job.role) {
    case GroupRole::kWeights: {
      ACCORD_ASSIGN_OR_RETURN(weights_group_, join_group(job, store_, device_));
      updates_.reset();
      if (weights_group_->device_collectives() != nullptr) {
        ACCORD_ASSIGN_OR_RETURN(updates_, DeviceUpdates::create(policy_->manifest, device_));
      }
      return absl::OkStatus();
    }
    case GroupRole::kTrainers: {
      ACCORD_ASSIGN_OR_RETURN(trainers_group_, join_group(job, store_, device_));
      return trainer_->connect(*trainers_group_);
    }
    case GroupRole::kExperts: {
      ACCORD_ASSIGN_OR_RETURN(experts_group_, join_group(job, store_, device_));
      return trainer_->connect_experts(*experts_group_);
    }
  }
  return internal_error("group '{}' has an unknown role", job.group);
}

Status TrainerWorkerImpl::ready() const {
  if (!trainer_ || (pool_size() > 1 && !trainers_group_)) {
    return internal_error("trainer/{} was not set up, or left its group after an earlier error", rank_);
  }
  return device_.make_current();
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

// The arena becomes the masters' bytes, where it is not yet.
Status TrainerWorkerImpl::publish(Deadline deadline) {
  if (fresh_) {
    return absl::OkStatus();
  }
  const bool to_host = weights_group_ == nullptr || weights_group_->device_collectives() == nullptr;
  ACCORD_RETURN_IF_ERROR(published_->publish(trainers_group_.get(), to_host, deadline));
  fresh_ = true;
  return absl::OkStatus();
}

StatusOr<std::vector<TensorRecord>> TrainerWorkerImpl::export_weights(const ExportJob& job) {
  return together([&]() -> StatusOr<std::vector<TensorRecord>> {
    ACCORD_RETURN_IF_ERROR(ready());
    ACCORD_RETURN_IF_ERROR(publish(Deadline::after(job.timeout)));
    version_ = job.version;
    return published_->records();
  });
}

StatusOr<SyncReport> TrainerWorkerImpl::sync(const SyncJob& job) {
  return together([&]() -> StatusOr<SyncReport> {
    if (!weights_group_ || version_ != job.version) {
      return internal_error("sync of version {}, but the arena was not exported as that version",
                            job.version);
    }
    ACCORD_ASSIGN_OR_RETURN(const weights::UpdateReport report, send(job));
    return SyncReport{report.version, report.bytes, report.attempts};
  });
}

StatusOr<weights::UpdateReport> TrainerWorkerImpl::send(const SyncJob& job) {
  const Deadline deadline = Deadline::after(job.timeout);
  const std::vector<std::string> digests = published_->digests();
  if (!updates_) {
    weights::UpdateOptions options;
    options.version = job.version;
    return weights::send_update(policy_->manifest, arena_->host().data(), {digests, published_->owners(), {}},
                                options, make_update_channel(*weights_group_, deadline));
  }
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  const weights::UpdateOptions options = DeviceUpdates::options(job.version);
  std::span<std::byte> passing;
  if (pool_size() > 1) {
    ACCORD_ASSIGN_OR_RETURN(passing, updates_->scratch(options.chunk_bytes));
  }
  return weights::send_update(policy_->manifest, arena_->data(), {digests, published_->owners(), passing},
                              options, updates_->channel(*weights_group_, deadline));
}

StatusOr<HeldWeights> TrainerWorkerImpl::held_weights() {
  if (!arena_) {
    return internal_error("weights were asked for before setup");
  }
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_RETURN_IF_ERROR(arena_->download());
  return hold_weights(version_, policy_->manifest, arena_->host(), *pool_);
}

// Trajectories come from their holders, grouped by holder, and are put back into the job's order.
StatusOr<std::vector<trainer::TrainSample>> TrainerWorkerImpl::gather(const TrainJob& job,
                                                                      std::span<const size_t> mine) const {
  std::map<std::string, std::vector<size_t>> by_holder;
  for (size_t i = 0; i < mine.size(); ++i) {
    by_holder[job.samples[mine[i]].holder].push_back(i);
  }
  std::vector<trainer::TrainSample> samples(mine.size());
  for (const auto& [holder, indices] : by_holder) {
    std::vector<SampleKey> keys;
    for (const size_t i : indices) {
      keys.push_back(job.samples[mine[i]].key);
    }
    ACCORD_ASSIGN_OR_RETURN(std::vector<Sample> fetched, fetch_(holder, keys));
    for (size_t j = 0; j < indices.size(); ++j) {
      Sample& sample = fetched[j];
      const TrainSampleRef& ref = job.samples[mine[indices[j]]];
      // A recorded batch may be of any version: the mismatch metrics say how far it is from this policy.
      const bool other_version = sample.weight_version != job.weight_version && recorded_path(holder).empty();
      if (sample.key != ref.key || other_version ||
          static_cast<int32_t>(sample.tokens.size()) != ref.num_tokens ||
          sample.response_length() != ref.response_length) {
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
      if (policy_->recipe.algorithm.routing_replay) {
        out.routing = std::move(sample.routing);
        ACCORD_RETURN_IF_ERROR(annotate(trainer::check_recorded_routing(out, policy_->hf.model),
                                        fmt::format("{} sent {}", holder, trainer::describe(out.key))));
      }
      out.advantage = ref.advantage;
      out.temperature = static_cast<float>(policy_->recipe.rollout.temperature);
    }
  }
  return samples;
}

StatusOr<Metrics> TrainerWorkerImpl::train(const TrainJob& job) {
  return together([&]() -> StatusOr<Metrics> {
    ACCORD_RETURN_IF_ERROR(ready());
    ACCORD_ASSIGN_OR_RETURN(Metrics metrics, train_samples(job));
    log_memory(job.step);
    return metrics;
  });
}

// On a device, what a step took where no step before took as much.
void TrainerWorkerImpl::log_memory(uint64_t step) {
  const trainer::TrainerMemory memory = trainer_->memory();
  const int64_t total =
      memory.masters + memory.moments + memory.gradients + memory.activations + memory.workspace;
  if (total <= most_memory_) {
    return;
  }
  most_memory_ = total;
  const auto mib = [](int64_t bytes) { return static_cast<double>(bytes) / (1 << 20); };
  log::info(
      "step {}: {:.0f} MiB on the device: masters {:.0f}, moments {:.0f}, gradients {:.0f}, activations "
      "{:.0f}, "
      "workspace {:.0f}",
      step, mib(total), mib(memory.masters), mib(memory.moments), mib(memory.gradients),
      mib(memory.activations), mib(memory.workspace));
}

StatusOr<Metrics> TrainerWorkerImpl::train_samples(const TrainJob& job) {
  if (version_ != job.weight_version) {
    return internal_error("step {} trains on samples of version {}, but the arena does not hold that version",
                          job.step, job.weight_version);
  }
  ACCORD_RETURN_IF_ERROR(enter(Phase::kRl));
  const recipe::Recipe& recipe = policy_->recipe;
  Metrics metrics;
  size_t updates = 0;
  if (!job.samples.empty()) {
    std::vector<size_t> mine;
    for (size_t i = 0; i < job.samples.size(); ++i) {
      if (job.samples[i].rank == rank_) {
        mine.push_back(i);
      }
    }
    ACCORD_ASSIGN_OR_RETURN(std::vector<trainer::TrainSample> samples, gather(job, mine));
    if (recipe.algorithm.importance_correction != recipe::ImportanceCorrection::kNone) {
      ACCORD_ASSIGN_OR_RETURN(std::vector<std::vector<float>> old,
                              trainer_->logprobs(samples, Deadline::after(job.timeout)));
      for (size_t i = 0; i < samples.size(); ++i) {
        samples[i].old_logprobs = std::move(old[i]);
      }
    }
    if (reference_) {
      ACCORD_RETURN_IF_ERROR(reference_->fill(samples));
    }
    version_.reset();
    ACCORD_ASSIGN_OR_RETURN(metrics, update(job, samples, mine, updates));
  }
  if (recipe.trainer.updates_per_step > 1 || recipe.algorithm.filter_zero_std || recipe.reward.drops()) {
    metrics["train/updates"] = static_cast<double>(updates);
  }
  return metrics;
}

// Every update but the last leaves its weights in the arena, from which the next one computes. Rollout
// workers do not see those. `mine`: which of the job's samples these are, ascending.
StatusOr<Metrics> TrainerWorkerImpl::update(const TrainJob& job, std::span<trainer::TrainSample> samples,
                                            std::span<const size_t> mine, size_t& updates) {
  const recipe::Recipe& recipe = policy_->recipe;
  const Deadline deadline = Deadline::after(job.timeout);
  const std::vector<trainer::SampleRange> ranges =
      trainer::split_updates(static_cast<int64_t>(job.samples.size()), recipe.rollout.samples_per_prompt,
                             recipe.trainer.updates_per_step);
  std::vector<trainer::StepReport> reports;
  size_t next = 0;  // of mine
  for (const trainer::SampleRange& range : ranges) {
    ACCORD_RETURN_IF_ERROR(publish(deadline));
    trainer::BatchTotals totals{0, static_cast<int64_t>(range.count)};
    for (const TrainSampleRef& ref : std::span(job.samples).subspan(range.begin, range.count)) {
      totals.num_tokens += ref.response_length;
    }
    std::vector<int64_t> places;
    const size_t begin = next;
    for (; next < mine.size() && mine[next] < range.begin + range.count; ++next) {
      places.push_back(static_cast<int64_t>(mine[next]));
    }
    StatusOr<trainer::StepReport> report =
        trainer_->train_step(samples.subspan(begin, next - begin), job.step, totals, places, deadline);
    if (!report.ok()) {
      return ranges.size() == 1 ? report.status()
                                : annotate(report.status(),
                                           fmt::format("update {} of {}", reports.size() + 1, ranges.size()));
    }
    fresh_ = false;
    reports.push_back(*std::move(report));
  }
  updates = reports.size();
  return trainer::combine_updates(reports);
}

StatusOr<Metrics> TrainerWorkerImpl::sft(const SftJob& job) {
  return together([&]() -> StatusOr<Metrics> {
    ACCORD_RETURN_IF_ERROR(ready());
    return sft_samples(job);
  });
}

StatusOr<Metrics> TrainerWorkerImpl::sft_samples(const SftJob& job) {
  ACCORD_RETURN_IF_ERROR(enter(Phase::kSft));
  const Deadline deadline = Deadline::after(job.timeout);
  trainer::BatchTotals totals{0, static_cast<int64_t>(job.samples.size())};
  std::vector<int64_t> lengths;
  for (const SftSample& sample : job.samples) {
    lengths.push_back(static_cast<int64_t>(sample.tokens.size()));
    totals.num_tokens += static_cast<int64_t>(sample.tokens.size()) - sample.prompt_length;
  }
  const std::vector<int32_t> ranks = trainer::assign_samples(lengths, pool_size());
  std::vector<trainer::SftSample> samples;
  std::vector<int64_t> places;
  for (size_t i = 0; i < job.samples.size(); ++i) {
    if (ranks[i] == rank_) {
      samples.push_back({job.samples[i].tokens, job.samples[i].prompt_length});
      places.push_back(static_cast<int64_t>(i));
    }
  }
  version_.reset();
  ACCORD_RETURN_IF_ERROR(publish(deadline));
  ACCORD_ASSIGN_OR_RETURN(trainer::SftReport report,
                          trainer_->sft_step(samples, job.step, totals, places, deadline));
  fresh_ = false;
  return std::move(report.metrics);
}

Status TrainerWorkerImpl::save(const SaveJob& job) {
  return together([&]() -> Status {
    ACCORD_RETURN_IF_ERROR(ready());
    ACCORD_RETURN_IF_ERROR(save_training_state(job.directory, rank_, pool_size(), *trainer_));
    if (!job.save_hf) {
      return absl::OkStatus();
    }
    return save_hf_weights(job.directory + "/" + kHfDirectory, policy_->hf, policy_->recipe.model.checkpoint,
                           *trainer_, trainers_group_.get(), Deadline::after(job.timeout));
  });
}

}  // namespace

std::unique_ptr<TrainerWorker> make_trainer_worker(int32_t rank, comm::Store& store, FetchSamples fetch,
                                                   const Device& device) {
  return std::make_unique<TrainerWorkerImpl>(rank, store, std::move(fetch), device);
}

}  // namespace accord::controller
