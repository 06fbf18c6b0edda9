#include "controller/sample_rewards.hpp"

#include <algorithm>
#include <cmath>

namespace accord::controller {

StatusOr<std::vector<reward::Reward>> score_samples(const RunInputs& inputs, const std::string& set,
                                                    uint64_t step, std::span<const RolledSample> samples,
                                                    std::span<const PromptSource> sources) {
  if (!inputs.scorer) {
    return internal_error("reward {}: no scorer was started", inputs.recipe.reward.type);
  }
  std::vector<reward::ScoreRequest> requests;
  requests.reserve(samples.size());
  for (const RolledSample& sample : samples) {
    const text::Dataset& data = *sources[sample.prompt].data;
    const int64_t index = sources[sample.prompt].index;
    reward::ScoreRequest& request = requests.emplace_back();
    request.set = set;
    request.step = step;
    request.prompt_id = sample.summary.key.prompt_id;
    request.sample_index = sample.summary.key.sample_index;
    request.prompt = data.text(index);
    request.response = sample.summary.response_text;
    request.label = data.at(index).label;
    request.truncated = sample.summary.truncated;
    if (inputs.recipe.reward.external) {
      request.messages = data.record(index).messages;
      request.metadata = data.record(index).metadata;
    }
  }
  ACCORD_ASSIGN_OR_RETURN(std::vector<reward::Reward> rewards, inputs.scorer->score(requests));
  for (size_t i = 0; i < rewards.size(); ++i) {
    if (!std::isfinite(rewards[i].score) && !rewards[i].failed) {
      return data_error("reward {}: score {} for prompt {} ('{}'), sample {}", inputs.recipe.reward.type,
                        rewards[i].score, requests[i].prompt_id, requests[i].prompt,
                        requests[i].sample_index);
    }
  }
  return rewards;
}

Metrics failure_metrics(const RunInputs& inputs, const std::string& prefix,
                        std::span<const reward::Reward> rewards) {
  if (!inputs.scorer->scores_failures()) {
    return {};
  }
  const auto failed = std::count_if(rewards.begin(), rewards.end(), [](const auto& r) { return r.failed; });
  return {{prefix + "reward_failures", static_cast<double>(failed) / static_cast<double>(rewards.size())}};
}

}  // namespace accord::controller
