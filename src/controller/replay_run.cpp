#include "controller/replay_run.hpp"

#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>
#include <memory>
#include <optional>

#include "base/log.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/run_checkpoint.hpp"
#include "comm/store.hpp"
#include "controller/device_choice.hpp"
#include "controller/recorded_run.hpp"
#include "controller/step_batch.hpp"
#include "controller/trainer_pool.hpp"
#include "controller/trainer_worker.hpp"
#include "precision/plan.hpp"
#include "recipe/recipe.hpp"
#include "weights/manifest.hpp"

namespace accord::controller {
namespace {

struct Start {
  uint64_t step = 0;
  std::string directory;  // of the checkpoint; empty: the model's weights
};

// The newest checkpoint before `step` that verifies.
StatusOr<Start> find_start(const std::string& run_dir, const recipe::Recipe& recipe, uint64_t step) {
  const std::string checkpoints = run_dir + "/checkpoints";
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int64_t> found, checkpoint::list_checkpoints(checkpoints));
  for (auto it = found.rbegin(); it != found.rend(); ++it) {
    if (static_cast<uint64_t>(*it) >= step) {
      continue;
    }
    const std::string directory = checkpoints + "/" + checkpoint::checkpoint_name(*it);
    if (const Status status = checkpoint::verify_checkpoint(directory); !status.ok()) {
      log::warn("checkpoint of step {} is not used: {}", *it, message_of(status));
      continue;
    }
    return Start{static_cast<uint64_t>(*it), directory};
  }
  if (recipe.sft) {
    return data_error(
        "{}: no checkpoint before step {}, and the weights after the supervised warm start (sft) are "
        "recorded "
        "nowhere else; replay a later step, or run with a smaller checkpoint.every",
        run_dir, step);
  }
  return Start{};
}

Status require_batches(const std::string& run_dir, uint64_t first, uint64_t last) {
  for (uint64_t step = first; step <= last; ++step) {
    const std::string path = fmt::format("{}/{}/{}", run_dir, kBatchesDirectory, batch_file_name(step));
    std::error_code none;
    if (!std::filesystem::exists(path, none)) {
      return data_error(
          "{}: no such batch; replaying step {} takes those of the steps {} to {} (run with "
          "debug.dump_batches: true, and checkpoint.every for a nearer start)",
          path, last, first, last);
    }
  }
  return absl::OkStatus();
}

class Replay {
 public:
  Replay(std::string run_dir, const recipe::Recipe& recipe) : run_dir_(std::move(run_dir)), recipe_(recipe) {}

  // The run's own trainer pool in this process: the order of sums depends on its size and its devices.
  Status make_trainers(const std::vector<DeviceId>& devices) {
    for (size_t rank = 0; rank < devices.size(); ++rank) {
      ACCORD_ASSIGN_OR_RETURN(const Device device, Device::open(devices[rank]));
      pools_.trainer.push_back(make_trainer_worker(static_cast<int32_t>(rank), store_, nullptr, device));
    }
    return absl::OkStatus();
  }

  StatusOr<ReplayedRun> run(const Start& start, uint64_t last) {
    const std::string ledger = run_dir_ + "/ledger.jsonl";
    ACCORD_ASSIGN_OR_RETURN(const RecordedVersion first, read_ledger_version(ledger, start.step));
    ACCORD_ASSIGN_OR_RETURN(checkpoint::HfConfig hf, checkpoint::read_hf_config(recipe_.model.checkpoint));
    hf.model.mla.form = recipe_.model.mla;
    ACCORD_ASSIGN_OR_RETURN(const precision::PrecisionPlan plan,
                            precision::build_plan(hf.model, recipe_.precision));
    ACCORD_ASSIGN_OR_RETURN(const WeightManifest manifest, weights::build_manifest(hf.model, plan));
    if (first.plan_digest != plan.digest) {
      log::warn("the precision plan of the run ({}) is not this recipe's ({})", first.plan_digest,
                plan.digest);
    }
    const SetupJob setup{recipe::to_yaml(recipe_), plan.digest, manifest.digest, start.directory};
    ACCORD_RETURN_IF_ERROR(for_all(pools_.trainer.size(),
                                   [&](size_t rank) { return pools_.trainer[rank]->setup(setup).status(); }));
    ACCORD_RETURN_IF_ERROR(join_groups(pools_, recipe_));
    ReplayedRun out;
    out.start = start.directory.empty() ? recipe_.model.checkpoint : start.directory;
    ACCORD_ASSIGN_OR_RETURN(ReplayedStep beginning, compare_weights(start.step));
    out.steps.push_back(std::move(beginning));
    for (uint64_t step = start.step + 1; step <= last; ++step) {
      ACCORD_ASSIGN_OR_RETURN(ReplayedStep replayed, replay_step(step));
      out.steps.push_back(std::move(replayed));
    }
    return out;
  }

