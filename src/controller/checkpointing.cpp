#include "controller/checkpointing.hpp"

#include <nlohmann/json.hpp>

#include "base/files.hpp"
#include "base/log.hpp"
#include "checkpoint/run_checkpoint.hpp"

namespace accord::controller {
namespace {

constexpr int64_t kMaxStateBytes = 1 << 20;

// What the order of prompts depends on: the number of records; of several files, with the weight of each.
nlohmann::json train_records(const RunInputs& inputs) {
  nlohmann::json files = nlohmann::json::array();
  for (const TrainInput& train : inputs.train) {
    files.push_back(nlohmann::json::array({train.data->size(), train.options.weight}));
  }
  return files.size() == 1 ? files[0][0] : files;
}

// Null where a checkpoint may be continued by this run, else the reason against it.
Status check_state(const RunInputs& inputs, const std::string& directory) {
  const std::string path = directory + "/" + kRunStateFile;
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxStateBytes));
  const nlohmann::json state = nlohmann::json::parse(text, nullptr, /*allow_exceptions=*/false);
  if (!state.is_object()) {
    return data_error("{}: is not a JSON object", path);
  }
  const auto field = [&](const char* name) { return state.value(name, nlohmann::json()); };
  if (field("manifest_digest") != inputs.manifest.digest) {
    return recipe_error(
        "{}: was written under another precision plan (manifest {}, this recipe gives {}); resume with the "
        "recipe of "
        "the run, or start another run.dir",
        path, field("manifest_digest").dump(), inputs.manifest.digest);
  }
  if (field("seed") != inputs.recipe.run.seed) {
    return recipe_error("{}: was written with run.seed {}, the recipe says {}", path, field("seed").dump(),
                        inputs.recipe.run.seed);
  }
  if (field("prompts_per_step") != inputs.recipe.rollout.prompts_per_step) {
    return recipe_error(
        "{}: was written with rollout.prompts_per_step {}, the recipe says {}: prompts would be skipped or "
        "repeated",
        path, field("prompts_per_step").dump(), inputs.recipe.rollout.prompts_per_step);
  }
  if (const nlohmann::json records = train_records(inputs); field("train_records") != records) {
    return recipe_error(
        "{}: was written with {} training records, data.train has {}{}: the order of prompts would differ",
        path, field("train_records").dump(), records.dump(),
        records.is_array() ? " (of each file, with its weight)" : "");
  }
  return absl::OkStatus();
}

}  // namespace

Status save_checkpoint(const RunInputs& inputs, const Pools& pools, RunDirectory& directory, uint64_t step,
                       uint64_t version) {
  ACCORD_ASSIGN_OR_RETURN(
      checkpoint::CheckpointWriter writer,
      checkpoint::CheckpointWriter::begin(directory.checkpoints(), static_cast<int64_t>(step)));
  const SaveJob job{writer.directory(), inputs.recipe.checkpoint.save_hf,
                    std::chrono::seconds(inputs.recipe.deadlines.checkpoint)};
  ACCORD_RETURN_IF_ERROR(
      for_all(pools.trainer.size(), [&](size_t rank) { return pools.trainer[rank]->save(job); }));
  nlohmann::ordered_json state;
  state["step"] = step;
  state["version"] = version;
  state["seed"] = inputs.recipe.run.seed;
  state["prompts_per_step"] = inputs.recipe.rollout.prompts_per_step;
  state["train_records"] = train_records(inputs);
  state["plan_digest"] = inputs.plan.digest;
  state["manifest_digest"] = inputs.manifest.digest;
  ACCORD_RETURN_IF_ERROR(writer.add_text(kRunStateFile, state.dump(2) + "\n"));
  ACCORD_RETURN_IF_ERROR(writer.add_text("recipe.yaml", inputs.recipe_yaml));
  ACCORD_ASSIGN_OR_RETURN(const std::string path, writer.commit());
  log::info("checkpoint {}", path);
  if (inputs.recipe.checkpoint.keep > 0) {
    ACCORD_RETURN_IF_ERROR(checkpoint::prune_checkpoints(
        directory.checkpoints(), inputs.recipe.checkpoint.keep, static_cast<int64_t>(step)));
  }
  return absl::OkStatus();
}

StatusOr<LoopOptions> find_resume_point(const RunInputs& inputs, const RunDirectory& directory, bool resume) {
  ACCORD_RETURN_IF_ERROR(checkpoint::remove_interrupted(directory.checkpoints()).status());
  if (!resume) {
    return LoopOptions{};
  }
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::CheckpointSearch search,
                          checkpoint::find_newest_verified(directory.checkpoints()));
  for (const checkpoint::SkippedCheckpoint& skipped : search.skipped) {
    log::warn("checkpoint of step {} is not used: {}", skipped.step, skipped.reason);
  }
  if (!search.newest) {
    if (!search.skipped.empty()) {
      return data_error("{}: none of its checkpoints verifies; see the log for each reason",
                        directory.checkpoints());
    }
    log::warn("--resume: {} holds no checkpoint yet; starting from step 1", directory.path());
    return LoopOptions{};
  }
  ACCORD_RETURN_IF_ERROR(check_state(inputs, search.newest->path));
  if (search.newest->step >= inputs.recipe.run.steps) {
    return usage_error("{} is at step {} already, and run.steps is {}; ask for more with --steps",
                       directory.path(), search.newest->step, inputs.recipe.run.steps);
  }
  log::info("resuming from {} (the newest checkpoint that verifies): next is step {}", search.newest->path,
            search.newest->step + 1);
  return LoopOptions{static_cast<uint64_t>(search.newest->step), search.newest->path, ""};
}

Status append_ledger(weights::Ledger& ledger, const RunInputs& inputs, const std::string& build,
                     uint64_t version, const std::vector<TensorRecord>& records) {
  weights::LedgerRecord record;
  record.step = static_cast<int64_t>(version);
  record.version = version;
  record.plan_digest = inputs.plan.digest;
  record.manifest_digest = inputs.manifest.digest;
  record.build_id = build;
  for (const TensorRecord& tensor : records) {
    record.tensors.push_back({tensor.name, tensor.digest, tensor.amax, tensor.saturated, tensor.flushed});
  }
  return ledger.append(record);
}

}  // namespace accord::controller
