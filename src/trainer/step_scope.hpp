#pragma once
// What the ranks of a step agree on before it, and how their tokens are put into the step's order.
#include <cstdint>
#include <span>
#include <vector>

#include "base/deadline.hpp"
#include "base/status.hpp"
#include "trainer/rank_group.hpp"
#include "trainer/shards.hpp"
#include "trainer/trainer.hpp"

namespace accord::trainer {

// What one rank brings.
struct StepFacts {
  uint64_t step = 0;
  int64_t optimizer_steps = 0;
  int64_t num_samples = 0;
  int64_t num_tokens = 0;  // response tokens
  int64_t num_micro_batches = 0;
  // Of its samples; meaningless without any.
  bool reference = false;
  bool old = false;
  bool routing = false;
};

// The same on all ranks, but for `rounds`.
struct StepScope {
  BatchTotals totals;
  bool reference = false;
  bool old = false;
  bool routing = false;
  int64_t num_micro_batches = 0;      // of all ranks
  int64_t rounds = 0;                 // micro-batches that this rank runs: those it lacks are empty
  std::vector<int64_t> rank_samples;  // per rank
  std::vector<int64_t> rank_tokens;
};

// `mine`: whether this rank can take the step. `totals`: as given to the step; where the ranks' samples do
// not add up to them, every rank gets an error. The ranks of an expert group run the same number of
// micro-batches, because they exchange rows. Collective.
StatusOr<StepScope> agree_on_step(const RankGroup& group, const Shards& shards, const Status& mine,
                                  const StepFacts& facts, const BatchTotals& totals, Deadline deadline);

// A sample's tokens among those of all ranks, one rank after the other.
struct TokenRange {
  size_t begin = 0;
  size_t count = 0;
};

// All ranks' samples in the step's order. `places` and `lengths` (response tokens): of this rank's samples;
// no places: they are in order. Errors (kInternal), on all ranks: a place is taken twice. Collective.
StatusOr<std::vector<TokenRange>> step_order(const RankGroup& group, const StepScope& scope,
                                             std::span<const int64_t> places,
                                             std::span<const int64_t> lengths, Deadline deadline);

// Everybody's records, one per response token, in the step's order. Collective.
template <class T>
StatusOr<std::vector<T>> in_step_order(const RankGroup& group, const StepScope& scope,
                                       std::span<const TokenRange> order, std::span<const T> records,
                                       Deadline deadline) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<T> all, group.concatenate(records, scope.rank_tokens, deadline));
  std::vector<T> ordered;
  ordered.reserve(all.size());
  for (const TokenRange& range : order) {
    const auto begin = all.begin() + static_cast<int64_t>(range.begin);
    ordered.insert(ordered.end(), begin, begin + static_cast<int64_t>(range.count));
  }
  return ordered;
}

}  // namespace accord::trainer
