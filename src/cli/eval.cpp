// accord eval: how often a checkpoint's samples earn a reward.
#include <algorithm>
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/strict_json.hpp"
#include "cli/commands.hpp"
#include "cli/local_engine.hpp"
#include "cli/reward_options.hpp"
#include "cli/text_io.hpp"
#include "telemetry/progress.hpp"
#include "text/data_path.hpp"
#include "text/dataset.hpp"

namespace accord::cli {
namespace {

constexpr int32_t kBatchRows = 256;

struct Arguments {
  LocalEngineArguments engine;
  text::DatasetOptions data;
  RewardArguments reward;
  int32_t samples = 1;
  int64_t limit = 0;
  std::string output;
  bool json = false;
};

struct Result {
  int64_t prompts = 0;
  int64_t samples = 0;
  int64_t passed = 0;          // samples with a score above 0
  int64_t solved_prompts = 0;  // prompts with at least one of them
  int64_t scored = 0;          // samples whose score came
  double score_sum = 0.0;      // of those
  int64_t length_sum = 0;
  int64_t length_max = 0;
  int64_t truncated = 0;
};

StatusOr<std::vector<rollout::Request>> make_requests(const Arguments& arguments, const LocalEngine& local,
                                                      const text::Dataset& data,
                                                      const reward::BatchScorer& scorer) {
  const int64_t count = arguments.limit > 0 ? std::min(arguments.limit, data.size()) : data.size();
  std::vector<rollout::Request> requests;
  for (int64_t i = 0; i < count; ++i) {
    const Prompt& prompt = data.at(i);
    if (const Status status = scorer.check_label(prompt.label); !status.ok()) {
      return annotate(status, fmt::format("{}: record {}", arguments.data.path, prompt.id + 1));
    }
    requests.push_back({.prompt = prompt, .num_samples = arguments.samples, .sampling = local.sampling()});
  }
  return requests;
}

Json sample_record(const Sample& sample, const Prompt& prompt, const std::string& response,
                   const reward::Reward& reward) {
  Json record;
  record["prompt_id"] = prompt.id;
  record["sample"] = sample.key.sample_index;
  record["response"] = response;
  record["label"] = prompt.label;
  record["score"] = reward.score;
  record["pred"] = reward.pred ? Json(*reward.pred) : Json(nullptr);
  if (!reward.extra.empty()) {
    record["extra"] = Json::parse(reward.extra);
  }
  if (reward.failed) {
    record["reward_failed"] = true;
  }
  record["tokens"] = sample.response_length();
  record["finish"] = sample.finish == FinishReason::kStop ? "stop" : "length";
  return record;
}

StatusOr<std::vector<Sample>> draw(const Arguments& arguments, LocalEngine& local,
                                   const std::vector<rollout::Request>& requests) {
  int64_t longest = 0;
  for (const rollout::Request& request : requests) {
    longest = std::max(longest, static_cast<int64_t>(request.prompt.tokens.size()));
  }
  const auto total = static_cast<int64_t>(requests.size()) * arguments.samples;
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<controller::ServedModel> model,
                          local.serve({.max_rows = static_cast<int32_t>(std::min<int64_t>(total, kBatchRows)),
                                       .longest_sequence = longest + arguments.engine.max_tokens}));
  rollout::Engine& engine = model->engine();
  rollout::Callbacks callbacks;
  telemetry::ProgressBar bar("samples", total);
  int64_t finished = 0;
  callbacks.on_sample = [&](const Sample&) {
    bar.update(++finished,
               fmt::format("{:.0f} tokens/s", static_cast<double>(engine.stats().generated_tokens) /
                                                  std::max(engine.stats().forward_seconds, 1e-9)));
  };
  return engine.generate(requests, callbacks);
}

// Draws and scores everything; `lines` takes a JSON line per sample, in order.
StatusOr<Result> evaluate(const Arguments& arguments, LocalEngine& local, const text::Dataset& data,
                          const std::vector<rollout::Request>& requests, reward::BatchScorer& scorer,
                          std::string& lines) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Sample> samples, draw(arguments, local, requests));
  std::vector<std::string> responses;
  for (const Sample& sample : samples) {
    responses.push_back(
        local.decode(std::span(sample.tokens).subspan(static_cast<size_t>(sample.prompt_length))));
  }
  std::vector<reward::ScoreRequest> questions;
  for (size_t i = 0; i < samples.size(); ++i) {
    const size_t p = i / static_cast<size_t>(arguments.samples);
    reward::ScoreRequest& question = questions.emplace_back();
    question.set = "eval";
    question.prompt_id = requests[p].prompt.id;
    question.sample_index = samples[i].key.sample_index;
    question.prompt = data.text(static_cast<int64_t>(p));
    question.response = responses[i];
    question.label = requests[p].prompt.label;
    question.truncated = samples[i].finish == FinishReason::kLength;
    if (arguments.data.keep_records) {
      question.messages = data.record(static_cast<int64_t>(p)).messages;
      question.metadata = data.record(static_cast<int64_t>(p)).metadata;
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<reward::Reward> rewards, scorer.score(questions));

  Result result;
  result.prompts = static_cast<int64_t>(requests.size());
  bool solved = false;
  for (size_t i = 0; i < samples.size(); ++i) {
    const Sample& sample = samples[i];
    const Prompt& prompt = requests[i / static_cast<size_t>(arguments.samples)].prompt;
    const reward::Reward& reward = rewards[i];
    const bool passed = reward.score > 0.0 && !reward.failed;
    solved = (sample.key.sample_index > 0 && solved) || passed;
    result.solved_prompts += static_cast<int32_t>(sample.key.sample_index) == arguments.samples - 1 && solved;
    ++result.samples;
    result.passed += passed;
    if (!reward.failed) {
      ++result.scored;
      result.score_sum += reward.score;
    }
    result.length_sum += sample.response_length();
    result.length_max = std::max<int64_t>(result.length_max, sample.response_length());
    result.truncated += sample.finish == FinishReason::kLength;
    if (!arguments.output.empty()) {
      lines += sample_record(sample, prompt, responses[i], reward)
                   .dump(-1, ' ', false, Json::error_handler_t::replace) +
               "\n";
    }
  }
  return result;
}

