#include "controller/recorded_steps.hpp"

#include <algorithm>
#include <cmath>
#include <map>

#include "base/log.hpp"

namespace accord::controller {
namespace {

RoutingShape routing_shape(const ModelConfig& config) {
  return {num_moe_layers(config), config.num_experts_per_token, config.num_experts};
}

Status check_batch(const RunInputs& inputs, const std::string& path) {
  const recipe::Recipe& recipe = inputs.recipe;
  const StatusOr<StepBatch> batch = read_step_batch(path);
  if (!batch.ok()) {
    return annotate(batch.status(), "debug.load_batches");
  }
  if (batch->samples_per_prompt != recipe.rollout.samples_per_prompt) {
    return recipe_error("{}: has groups of {} samples, rollout.samples_per_prompt is {}", path,
                        batch->samples_per_prompt, recipe.rollout.samples_per_prompt);
  }
  if (batch->temperature != recipe.rollout.temperature) {
    return recipe_error("{}: was drawn at temperature {}, rollout.temperature is {}", path,
                        batch->temperature, recipe.rollout.temperature);
  }
  if (recipe.algorithm.routing_replay && batch->routing != routing_shape(inputs.config)) {
    return recipe_error("{}: {}, so that algorithm.routing_replay has nothing to follow (set false)", path,
                        batch->routing.num_experts == 0 ? "was recorded without routing"
                                                        : "has the routing of another model");
  }
  const auto longest = std::max_element(batch->samples.begin(), batch->samples.end(),
                                        [](const BatchSample& a, const BatchSample& b) {
                                          return a.sample.tokens.size() < b.sample.tokens.size();
                                        });
  const auto length = static_cast<int64_t>(longest->sample.tokens.size());
  if (length > recipe.trainer.tokens_per_microbatch) {
    return recipe_error("{}: has a sample of {} tokens, trainer.tokens_per_microbatch is {}", path, length,
                        recipe.trainer.tokens_per_microbatch);
  }
  if (batch->manifest_digest != inputs.manifest.digest) {
    log::warn("{}: was recorded under another precision plan or model (manifest {}, this run has {})", path,
              batch->manifest_digest, inputs.manifest.digest);
  }
  return absl::OkStatus();
}

}  // namespace

Status record_step(const RunInputs& inputs, const Pools& pools, std::span<const ScoredSample> samples,
                   const TrainJob& job, const std::string& build, const std::string& path) {
  std::map<size_t, std::vector<size_t>> by_worker;
  for (size_t i = 0; i < samples.size(); ++i) {
    by_worker[samples[i].rolled.worker].push_back(i);
  }
  std::map<SampleKey, double> advantages;
  for (const TrainSampleRef& ref : job.samples) {
    advantages[ref.key] = ref.advantage;
  }
  StepBatch batch;
  batch.step = job.step;
  batch.weight_version = job.weight_version;
  batch.seed = inputs.recipe.run.seed;
  batch.samples_per_prompt = inputs.recipe.rollout.samples_per_prompt;
  batch.temperature = inputs.recipe.rollout.temperature;
  batch.plan_digest = inputs.plan.digest;
  batch.manifest_digest = inputs.manifest.digest;
  batch.build = build;
  if (inputs.recipe.algorithm.routing_replay) {
    batch.routing = routing_shape(inputs.config);
  }
  batch.samples.resize(samples.size());
  for (const auto& [worker, indices] : by_worker) {
    std::vector<SampleKey> keys;
    for (const size_t i : indices) {
      keys.push_back(samples[i].rolled.summary.key);
    }
    ACCORD_ASSIGN_OR_RETURN(std::vector<Sample> fetched, pools.rollout[worker]->fetch(keys));
    for (size_t j = 0; j < indices.size(); ++j) {
      const ScoredSample& scored = samples[indices[j]];
      const auto advantage = advantages.find(keys[j]);
      BatchSample& out = batch.samples[indices[j]];
      out.sample = std::move(fetched[j]);
      out.reward = scored.reward;
      out.penalty = scored.penalty;
      out.trained = advantage != advantages.end();
      out.advantage = out.trained ? advantage->second : 0.0;
    }
  }
  return write_step_batch(path, batch);
}

Status check_recorded_steps(const RunInputs& inputs, uint64_t first, uint64_t last) {
  const std::string& source = *inputs.recipe.debug.load_batches;
  std::string checked;
  for (uint64_t step = first; step <= last; ++step) {
    const std::string path = batch_path(source, step);
    if (path == checked) {
      break;  // one file for every step
    }
    ACCORD_RETURN_IF_ERROR(check_batch(inputs, path));
    checked = path;
  }
  return absl::OkStatus();
}

StatusOr<std::vector<ScoredSample>> load_recorded_step(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const StepBatch batch, read_step_batch(path));
  std::vector<ScoredSample> samples;
  samples.reserve(batch.samples.size());
  for (size_t i = 0; i < batch.samples.size(); ++i) {
    const BatchSample& recorded = batch.samples[i];
    ScoredSample& out = samples.emplace_back();
    SampleSummary& summary = out.rolled.summary;
    summary.key = recorded.sample.key;
    summary.weight_version = recorded.sample.weight_version;
    summary.prompt_length = recorded.sample.prompt_length;
    summary.response_length = recorded.sample.response_length();
    summary.truncated = recorded.sample.finish == FinishReason::kLength;
    out.rolled.prompt = i / static_cast<size_t>(batch.samples_per_prompt);
    out.reward = recorded.reward;
    out.penalty = recorded.penalty;
    out.failed = std::isnan(recorded.reward);
  }
  return samples;
}

}  // namespace accord::controller
