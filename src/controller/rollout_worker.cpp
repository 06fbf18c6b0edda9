#include "controller/rollout_worker.hpp"

#include <map>
#include <mutex>
#include <optional>

#include "base/log.hpp"
#include "comm/gloo_communicator.hpp"
#include "controller/engine_limits.hpp"
#include "controller/groups.hpp"
#include "controller/policy_arena.hpp"
#include "controller/policy_setup.hpp"
#include "controller/served_model.hpp"
#include "controller/update_channel.hpp"
#include "controller/weight_check.hpp"
#include "device/stream.hpp"
#include "device/thread_pool.hpp"
#include "precision/expert_shards.hpp"
#include "rollout/engine.hpp"
#include "text/tokenizer.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {
namespace {

class RolloutWorkerImpl final : public RolloutWorker {
 public:
  RolloutWorkerImpl(int32_t rank, comm::Store& store, const Device& device)
      : rank_(rank), store_(store), device_(device) {}

  std::string address() const override { return ""; }  // known to the process that serves this worker
  StatusOr<SetupReport> setup(const SetupJob& job) override;
  Status join(const GroupJob& job) override;
  StatusOr<SyncReport> sync(const SyncJob& job) override;
  StatusOr<HeldWeights> held_weights() override;
  Status generate(const GenerateJob& job, const OnSample& on_sample) override;
  StatusOr<std::vector<Sample>> fetch(std::span<const SampleKey> keys) override;
  Status release(uint64_t step) override;

 private:
  StatusOr<int64_t> cache_bytes() const;
  Status make_model();
  StatusOr<weights::UpdateReport> receive(const SyncJob& job);
  std::span<std::byte> staging();
  StatusOr<std::span<std::byte>> device_staging();
  Status corrupt_if_asked(uint64_t version);

  const int32_t rank_;
  comm::Store& store_;
  const Device device_;
  std::optional<PolicySetup> policy_;
  std::unique_ptr<ThreadPool> pool_;
  Stream stream_;
  std::unique_ptr<PolicyArena> arena_;
  std::unique_ptr<weights::UpdateReceiver> receiver_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<ServedModel> model_;
  std::unique_ptr<DeviceUpdates> updates_;  // where the group has device collectives
  std::unique_ptr<Communicator> group_;
  Buffer staging_;  // only on the CPU, where the KV cache is smaller than the arena

  std::mutex held_mutex_;
  std::map<SampleKey, Sample> held_;
};

StatusOr<SetupReport> RolloutWorkerImpl::setup(const SetupJob& job) {
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_ASSIGN_OR_RETURN(policy_, make_policy_setup(job, precision::kRolloutExpertShards));
  const recipe::Recipe& recipe = policy_->recipe;
  ACCORD_RETURN_IF_ERROR(check_device("rollout", recipe.rollout.device, recipe, device_));
  pool_ = std::make_unique<ThreadPool>(worker_threads(recipe.rollout.threads, recipe.rollout.workers));
  ACCORD_ASSIGN_OR_RETURN(stream_, Stream::create(device_));
  ACCORD_ASSIGN_OR_RETURN(arena_, PolicyArena::create(device_, &stream_, policy_->manifest.arena_bytes));
  weights::UpdateReceiver::Copy copy;
  if (device_.is_cuda()) {
    copy = [this](std::byte*, const std::byte* from, int64_t) { return arena_->take(from); };
  }
  receiver_ = std::make_unique<weights::UpdateReceiver>(policy_->manifest, arena_->data(), *pool_, copy);
  ACCORD_ASSIGN_OR_RETURN(tokenizer_, text::Tokenizer::load(recipe.model.checkpoint));
  ACCORD_RETURN_IF_ERROR(make_model());
  return report_of(device_, model_->products(), policy_->manifest.arena_bytes, pool_->num_threads());
}

Status RolloutWorkerImpl::make_model() {
  const recipe::Recipe& recipe = policy_->recipe;
  const ModelConfig& config = policy_->hf.model;
  ACCORD_ASSIGN_OR_RETURN(const int64_t budget, cache_bytes());
  ServedModelOptions options;
  options.compute_dtype = recipe.model.compute_dtype;
  options.engine.max_batch_rows = static_cast<int32_t>(recipe.rollout.max_batch_rows);
  options.engine.prefill_chunk = static_cast<int32_t>(recipe.rollout.prefill_chunk);
  options.engine.kv_cache_tokens =
      kv_cache_rows(recipe, kv_row_bytes(config, size_of(recipe.model.compute_dtype)), budget);
  options.engine.run_seed = recipe.run.seed;
  options.engine.cuda_graphs = recipe.rollout.cuda_graphs;
  options.expert_fragments = recipe.rollout.expert_fragments;
  options.engine.record_routing = recipe.algorithm.routing_replay;
  options.detokenize = [this](std::span<const int32_t> ids) { return tokenizer_->decode(ids, true); };
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights weights,
                          model::bind_weights(config, policy_->manifest, arena_->data()));
  if (device_.is_cuda()) {
    ACCORD_ASSIGN_OR_RETURN(model_,
                            serve_on_cuda(config, std::move(weights), device_, stream_, std::move(options)));
  } else {
    if (!recipe.rollout.cuda_graphs) log::warn("rollout.cuda_graphs: false does nothing on the CPU");
    if (!recipe.rollout.expert_fragments)
      log::warn("rollout.expert_fragments: false does nothing on the CPU");
    ACCORD_ASSIGN_OR_RETURN(model_, serve_on_cpu(config, std::move(weights), *pool_, std::move(options)));
  }
  return absl::OkStatus();
}

