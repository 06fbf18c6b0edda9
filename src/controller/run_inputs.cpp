#include "controller/run_inputs.hpp"

#include <algorithm>

#include "checkpoint/hf_checkpoint.hpp"
#include "controller/model_rules.hpp"
#include "controller/reference_policy.hpp"
#include "controller/source_check.hpp"
#include "precision/expert_shards.hpp"
#include "text/sft_dataset.hpp"
#include "weights/manifest.hpp"

namespace accord::controller {
namespace {

text::OnBad to_text(recipe::OnBad policy) {
  return policy == recipe::OnBad::kSkip ? text::OnBad::kSkip : text::OnBad::kFail;
}

bool is_external(const recipe::Recipe& recipe) { return recipe.reward.external.has_value(); }

// Labels that no answer can match would make every reward the same: they are found before anything starts.
Status check_labels(const text::Dataset& data, const std::string& path, const reward::BatchScorer& scorer) {
  for (int64_t i = 0; i < data.size(); ++i) {
    if (const Status status = scorer.check_label(data.at(i).label); !status.ok()) {
      return annotate(status, fmt::format("{}:{}", path, data.line(i)));
    }
  }
  return absl::OkStatus();
}

StatusOr<std::unique_ptr<text::Dataset>> load_data(const text::DatasetOptions& options,
                                                   const RunInputs& inputs, const text::ChatTemplate& chat) {
  ACCORD_ASSIGN_OR_RETURN(text::Dataset data, text::Dataset::load(options, *inputs.tokenizer, chat));
  if (inputs.scorer) {
    ACCORD_RETURN_IF_ERROR(check_labels(data, options.path, *inputs.scorer));
  }
  return std::make_unique<text::Dataset>(std::move(data));
}

// The files of a mixture tell their prompts' ids apart by the upper bits.
constexpr int kFileShift = 40;

Status load_train(const text::ChatTemplate& chat, RunInputs& inputs) {
  const std::vector<recipe::TrainData>& files = inputs.recipe.data.train;
  for (size_t i = 0; i < files.size(); ++i) {
    const recipe::TrainData& train = files[i];
    const std::string key = files.size() == 1 ? "data.train" : fmt::format("data.train.{}", i);
    text::DatasetOptions options;
    options.path = train.path;
    options.prompt_key = train.prompt_key;
    options.label_key = train.label_key;
    options.keep_records = is_external(inputs.recipe);
    options.max_prompt_tokens = inputs.recipe.rollout.max_prompt_tokens;
    options.first_id = static_cast<uint64_t>(i) << kFileShift;
    options.on_bad_line_key = key + ".on_bad_line";
    options.on_long_prompt_key = key + ".on_long_prompt";
    options.on_bad_line = to_text(train.on_bad_line);
    options.on_long_prompt = to_text(train.on_long_prompt);
    TrainInput input{train, nullptr};
    ACCORD_ASSIGN_OR_RETURN(input.data, load_data(options, inputs, chat));
    inputs.train.push_back(std::move(input));
  }
  return absl::OkStatus();
}

int64_t longest_train_prompt(const RunInputs& inputs) {
  int64_t longest = 0;
  for (const TrainInput& train : inputs.train) {
    longest = std::max(longest, train.data->report().max_tokens);
  }
  return longest;
}

Status load_evals(const text::ChatTemplate& chat, RunInputs& inputs) {
  for (const recipe::EvalData& eval : inputs.recipe.data.eval) {
    text::DatasetOptions options;
    options.path = eval.path;
    options.prompt_key = eval.prompt_key;
    options.label_key = eval.label_key;
    options.keep_records = is_external(inputs.recipe);
    options.max_prompt_tokens = inputs.recipe.rollout.max_prompt_tokens;
    options.on_bad_line_key = options.on_long_prompt_key = "";  // a held-out set is used whole or not at all
    EvalInput input{eval, nullptr};
    ACCORD_ASSIGN_OR_RETURN(input.data, load_data(options, inputs, chat));
    inputs.evals.push_back(std::move(input));
  }
  return absl::OkStatus();
}

Status load_sft(const text::ChatTemplate& chat, RunInputs& inputs) {
  const recipe::SftPart& sft = *inputs.recipe.sft;
  text::SftOptions options;
  options.path = sft.path;
  options.prompt_key = sft.prompt_key;
  options.response_key = sft.response_key;
  options.max_tokens = inputs.config.max_position_embeddings;
  ACCORD_ASSIGN_OR_RETURN(const text::SftDataset data,
                          text::SftDataset::load(options, *inputs.tokenizer, chat));
  for (const text::SftExample& example : data.examples) {
    inputs.sft.push_back({example.tokens, example.prompt_length});
  }
  return absl::OkStatus();
}

// Every token that ends a response: the model's and the tokenizer's. Without one, each response would run to
// its limit.
Status find_stop_tokens(RunInputs& inputs) {
  inputs.stop_tokens = inputs.config.eos_token_ids;
  for (const int32_t id : inputs.tokenizer->eos_token_ids()) {
    if (std::find(inputs.stop_tokens.begin(), inputs.stop_tokens.end(), id) == inputs.stop_tokens.end()) {
      inputs.stop_tokens.push_back(id);
    }
  }
  if (inputs.stop_tokens.empty() && inputs.recipe.rollout.stop.empty()) {
    return data_error(
        "{}: neither config.json, generation_config.json nor tokenizer_config.json names an end-of-text "
        "token; set "
        "eos_token_id there, or rollout.stop in the recipe",
        inputs.recipe.model.checkpoint);
  }
  return absl::OkStatus();
}

Status check_sizes(const RunInputs& inputs) {
  const ModelConfig& config = inputs.config;
  if (inputs.tokenizer->vocab_size() > config.vocab_size) {
    return data_error("{}: the tokenizer has {} tokens, the model's embedding only {} rows",
                      inputs.recipe.model.checkpoint, inputs.tokenizer->vocab_size(), config.vocab_size);
  }
  int64_t response = inputs.recipe.rollout.max_response_tokens;
  const int64_t trained = longest_train_prompt(inputs) + response;
  if (inputs.reference && trained > inputs.reference->max_position_embeddings) {
    return recipe_error(
        "model.reference: the longest prompt and response of training, {} tokens, exceed the reference's {} "
        "positions (max_position_embeddings); lower rollout.max_response_tokens",
        trained, inputs.reference->max_position_embeddings);
  }
  for (const recipe::EvalData& eval : inputs.recipe.data.eval) {
    response = std::max(response, eval.max_response_tokens);
  }
  int64_t prompt = longest_train_prompt(inputs);
  for (const EvalInput& eval : inputs.evals) {
    prompt = std::max(prompt, eval.data->report().max_tokens);
  }
  if (prompt + response > config.max_position_embeddings) {
    return recipe_error(
        "the longest prompt ({} tokens) and response ({}) exceed the model's {} positions "
        "(max_position_embeddings); "
        "lower rollout.max_response_tokens or data.eval.max_response_tokens",
        prompt, response, config.max_position_embeddings);
  }
  return absl::OkStatus();
}

Status check_expert_parallel(const recipe::Recipe& recipe, const ModelConfig& config) {
  const int64_t places = recipe.trainer.expert_parallel;
  const bool any_moe =
      std::find(config.layer_is_moe.begin(), config.layer_is_moe.end(), true) != config.layer_is_moe.end();
  if (places > 1 && (!any_moe || config.num_experts % places != 0)) {
    return recipe_error("trainer.expert_parallel: must divide the model's experts ({}), is {}",
                        any_moe ? config.num_experts : 0, places);
  }
  return absl::OkStatus();
}

}  // namespace

text::MixtureSampler prompt_order(const RunInputs& inputs) {
  std::vector<text::MixtureSampler::Source> sources;
  for (const TrainInput& train : inputs.train) {
    sources.push_back({static_cast<uint64_t>(train.data->size()), train.options.weight});
  }
  return {inputs.recipe.run.seed, sources};
}

StatusOr<text::ChatTemplate> resolve_chat_template(const recipe::Recipe& recipe) {
  const recipe::DataPart& data = recipe.data;
  const text::ChatOptions options{data.chat_template, data.chat_template_kwargs, data.chat_date.value_or("")};
  StatusOr<text::ChatTemplate> chat = text::ChatTemplate::resolve(options, recipe.model.checkpoint);
  return chat.ok() ? chat : annotate(chat.status(), "data.chat_template");
}

StatusOr<std::unique_ptr<RunInputs>> load_run_inputs(const recipe::Recipe& recipe) {
  auto inputs = std::make_unique<RunInputs>();
  inputs->recipe = recipe;
  inputs->recipe_yaml = recipe::to_yaml(recipe);
  // Opening the checkpoint checks names and shapes of all tensors; the trainer reads the values.
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::HfCheckpoint source,
                          checkpoint::HfCheckpoint::open(recipe.model.checkpoint));
  inputs->config = source.config();
  inputs->config.mla.form = recipe.model.mla;
  ACCORD_RETURN_IF_ERROR(check_expert_parallel(recipe, inputs->config));
  ACCORD_RETURN_IF_ERROR(check_model_rules(recipe, inputs->config));
  if (const auto reference = reference_of(recipe)) {
    ACCORD_ASSIGN_OR_RETURN(inputs->reference, read_reference_config(*reference, recipe, inputs->config));
    ACCORD_RETURN_IF_ERROR(annotate(checkpoint::HfCheckpoint::open(*reference).status(), "model.reference"));
  }
  ACCORD_ASSIGN_OR_RETURN(inputs->plan, precision::build_plan(inputs->config, recipe.precision));
  ACCORD_RETURN_IF_ERROR(precision::check_expert_shards(inputs->plan, recipe.trainer.expert_tensor_parallel,
                                                        precision::kRolloutExpertShards));
  inputs->plan.digest =
      precision::digest_with_expert_shards(inputs->plan.digest, recipe.trainer.expert_tensor_parallel);
  ACCORD_RETURN_IF_ERROR(check_source_formats(source, inputs->plan));
  if (std::string note = source_note(source); !note.empty()) {
    inputs->plan.warnings.push_back(std::move(note));
  }
  ACCORD_ASSIGN_OR_RETURN(inputs->manifest, weights::build_manifest(inputs->config, inputs->plan));
  if (!is_external(recipe)) {
    StatusOr<std::unique_ptr<reward::BatchScorer>> scorer = reward::make_batch_scorer(recipe.reward.type);
    if (!scorer.ok()) {
      return annotate(scorer.status(), "reward.type");
    }
    inputs->scorer = *std::move(scorer);
  }
  ACCORD_ASSIGN_OR_RETURN(inputs->tokenizer, text::Tokenizer::load(recipe.model.checkpoint));
  ACCORD_ASSIGN_OR_RETURN(const text::ChatTemplate chat, resolve_chat_template(recipe));

  ACCORD_RETURN_IF_ERROR(load_train(chat, *inputs));
  ACCORD_RETURN_IF_ERROR(load_evals(chat, *inputs));
  if (recipe.sft) {
    ACCORD_RETURN_IF_ERROR(load_sft(chat, *inputs));
  }
  ACCORD_RETURN_IF_ERROR(find_stop_tokens(*inputs));
  ACCORD_RETURN_IF_ERROR(check_sizes(*inputs));
  return inputs;
}

}  // namespace accord::controller
