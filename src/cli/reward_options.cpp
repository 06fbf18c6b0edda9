#include "cli/reward_options.hpp"

#include "recipe/recipe.hpp"
#include "rpc/reward_client.hpp"

namespace accord::cli {

void add_reward_options(CLI::App& command, RewardArguments& arguments, const std::string& help) {
  std::vector<std::string> names{std::string(recipe::kExternalReward)};
  for (const reward::ScorerType& type : reward::scorer_types()) {
    names.emplace_back(type.name);
  }
  command.add_option("--reward", arguments.type, help)->type_name("TYPE")->check(CLI::IsMember(names));
  command.add_flag("--allow-exec", arguments.allow_exec, "Let the recipe execute its reward.command");
}

bool wants_records(const RewardArguments& arguments) {
  return arguments.type.empty() || arguments.type == recipe::kExternalReward;
}

StatusOr<std::unique_ptr<reward::BatchScorer>> make_reward(const RewardArguments& arguments,
                                                           rpc::Canceller& canceller) {
  if (!wants_records(arguments)) {
    return reward::make_batch_scorer(arguments.type);
  }
  if (arguments.recipe.empty()) {
    return usage_error("{}", arguments.type.empty()
                                 ? "give --reward TYPE, or --recipe FILE to score as that recipe does"
                                 : "--reward external: give --recipe FILE, whose reward says who scores");
  }
  ACCORD_ASSIGN_OR_RETURN(const recipe::Recipe recipe,
                          recipe::load_recipe(arguments.recipe, arguments.overrides));
  if (!arguments.type.empty() && !recipe.reward.external) {
    return usage_error("--reward external: {} has reward.type {}", arguments.recipe, recipe.reward.type);
  }
  return rpc::make_scorer(recipe.reward, {arguments.allow_exec, "", nullptr}, canceller);
}

}  // namespace accord::cli
