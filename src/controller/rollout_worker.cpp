#include "controller/rollout_worker.hpp"

#include <map>
#include <mutex>
#include <optional>

#include "base/log.hpp"
#include "comm/gloo_communicator.hpp"
#include "controller/engine_limits.hpp"
#include "controller/groups.hpp"
#include "controller/policy_setup.hpp"
#include "controller/update_channel.hpp"
#include "controller/weight_check.hpp"
#include "device/thread_pool.hpp"
#include "model/forward.hpp"
#include "precision/expert_shards.hpp"
#include "rollout/engine.hpp"
#include "text/tokenizer.hpp"
#include "weights/arena.hpp"
#include "weights/transaction.hpp"

namespace accord::controller {
namespace {

class RolloutWorkerImpl final : public RolloutWorker {
 public:
  RolloutWorkerImpl(int32_t rank, comm::Store& store) : rank_(rank), store_(store) {}

  std::string address() const override { return ""; }  // known to the process that serves this worker
  StatusOr<SetupReport> setup(const SetupJob& job) override;
  Status join(const GroupJob& job) override;
  StatusOr<SyncReport> sync(const SyncJob& job) override;
  StatusOr<HeldWeights> held_weights() override;
  Status generate(const GenerateJob& job, const OnSample& on_sample) override;
  StatusOr<std::vector<Sample>> fetch(std::span<const SampleKey> keys) override;
  Status release(uint64_t step) override;

 private:
  void corrupt_if_asked(uint64_t version);

  const int32_t rank_;
  comm::Store& store_;
  std::optional<PolicySetup> policy_;
  std::unique_ptr<ThreadPool> pool_;
  std::unique_ptr<weights::Arena> arena_;
  std::unique_ptr<weights::UpdateReceiver> receiver_;
  std::unique_ptr<text::Tokenizer> tokenizer_;
  std::unique_ptr<model::Model> model_;
  std::unique_ptr<rollout::Engine> engine_;
  std::unique_ptr<Communicator> group_;
  Buffer staging_;  // only where the KV cache is smaller than the arena

  std::mutex held_mutex_;
  std::map<SampleKey, Sample> held_;
};

StatusOr<SetupReport> RolloutWorkerImpl::setup(const SetupJob& job) {
  ACCORD_ASSIGN_OR_RETURN(policy_, make_policy_setup(job, precision::kRolloutExpertShards));
  const recipe::Recipe& recipe = policy_->recipe;
  const ModelConfig& config = policy_->hf.model;
  pool_ = std::make_unique<ThreadPool>(worker_threads(recipe.rollout.threads, recipe.rollout.workers));
  ACCORD_ASSIGN_OR_RETURN(arena_, weights::Arena::create(policy_->manifest.arena_bytes));
  receiver_ = std::make_unique<weights::UpdateReceiver>(policy_->manifest, arena_->data(), *pool_);
  ACCORD_ASSIGN_OR_RETURN(tokenizer_, text::Tokenizer::load(recipe.model.checkpoint));
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights bound,
                          model::bind_weights(config, policy_->manifest, arena_->data()));
  ACCORD_ASSIGN_OR_RETURN(model_,
                          model::Model::create(config, std::move(bound), recipe.model.compute_dtype, *pool_));

  rollout::EngineOptions options;
  options.max_batch_rows = static_cast<int32_t>(recipe.rollout.max_batch_rows);
  options.prefill_chunk = static_cast<int32_t>(recipe.rollout.prefill_chunk);
  options.kv_cache_tokens = kv_cache_rows(recipe, kv_row_bytes(config, size_of(recipe.model.compute_dtype)));
  options.run_seed = recipe.run.seed;
  options.record_routing = recipe.algorithm.routing_replay;
  ACCORD_ASSIGN_OR_RETURN(
      engine_, rollout::Engine::create(*model_, options, *pool_, [this](std::span<const int32_t> ids) {
        return tokenizer_->decode(ids, true);
      }));
  return SetupReport{"cpu", policy_->manifest.arena_bytes, pool_->num_threads()};
}

Status RolloutWorkerImpl::join(const GroupJob& job) {
  if (job.role != GroupRole::kWeights) {
    return internal_error("group '{}' is for trainers, this is a rollout worker", job.group);
  }
  ACCORD_ASSIGN_OR_RETURN(group_, join_group(job, store_));
  return absl::OkStatus();
}

StatusOr<SyncReport> RolloutWorkerImpl::sync(const SyncJob& job) {
  if (!group_ || !receiver_) {
    return internal_error("sync of version {} before setup and join", job.version);
  }
  // Nothing is generated during a sync, so the KV cache doubles as the receive buffer.
  std::span<std::byte> staging = engine_->cache_memory();
  if (static_cast<int64_t>(staging.size()) < policy_->manifest.arena_bytes) {
    staging_.ensure(static_cast<size_t>(policy_->manifest.arena_bytes));
    staging = {staging_.as<std::byte>(), staging_.capacity()};
  }
  weights::UpdateOptions options;
  options.version = job.version;
  ACCORD_ASSIGN_OR_RETURN(
      const weights::UpdateReport report,
      receiver_->receive(staging, options, make_update_channel(*group_, Deadline::after(job.timeout))));
  corrupt_if_asked(job.version);
  engine_->set_weight_version(report.version);
  return SyncReport{report.version, report.bytes, report.attempts};
}

StatusOr<HeldWeights> RolloutWorkerImpl::held_weights() {
  if (!receiver_) {
    return internal_error("weights were asked for before setup");
  }
  return hold_weights(receiver_->version(), policy_->manifest, *arena_, *pool_);
}

// The negative control of the equality check (recipe key debug.corrupt_rollout): without the digests'
// knowledge one bit of the served bytes differs from the trainer's.
void RolloutWorkerImpl::corrupt_if_asked(uint64_t version) {
  const auto& corrupt = policy_->recipe.debug.corrupt_rollout;
  if (!corrupt || corrupt->rank != rank_ || corrupt->version != static_cast<int64_t>(version) ||
      corrupt->byte >= arena_->size()) {
    return;
  }
  constexpr std::byte kFlippedBit{0x40};
  arena_->data()[corrupt->byte] ^= kFlippedBit;
  log::warn("debug.corrupt_rollout: byte {} of the arena was changed on purpose at version {}", corrupt->byte,
            version);
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
  engine_->reset_stats();
  ACCORD_RETURN_IF_ERROR(engine_->generate(requests, callbacks).status());
  const rollout::EngineStats& stats = engine_->stats();
  log::info("{}: {} samples, {} new tokens in {} forwards ({} prompt rows, {} preemptions)",
            job.keep ? fmt::format("step {}", job.step) : "evaluation",
            requests.size() * static_cast<size_t>(job.num_samples), stats.generated_tokens, stats.forwards,
            stats.prefill_rows, stats.preemptions);
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

std::unique_ptr<RolloutWorker> make_rollout_worker(int32_t rank, comm::Store& store) {
  return std::make_unique<RolloutWorkerImpl>(rank, store);
}

}  // namespace accord::controller