StatusOr<int64_t> RolloutWorkerImpl::cache_bytes() const {
  if (!device_.is_cuda()) {
    return kAutoCacheBytes;
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<DeviceInfo> devices, list_cuda_devices());
  return device_cache_bytes(device_, policy_->recipe.rollout.workers, static_cast<int64_t>(devices.size()),
                            expert_fragment_bytes(policy_->recipe, policy_->manifest));
}

Status RolloutWorkerImpl::join(const GroupJob& job) {
  if (!policy_) {
    return internal_error("join of group '{}' before setup", job.group);
  }
  if (job.role != GroupRole::kWeights) {
    return internal_error("group '{}' is for trainers, this is a rollout worker", job.group);
  }
  ACCORD_ASSIGN_OR_RETURN(group_, join_group(job, store_, device_));
  updates_.reset();
  if (group_->device_collectives() != nullptr) {
    ACCORD_ASSIGN_OR_RETURN(updates_, DeviceUpdates::create(policy_->manifest, device_));
  }
  return absl::OkStatus();
}

StatusOr<SyncReport> RolloutWorkerImpl::sync(const SyncJob& job) {
  if (!group_ || !receiver_) {
    return internal_error("sync of version {} before setup and join", job.version);
  }
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_ASSIGN_OR_RETURN(const weights::UpdateReport report, receive(job));
  ACCORD_RETURN_IF_ERROR(corrupt_if_asked(job.version));
  ACCORD_RETURN_IF_ERROR(model_->weights_changed());
  model_->engine().set_weight_version(report.version);
  return SyncReport{report.version, report.bytes, report.attempts};
}

StatusOr<weights::UpdateReport> RolloutWorkerImpl::receive(const SyncJob& job) {
  const Deadline deadline = Deadline::after(job.timeout);
  if (!updates_) {
    weights::UpdateOptions options;
    options.version = job.version;
    return receiver_->receive(staging(), options, make_update_channel(*group_, deadline));
  }
  ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> staging, device_staging());
  DeviceUpdates::Digest digest(*updates_, *group_, deadline);
  return receiver_->receive(staging, DeviceUpdates::options(job.version),
                            updates_->channel(*group_, deadline), &digest);
}

// Nothing is generated during a sync, so the KV cache doubles as the receive buffer where it is large enough.
// A device without device collectives receives on the host.
std::span<std::byte> RolloutWorkerImpl::staging() {
  const auto bytes = static_cast<size_t>(policy_->manifest.arena_bytes);
  if (arena_->on_device()) {
    return {arena_->host().data(), bytes};
  }
  const std::span<std::byte> cache = model_->engine().cache_memory();
  if (cache.size() >= bytes) {
    return cache;
  }
  staging_.ensure(bytes);
  return {staging_.as<std::byte>(), staging_.capacity()};
}

