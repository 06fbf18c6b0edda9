// accord verify: two checkpoints, or a checkpoint and a ledger, tensor by tensor.
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>

#include "cli/commands.hpp"
#include "cli/text_io.hpp"
#include "controller/verification.hpp"

namespace accord::cli {
namespace {

using controller::Relation;
using controller::Verification;

constexpr Relation kRelations[] = {Relation::kEqual, Relation::kQuantized, Relation::kDecoded,
                                   Relation::kDifferent};

struct Arguments {
  std::string a;
  std::string b;
  std::optional<int64_t> step;
  int threads = 0;
  bool json = false;
};

std::string to_text(const Verification& result) {
  std::string out;
  for (const controller::VerifiedTensor& tensor : result.tensors) {
    if (tensor.relation == Relation::kDifferent) {
      out += fmt::format("{}  {} / {}  {}\n", tensor.name, tensor.a, tensor.b, tensor.detail);
    }
  }
  for (const controller::OtherDifference& other : result.others) {
    out += fmt::format("{}  {}\n", other.name, other.detail);
  }
  out += fmt::format("{} tensors:", result.tensors.size());
  for (const Relation relation : kRelations) {
    if (const int64_t count = result.count(relation); count > 0 || relation == Relation::kDifferent) {
      out += fmt::format(" {} {}", count, name_of(relation));
    }
  }
  if (!result.others.empty()) {
    out += fmt::format("; different beside them: {}", result.others.size());
  }
  return out + "\n";
}

std::string to_json(const Verification& result) {
  nlohmann::ordered_json out;
  out["ok"] = result.ok();
  for (const Relation relation : kRelations) {
    out[std::string(name_of(relation))] = result.count(relation);
  }
  out["tensors"] = nlohmann::ordered_json::array();
  for (const controller::VerifiedTensor& tensor : result.tensors) {
    out["tensors"].push_back({{"name", tensor.name},
                              {"a", tensor.a},
                              {"b", tensor.b},
                              {"relation", std::string(name_of(tensor.relation))},
                              {"detail", tensor.detail}});
  }
  out["others"] = nlohmann::ordered_json::array();
  for (const controller::OtherDifference& other : result.others) {
    out["others"].push_back({{"name", other.name}, {"detail", other.detail}});
  }
  return out.dump(1, ' ', false, nlohmann::json::error_handler_t::replace) + "\n";
}

StatusOr<Verification> compare(const Arguments& arguments) {
  std::error_code ignored;
  if (std::filesystem::is_regular_file(arguments.b, ignored)) {
    return controller::verify_ledger(arguments.a, arguments.b, arguments.step, arguments.threads);
  }
  if (arguments.step) {
    return usage_error("--step goes with a ledger.jsonl as B only");
  }
  return controller::verify_checkpoints(arguments.a, arguments.b, arguments.threads);
}

Status verify(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const Verification result, compare(arguments));
  ACCORD_RETURN_IF_ERROR(write_output("-", arguments.json ? to_json(result) : to_text(result)));
  if (!result.ok()) {
    std::string beside;
    if (!result.others.empty()) {
      beside = fmt::format(", and in {}", result.others.front().name);
      if (result.others.size() > 1) {
        beside += fmt::format(" and {} more beside them", result.others.size() - 1);
      }
    }
    return data_error("{} and {} differ in {} of {} tensors{}", arguments.a, arguments.b,
                      result.count(Relation::kDifferent), result.tensors.size(), beside);
  }
  return absl::OkStatus();
}

}  // namespace

void add_verify(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  CLI::App* command = app.add_subcommand("verify",
                                         "Compare two checkpoints tensor by tensor under the contract, and "
                                         "what else decides how they behave; exit 0 only if all agrees");
  command->add_option("a", a.a, "A Hugging Face directory, quantized or not")->required();
  command->add_option("b", a.b, "Another, or the ledger.jsonl of a run: the bytes that were broadcast")
      ->required();
  command->add_option("--step", a.step, "With a ledger: the step (default: its last line)");
  command->add_option("--threads", a.threads, "Threads (0: all)")->check(CLI::Range(0, 1024));
  command->add_flag("--json", a.json, "Every tensor, as one JSON object");
  command->callback([arguments, &action] { action = [arguments] { return verify(*arguments); }; });
}

}  // namespace accord::cli
