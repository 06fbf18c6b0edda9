#pragma once
// Rewards from a RewardService, and the scorer that a recipe asks for.
#include <memory>
#include <string>

#include "recipe/recipe.hpp"
#include "reward/external_scorer.hpp"
#include "rpc/canceller.hpp"

namespace accord::rpc {

// A transport to the RewardService at HOST:PORT; plaintext. Up to kRewardCalls batches are on their way at
// once.
inline constexpr int32_t kRewardCalls = 4;
std::unique_ptr<reward::Transport> make_reward_transport(const std::string& address, Canceller& canceller);

struct ScorerOptions {
  bool allow_exec = false;  // --allow-exec
  std::string log_path;     // of a scorer process's stderr; empty: this process's
  WaitList* waits = nullptr;
};

// A command in a recipe runs with the user's rights, and recipes may come from others: kUsage without
// --allow-exec. A program that is not there: kBadRecipe. Starts nothing.
Status check_reward(const recipe::RewardPart& reward, bool allow_exec);

// Any reward of a recipe; external ones are started. `canceller` must outlive the scorer.
StatusOr<std::unique_ptr<reward::BatchScorer>> make_scorer(const recipe::RewardPart& reward,
                                                           const ScorerOptions& options,
                                                           Canceller& canceller);

}  // namespace accord::rpc
