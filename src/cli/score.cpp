// accord score: rewards of recorded responses.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "base/strict_json.hpp"
#include "cli/commands.hpp"
#include "cli/text_io.hpp"
#include "reward/reward.hpp"
#include "text/records.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string reward;
  std::string input;
  std::string output;
};

StatusOr<Json> score_record(std::string_view line, const reward::Scorer& scorer) {
  ACCORD_ASSIGN_OR_RETURN(Json record, parse_json(line));
  if (!record.is_object()) {
    return data_error("a line must hold an object, not {}", kind_of(record));
  }
  const auto response = record.find("response");
  if (response == record.end() || !response->is_string()) {
    return data_error("'response' must be there and a string");
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string label, text::parse_label(record, "label"));
  ACCORD_RETURN_IF_ERROR(scorer.check_label(label));
  reward::Score score = scorer.score(response->get_ref<const std::string&>(), label);
  record["score"] = score.score;
  record["pred"] = score.pred ? Json(std::move(*score.pred)) : Json(nullptr);
  return record;
}

Status score_file(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(refuse_same_file(arguments.input, arguments.output));
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<reward::Scorer> scorer,
                          reward::make_scorer(arguments.reward));
  ACCORD_ASSIGN_OR_RETURN(const std::string input, read_input(arguments.input));
  std::string output;
  int64_t count = 0;
  double sum = 0.0;
  ACCORD_RETURN_IF_ERROR(text::for_each_line(input, [&](const text::Line& line) -> Status {
    const StatusOr<Json> scored = score_record(line.text, *scorer);
    if (!scored.ok()) {
      return annotate(scored.status(), fmt::format("{}:{}", input_name(arguments.input), line.number));
    }
    // A response may end within a character; its broken bytes become U+FFFD in the output.
    output += scored->dump(-1, ' ', false, Json::error_handler_t::replace) + "\n";
    sum += scored->at("score").get<double>();
    ++count;
    return absl::OkStatus();
  }));
  ACCORD_RETURN_IF_ERROR(write_output(arguments.output, output));
  if (count > 0) {
    log::info("{} lines, mean score {}", count, sum / static_cast<double>(count));
  }
  return absl::OkStatus();
}

}  // namespace

void add_score(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<Arguments>();
  std::vector<std::string> names;
  std::string help = "How responses are scored:";
  for (const reward::ScorerType& type : reward::scorer_types()) {
    names.emplace_back(type.name);
    help += fmt::format("\n  {}: {}", type.name, type.summary);
  }
  CLI::App* command = app.add_subcommand("score", "Add rewards to lines of {response, label}");
  command->add_option("--reward", arguments->reward, help)
      ->required()
      ->type_name("TYPE")
      ->check(CLI::IsMember(names));
  command->add_option("IN", arguments->input, "JSONL with {response, label}; - for standard input")
      ->required();
  command->add_option("OUT", arguments->output, "The same lines with score and pred; - for standard output")
      ->required();
  command->callback([arguments, &action] { action = [arguments] { return score_file(*arguments); }; });
}

}  // namespace accord::cli
