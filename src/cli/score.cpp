// accord score: rewards of recorded responses.
#include <cmath>
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/strict_json.hpp"
#include "cli/commands.hpp"
#include "cli/reward_options.hpp"
#include "cli/text_io.hpp"
#include "text/records.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  RewardArguments reward;
  std::string input;
  std::string output;
};

// A line and what of it a scorer sees.
struct Item {
  Json record;
  uint64_t index = 0;
  std::string prompt;
  std::string messages = "[]";
  std::string label;
  std::string metadata;
};

StatusOr<Item> read_item(const text::Line& line, const reward::BatchScorer& scorer) {
  Item item;
  item.index = line.record;
  ACCORD_ASSIGN_OR_RETURN(item.record, parse_json(line.text));
  if (!item.record.is_object()) {
    return data_error("a line must hold an object, not {}", kind_of(item.record));
  }
  const auto response = item.record.find("response");
  if (response == item.record.end() || !response->is_string()) {
    return data_error("'response' must be there and a string");
  }
  ACCORD_ASSIGN_OR_RETURN(item.label, text::parse_label(item.record, "label"));
  ACCORD_RETURN_IF_ERROR(scorer.check_label(item.label));
  item.metadata = text::other_members(item.record, {"prompt", "response", "label"});
  return item;
}

// The prompt is for external scorers, and may be missing.
Status read_prompt(Item& item) {
  if (const auto prompt = item.record.find("prompt"); prompt != item.record.end()) {
    StatusOr<text::PromptSource> source = text::parse_prompt(*prompt);
    if (!source.ok()) {
      return annotate(source.status(), "prompt");
    }
    item.messages = text::messages_json(*source);
    if (const auto* plain = std::get_if<std::string>(&*source)) {
      item.prompt = *plain;
    }
  }
  return absl::OkStatus();
}

StatusOr<std::vector<Item>> read_items(const Arguments& arguments, const std::string& input,
                                       const reward::BatchScorer& scorer) {
  std::vector<Item> items;
  ACCORD_RETURN_IF_ERROR(text::for_each_line(input, [&](const text::Line& line) -> Status {
    StatusOr<Item> item = read_item(line, scorer);
    Status status = item.status();
    if (status.ok() && wants_records(arguments.reward)) {
      status = read_prompt(*item);
    }
    if (!status.ok()) {
      return annotate(status, fmt::format("{}:{}", input_name(arguments.input), line.number));
    }
    items.push_back(*std::move(item));
    return absl::OkStatus();
  }));
  return items;
}

std::string scored_line(Item& item, const reward::Reward& reward) {
  item.record["score"] = reward.score;
  item.record["pred"] = reward.pred ? Json(*reward.pred) : Json(nullptr);
  if (!reward.extra.empty()) {
    item.record["extra"] = Json::parse(reward.extra);
  }
  if (reward.failed) {
    item.record["reward_failed"] = true;
  }
  // A response may end within a character; its broken bytes become U+FFFD in the output.
  return item.record.dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status score_file(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(refuse_same_file(arguments.input, arguments.output));
  if (!arguments.reward.recipe.empty() && !wants_records(arguments.reward)) {
    return usage_error("--recipe {} and --reward {}: one of them", arguments.reward.recipe,
                       arguments.reward.type);
  }
  rpc::Canceller canceller;
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<reward::BatchScorer> scorer,
                          make_reward(arguments.reward, canceller));
  ACCORD_ASSIGN_OR_RETURN(const std::string input, read_input(arguments.input));
  ACCORD_ASSIGN_OR_RETURN(std::vector<Item> items, read_items(arguments, input, *scorer));
  std::vector<reward::ScoreRequest> requests;
  for (const Item& item : items) {
    reward::ScoreRequest& request = requests.emplace_back();
    request.set = "score";
    request.prompt_id = item.index;
    request.prompt = item.prompt;
    request.messages = item.messages;
    request.response = item.record.at("response").get_ref<const std::string&>();
    request.label = item.label;
    request.metadata = item.metadata;
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<reward::Reward> rewards, scorer->score(requests));
  std::string output;
  double sum = 0.0;
  int64_t failed = 0;
  int64_t scored = 0;
  for (size_t i = 0; i < items.size(); ++i) {
    output += scored_line(items[i], rewards[i]);
    failed += rewards[i].failed ? 1 : 0;
    if (!std::isnan(rewards[i].score)) {
      sum += rewards[i].score;
      ++scored;
    }
  }
  ACCORD_RETURN_IF_ERROR(write_output(arguments.output, output));
  if (scored > 0) {
    log::info("{} lines, mean score {}", items.size(), sum / static_cast<double>(scored));
  }
  if (failed > 0) {
    log::warn("no score came for {} lines: reward_failed says which", failed);
  }
  return absl::OkStatus();
}

}  // namespace

void add_score(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<Arguments>();
  std::string help = "How responses are scored:";
  for (const reward::ScorerType& type : reward::scorer_types()) {
    help += fmt::format("\n  {}: {}", type.name, type.summary);
  }
  CLI::App* command = app.add_subcommand("score", "Add rewards to lines of {response, label}");
  add_reward_options(*command, arguments->reward, help);
  command->add_option("--recipe", arguments->reward.recipe,
                      "Score as this recipe's reward does, an external one too");
  command->add_option("--set", arguments->reward.overrides, "Override one key of the recipe (repeatable)")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command->add_option("IN", arguments->input, "JSONL with {response, label}; - for standard input")
      ->required();
  command->add_option("OUT", arguments->output, "The same lines with score and pred; - for standard output")
      ->required();
  command->callback([arguments, &action] { action = [arguments] { return score_file(*arguments); }; });
}

}  // namespace accord::cli