Json summary_of(const Result& result, int32_t samples_per_prompt) {
  const auto samples = static_cast<double>(result.samples);
  Json json;
  json["prompts"] = result.prompts;
  json["samples_per_prompt"] = samples_per_prompt;
  json["pass@1"] = static_cast<double>(result.passed) / samples;
  if (samples_per_prompt > 1) {
    json[fmt::format("pass@{}", samples_per_prompt)] =
        static_cast<double>(result.solved_prompts) / static_cast<double>(result.prompts);
  }
  if (result.scored > 0) {
    json["reward_mean"] = result.score_sum / static_cast<double>(result.scored);
  }
  if (result.scored < result.samples) {
    json["reward_failures"] = static_cast<double>(result.samples - result.scored) / samples;
  }
  json["response_length_mean"] = static_cast<double>(result.length_sum) / samples;
  json["response_length_max"] = result.length_max;
  json["truncated_fraction"] = static_cast<double>(result.truncated) / samples;
  return json;
}

Status run_eval(Arguments arguments) {
  ACCORD_ASSIGN_OR_RETURN(const text::DataPath data_path, text::parse_data_path(arguments.data.path));
  ACCORD_RETURN_IF_ERROR(refuse_same_file(data_path.file, arguments.output));
  arguments.reward.recipe = arguments.engine.recipe;
  arguments.data.keep_records = wants_records(arguments.reward);
  rpc::Canceller canceller;
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<reward::BatchScorer> scorer,
                          make_reward(arguments.reward, canceller));
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<LocalEngine> local,
                          LocalEngine::load(arguments.engine, true));
  ACCORD_ASSIGN_OR_RETURN(const text::Dataset data,
                          text::Dataset::load(arguments.data, *local->tokenizer(), local->chat()));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<rollout::Request> requests,
                          make_requests(arguments, *local, data, *scorer));
  std::string lines;
  ACCORD_ASSIGN_OR_RETURN(const Result result, evaluate(arguments, *local, data, requests, *scorer, lines));
  if (!arguments.output.empty()) {
    ACCORD_RETURN_IF_ERROR(write_output(arguments.output, lines));
  }
  const Json summary = summary_of(result, arguments.samples);
  if (arguments.json) {
    return write_output("-", summary.dump() + "\n");
  }
  std::string table;
  for (const auto& [name, value] : summary.items()) {
    table += value.is_number_float() ? fmt::format("{:<22} {:.4f}\n", name, value.get<double>())
                                     : fmt::format("{:<22} {}\n", name, value.get<int64_t>());
  }
  return write_output("-", table);
}

}  // namespace

void add_eval(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("eval", "Score samples of a checkpoint on a data set");
  auto arguments = std::make_shared<Arguments>();
  arguments->data.on_bad_line_key = arguments->data.on_long_prompt_key = "";  // no option skips records here
  arguments->engine.max_tokens = 1024;
  arguments->engine.temperature = 1.0F;
  add_local_engine_options(*command, arguments->engine);
  command
      ->add_option("--data", arguments->data.path,
                   "JSONL or Parquet with a prompt and a label per record; file@[a:b] is a part")
      ->required();
  add_reward_options(*command, arguments->reward,
                     "How responses are scored (default: as --recipe does); a score above 0 passes");
  command->add_option("--samples", arguments->samples, "Samples per prompt")
      ->check(positive_number())
      ->capture_default_str();
  command->add_option("--limit", arguments->limit, "Only the first so many prompts (0: all)")
      ->check(nonnegative_number())
      ->capture_default_str();
  command->add_option("--prompt-key", arguments->data.prompt_key, "The prompt's key")->capture_default_str();
  command->add_option("--label-key", arguments->data.label_key, "The label's key")->capture_default_str();
  command->add_option("--output", arguments->output, "Also write a JSON line per sample to this file");
  command->add_flag("--json", arguments->json, "Print one object instead of a table");
  command->callback([arguments, &action] { action = [arguments] { return run_eval(*arguments); }; });
}

}  // namespace accord::cli