StatusOr<std::span<std::byte>> RolloutWorkerImpl::device_staging() {
  const int64_t bytes = policy_->manifest.arena_bytes;
  const std::span<std::byte> cache = model_->engine().device_cache_memory();
  if (static_cast<int64_t>(cache.size()) >= bytes) {
    return cache;
  }
  return updates_->scratch(bytes);
}

StatusOr<HeldWeights> RolloutWorkerImpl::held_weights() {
  if (!receiver_) {
    return internal_error("weights were asked for before setup");
  }
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_RETURN_IF_ERROR(arena_->download());
  return hold_weights(receiver_->version(), policy_->manifest, arena_->host(), *pool_);
}

// The negative control of the equality check (recipe key debug.corrupt_rollout): without the digests'
// knowledge one bit of the served bytes differs from the trainer's.
Status RolloutWorkerImpl::corrupt_if_asked(uint64_t version) {
  const auto& corrupt = policy_->recipe.debug.corrupt_rollout;
  if (!corrupt || corrupt->rank != rank_ || corrupt->version != static_cast<int64_t>(version) ||
      corrupt->byte >= policy_->manifest.arena_bytes) {
    return absl::OkStatus();
  }
  constexpr std::byte kFlippedBit{0x40};
  ACCORD_RETURN_IF_ERROR(arena_->corrupt(corrupt->byte, kFlippedBit));
  log::warn("debug.corrupt_rollout: byte {} of the arena was changed on purpose at version {}", corrupt->byte,
            version);
  return absl::OkStatus();
}

Status RolloutWorkerImpl::generate(const GenerateJob& job, const OnSample& on_sample) {
  if (!receiver_ || !receiver_->version()) {
    return internal_error("generate before any weights arrived");
  }
  std::vector<rollout::Request> requests;
  for (size_t i = 0; i < job.prompts.size(); ++i) {
    requests.push_back({job.step, job.prompts[i], job.num_samples, job.first_sample[i], job.sampling});
  }
  const auto report = [&](const Sample& sample) {
    const std::span<const int32_t> response =
        std::span(sample.tokens).subspan(static_cast<size_t>(sample.prompt_length));
    on_sample({sample.key, sample.weight_version, sample.prompt_length, sample.response_length(),
               sample.finish == FinishReason::kLength, tokenizer_->decode(response, /*skip_special=*/true)});
  };
  rollout::Callbacks callbacks;
  callbacks.on_sample = [&](Sample sample) {
    if (!job.keep) {
      report(sample);
      return;
    }
    std::unique_lock lock(held_mutex_);
    Sample& held = held_[sample.key];
    held = std::move(sample);
    lock.unlock();
    report(held);
  };
  rollout::Engine& engine = model_->engine();
  engine.reset_stats();
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_RETURN_IF_ERROR(engine.generate(requests, callbacks).status());
  const rollout::EngineStats& stats = engine.stats();
  log::info("{}: {} samples, {} new tokens in {} forwards ({} prompt rows, {} preemptions, {} graph replays)",
            job.keep ? fmt::format("step {}", job.step) : "evaluation",
            requests.size() * static_cast<size_t>(job.num_samples), stats.generated_tokens, stats.forwards,
            stats.prefill_rows, stats.preemptions, stats.graph_replays);
  return absl::OkStatus();
}

StatusOr<std::vector<Sample>> RolloutWorkerImpl::fetch(std::span<const SampleKey> keys) {
  const std::lock_guard lock(held_mutex_);
  std::vector<Sample> samples;
  samples.reserve(keys.size());
  for (const SampleKey& key : keys) {
    const auto it = held_.find(key);
    if (it == held_.end()) {
      return data_error("rollout/{} does not hold sample {} of prompt {} of step {}", rank_, key.sample_index,
                        key.prompt_id, key.step);
    }
    samples.push_back(it->second);
  }
  return samples;
}

Status RolloutWorkerImpl::release(uint64_t step) {
  const std::lock_guard lock(held_mutex_);
  std::erase_if(held_, [step](const auto& entry) { return entry.first.step <= step; });
  return absl::OkStatus();
}

}  // namespace

std::unique_ptr<RolloutWorker> make_rollout_worker(int32_t rank, comm::Store& store, const Device& device) {
  return std::make_unique<RolloutWorkerImpl>(rank, store, device);
}

}  // namespace accord::controller
