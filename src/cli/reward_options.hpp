#pragma once
// Which reward a command scores with: a built-in one by name, or that of a recipe.
#include <memory>
#include <string>
#include <vector>

#include "cli/command.hpp"
#include "reward/batch_scorer.hpp"
#include "rpc/canceller.hpp"

namespace accord::cli {

struct RewardArguments {
  std::string type;                    // --reward
  std::string recipe;                  // --recipe, which the command declares
  std::vector<std::string> overrides;  // --set
  bool allow_exec = false;             // --allow-exec
};

// Declares --reward, with `help`, and --allow-exec.
void add_reward_options(CLI::App& command, RewardArguments& arguments, const std::string& help);

// Whether the scorer may ask for more of a record than its label.
bool wants_records(const RewardArguments& arguments);

// The scorer, started. Errors: kUsage where neither type nor recipe says what to do, or execution needs
// consent.
StatusOr<std::unique_ptr<reward::BatchScorer>> make_reward(const RewardArguments& arguments,
                                                           rpc::Canceller& canceller);

}  // namespace accord::cli
