#include "trainer/step_scope.hpp"

#include <algorithm>
#include <numeric>

namespace accord::trainer {

namespace {

struct Place {
  int64_t place = 0;
  int64_t length = 0;
};

Status check_totals(const StepScope& scope, const BatchTotals& counted) {
  if (scope.totals.num_samples == counted.num_samples && scope.totals.num_tokens == counted.num_tokens) {
    return absl::OkStatus();
  }
  return internal_error(
      "trainer: the ranks have {} samples with {} response tokens, the step has {} samples with {}",
      counted.num_samples, counted.num_tokens, scope.totals.num_samples, scope.totals.num_tokens);
}

}  // namespace

StatusOr<StepScope> agree_on_step(const RankGroup& group, const Shards& shards, const Status& mine,
                                  const StepFacts& facts, const BatchTotals& totals, Deadline deadline) {
  ACCORD_RETURN_IF_ERROR(group.agree(mine, deadline));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<StepFacts> all, group.gather(facts, deadline));
  StepScope scope;
  BatchTotals counted;
  const StepFacts* first = nullptr;
  for (size_t r = 0; r < all.size(); ++r) {
    const StepFacts& other = all[r];
    if (other.step != all[0].step || other.optimizer_steps != all[0].optimizer_steps) {
      return internal_error("trainer: rank {} takes step {} after {} updates, rank 0 step {} after {}", r,
                            other.step, other.optimizer_steps, all[0].step, all[0].optimizer_steps);
    }
    counted.num_samples += other.num_samples;
    counted.num_tokens += other.num_tokens;
    scope.num_micro_batches += other.num_micro_batches;
    scope.rank_samples.push_back(other.num_samples);
    scope.rank_tokens.push_back(other.num_tokens);
    const int32_t places = shards.expert_parallel();
    if (static_cast<int32_t>(r) / places == group.rank() / places) {
      scope.rounds = std::max(scope.rounds, other.num_micro_batches);
    }
    if (other.num_samples == 0) continue;
    if (first == nullptr) first = &other;
    if (other.reference != first->reference || other.old != first->old || other.routing != first->routing) {
      return data_error(
          "step {}: old and reference log-probs and routing are given for all samples of a step or for none",
          facts.step);
    }
  }
  if (first == nullptr) return data_error("trainer: a step needs at least one sample");
  scope.reference = first->reference;
  scope.old = first->old;
  scope.routing = first->routing;
  scope.totals = totals;
  if (scope.totals.num_samples == 0) scope.totals.num_samples = counted.num_samples;
  if (scope.totals.num_tokens == 0) scope.totals.num_tokens = counted.num_tokens;
  ACCORD_RETURN_IF_ERROR(check_totals(scope, counted));
  return scope;
}

StatusOr<std::vector<TokenRange>> step_order(const RankGroup& group, const StepScope& scope,
                                             std::span<const int64_t> places,
                                             std::span<const int64_t> lengths, Deadline deadline) {
  std::vector<Place> mine;
  for (size_t s = 0; s < lengths.size(); ++s) {
    mine.push_back({places.empty() ? static_cast<int64_t>(s) : places[s], lengths[s]});
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Place> all,
                          group.concatenate(std::span<const Place>(mine), scope.rank_samples, deadline));
  std::vector<TokenRange> ranges;
  size_t begin = 0;
  for (const Place& sample : all) {
    ranges.push_back({begin, static_cast<size_t>(sample.length)});
    begin += ranges.back().count;
  }
  std::vector<size_t> order(all.size());
  std::iota(order.begin(), order.end(), size_t{0});
  std::stable_sort(order.begin(), order.end(),
                   [&](size_t a, size_t b) { return all[a].place < all[b].place; });
  std::vector<TokenRange> ordered;
  for (size_t i = 0; i < order.size(); ++i) {
    if (i > 0 && all[order[i]].place == all[order[i - 1]].place) {
      return internal_error("trainer: two samples of a step have place {}", all[order[i]].place);
    }
    ordered.push_back(ranges[order[i]]);
  }
  return ordered;
}

}  // namespace accord::trainer
