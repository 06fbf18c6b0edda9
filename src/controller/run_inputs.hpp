#pragma once
// Everything a run reads, loaded and checked before anything is started or written.
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "controller/worker.hpp"
#include "precision/plan.hpp"
#include "recipe/recipe.hpp"
#include "reward/batch_scorer.hpp"
#include "text/chat_template.hpp"
#include "text/dataset.hpp"
#include "text/mixture_sampler.hpp"
#include "text/tokenizer.hpp"

namespace accord::controller {

struct TrainInput {
  recipe::TrainData options;
  std::unique_ptr<text::Dataset> data;
};

struct EvalInput {
  recipe::EvalData options;
  std::unique_ptr<text::Dataset> data;
};

struct RunInputs {
  recipe::Recipe recipe;
  std::string recipe_yaml;  // resolved
  ModelConfig config;
  std::optional<ModelConfig> reference;  // of the reference policy, where the recipe needs one
  precision::PrecisionPlan plan;
  WeightManifest manifest;
  std::unique_ptr<text::Tokenizer> tokenizer;
  std::vector<TrainInput> train;  // in the recipe's order, at least one
  std::vector<EvalInput> evals;
  std::vector<SftSample> sft;                   // empty: no warm start
  std::unique_ptr<reward::BatchScorer> scorer;  // null for an external reward until the process gives one
  std::vector<int32_t> stop_tokens;             // the model's and the tokenizer's end-of-text ids
};

// The order of the training prompts.
text::MixtureSampler prompt_order(const RunInputs& inputs);

// By the keys data.chat_...; errors name data.chat_template.
StatusOr<text::ChatTemplate> resolve_chat_template(const recipe::Recipe& recipe);

StatusOr<std::unique_ptr<RunInputs>> load_run_inputs(const recipe::Recipe& recipe);

}  // namespace accord::controller
