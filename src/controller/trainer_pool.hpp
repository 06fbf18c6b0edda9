#pragma once
// The trainer pool as one: groups, who trains on what, and calls that all trainers answer alike.
#include <functional>
#include <optional>
#include <span>
#include <vector>

#include "controller/pools.hpp"
#include "recipe/recipe.hpp"

namespace accord::controller {

// Makes all communicator groups of a run: everybody for weights, the trainers where there are several, and
// each expert group.
Status join_groups(const Pools& pools, const recipe::Recipe& recipe);

// Whether all workers compute alike, so that the same weights give the same bits on all of them. Error
// (kBadRecipe): two workers of different arithmetic, by name. `reports`: per member of `pools`.
Status check_arithmetic(const Pools& pools, std::span<const SetupReport> reports);

// Sets the rank of every sample: each update of the step is spread over the ranks, balanced by tokens.
void assign_ranks(const recipe::Recipe& recipe, int32_t num_ranks, std::span<TrainSampleRef> samples);

// Whether two trainers' answers to one collective call are the same, bit for bit.
bool same_answer(const Metrics& a, const Metrics& b);
bool same_answer(const std::vector<TensorRecord>& a, const std::vector<TensorRecord>& b);

// Calls all trainers at once. Their answers must be the same: another one is an error (kInternal).
template <class Call>
auto on_all_trainers(const Pools& pools, const Call& call) -> decltype(call(*pools.trainer[0])) {
  using Answer = decltype(call(*pools.trainer[0]));
  std::vector<std::optional<Answer>> answers(pools.trainer.size());
  ACCORD_RETURN_IF_ERROR(for_all(pools.trainer.size(), [&](size_t rank) {
    answers[rank] = call(*pools.trainer[rank]);
    return answers[rank]->status();
  }));
  for (size_t rank = 1; rank < answers.size(); ++rank) {
    if (!same_answer(**answers[rank], **answers[0])) {
      return internal_error("trainer/{} and trainer/0 do not agree on the result of a collective call", rank);
    }
  }
  return std::move(*answers[0]);
}

}  // namespace accord::controller
