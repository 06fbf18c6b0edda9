#include "controller/evaluation.hpp"

#include <cmath>

#include "base/log.hpp"
#include "controller/rollout_phase.hpp"
#include "controller/sample_rewards.hpp"

namespace accord::controller {
namespace {

// Evaluation draws have step numbers of their own, above any training step.
constexpr int kEvalSetShift = 48;

}  // namespace

SamplingParams training_sampling(const RunInputs& inputs) {
  const recipe::RolloutPart& rollout = inputs.recipe.rollout;
  SamplingParams params;
  params.temperature = static_cast<float>(rollout.temperature);
  params.top_p = static_cast<float>(rollout.top_p);
  params.top_k = static_cast<int32_t>(rollout.top_k);
  params.max_new_tokens = static_cast<int32_t>(rollout.max_response_tokens);
  params.stop_tokens = inputs.stop_tokens;
  params.stop_strings = rollout.stop;
  return params;
}

StatusOr<Metrics> evaluate_set(const RunInputs& inputs, const Pools& pools, size_t set, uint64_t step,
                               uint64_t weight_version) {
  const EvalInput& eval = inputs.evals[set];
  std::vector<Prompt> prompts;
  std::vector<PromptSource> sources;
  for (int64_t i = 0; i < eval.data->size(); ++i) {
    prompts.push_back(eval.data->at(i));
    sources.push_back({eval.data.get(), i});
  }
  RolloutPhase phase;
  phase.step = (static_cast<uint64_t>(set) + 1) << kEvalSetShift | step;
  phase.prompts = prompts;
  phase.num_samples = static_cast<int32_t>(eval.options.samples);
  phase.sampling = training_sampling(inputs);
  phase.sampling.temperature = static_cast<float>(eval.options.temperature);
  phase.sampling.top_p = static_cast<float>(eval.options.top_p);
  phase.sampling.max_new_tokens = static_cast<int32_t>(eval.options.max_response_tokens);
  phase.timeout = std::chrono::seconds(inputs.recipe.deadlines.rollout);
  ACCORD_ASSIGN_OR_RETURN(const std::vector<RolledSample> samples,
                          roll_out(pools, phase, weight_version, {}));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<reward::Reward> rewards,
                          score_samples(inputs, eval.options.name, step, samples, sources));

  double passed = 0.0;
  double reward = 0.0;
  double scored = 0.0;
  double length = 0.0;
  double truncated = 0.0;
  for (size_t i = 0; i < samples.size(); ++i) {
    passed += rewards[i].score > 0.0 && !rewards[i].failed ? 1.0 : 0.0;
    if (!std::isnan(rewards[i].score)) {
      reward += rewards[i].score;
      scored += 1.0;
    }
    length += samples[i].summary.response_length;
    truncated += samples[i].summary.truncated ? 1.0 : 0.0;
  }
  const auto count = static_cast<double>(samples.size());
  const std::string prefix = "eval/" + eval.options.name + "/";
  log::info("eval {} after step {}: pass1 {:.4f} on {} prompts", eval.options.name, step, passed / count,
            prompts.size());
  Metrics metrics = failure_metrics(inputs, prefix, rewards);
  metrics.merge(Metrics{{prefix + "pass1", passed / count},
                        {prefix + "response_length_mean", length / count},
                        {prefix + "truncated_fraction", truncated / count}});
  if (scored > 0.0) {
    metrics[prefix + "reward_mean"] = reward / scored;
  }
  return metrics;
}

}  // namespace accord::controller