 private:
  StatusOr<ReplayedStep> replay_step(uint64_t step) {
    const std::string path = fmt::format("{}/{}/{}", run_dir_, kBatchesDirectory, batch_file_name(step));
    ACCORD_ASSIGN_OR_RETURN(const StepBatch batch, read_step_batch(path));
    if (batch.step != step) {
      return data_error("{}: holds the batch of step {}", path, batch.step);
    }
    ACCORD_ASSIGN_OR_RETURN(const Metrics recorded, read_step_metrics(run_dir_ + "/metrics.jsonl", step));
    TrainJob job = recorded_train_job(batch, path, std::chrono::seconds(recipe_.deadlines.train));
    job.weight_version =
        step - 1;  // what the arena holds; a batch of another version is trained on as it was
    assign_ranks(recipe_, static_cast<int32_t>(pools_.trainer.size()), job.samples);
    ACCORD_ASSIGN_OR_RETURN(const Metrics replayed, on_all_trainers(pools_, [&](TrainerWorker& trainer) {
                              return trainer.train(job);
                            }));
    ACCORD_ASSIGN_OR_RETURN(ReplayedStep out, compare_weights(step));
    for (const auto& [name, value] : replayed) {
      const auto found = recorded.find(name);
      if (found == recorded.end()) {
        return data_error("{}/metrics.jsonl: step {} has no {}; was it trained under another recipe?",
                          run_dir_, step, name);
      }
      out.values.push_back({name, found->second, value});
    }
    return out;
  }

  // Exports the masters as `version` and compares the bytes' digests with the ledger's.
  StatusOr<ReplayedStep> compare_weights(uint64_t version) {
    const ExportJob job{version, std::chrono::seconds(recipe_.deadlines.sync)};
    ACCORD_ASSIGN_OR_RETURN(
        const std::vector<TensorRecord> records,
        on_all_trainers(pools_, [&](TrainerWorker& trainer) { return trainer.export_weights(job); }));
    ACCORD_ASSIGN_OR_RETURN(const RecordedVersion recorded,
                            read_ledger_version(run_dir_ + "/ledger.jsonl", version));
    std::map<std::string, std::string> digests;
    for (const RecordedVersion::Tensor& tensor : recorded.tensors) {
      digests[tensor.name] = tensor.digest;
    }
    ReplayedStep out;
    out.step = version;
    out.tensors = records.size();
    for (const TensorRecord& record : records) {
      const auto found = digests.find(record.name);
      const std::string expected = found == digests.end() ? "" : found->second;
      if (expected != record.digest) {
        out.differences.push_back({record.name, expected, record.digest});
      }
    }
    return out;
  }

  const std::string run_dir_;
  const recipe::Recipe& recipe_;
  comm::InMemoryStore store_;
  Pools pools_;
};

}  // namespace

bool ReplayedValue::equal() const {
  return recorded == replayed || (std::isnan(recorded) && std::isnan(replayed));
}

bool ReplayedStep::equal() const {
  return differences.empty() &&
         std::all_of(values.begin(), values.end(), [](const ReplayedValue& value) { return value.equal(); });
}

bool ReplayedRun::equal() const {
  return std::all_of(steps.begin(), steps.end(), [](const ReplayedStep& step) { return step.equal(); });
}

StatusOr<ReplayedRun> replay_run(const std::string& run_dir, uint64_t step,
                                 const std::vector<std::string>& overrides) {
  ACCORD_ASSIGN_OR_RETURN(recipe::Recipe recipe, recipe::load_recipe(run_dir + "/recipe.yaml", overrides));
  ACCORD_ASSIGN_OR_RETURN(const Start start, find_start(run_dir, recipe, step));
  ACCORD_RETURN_IF_ERROR(require_batches(run_dir, start.step + 1, step));
  ACCORD_ASSIGN_OR_RETURN(const PoolDevices devices, choose_devices(recipe, this_machine()));
  recipe = with_devices(std::move(recipe), devices);
  Replay replay(run_dir, recipe);
  ACCORD_RETURN_IF_ERROR(replay.make_trainers(devices.trainer));
  return replay.run(start, step);
}

}  // namespace accord::controller
