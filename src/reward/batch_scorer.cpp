#include "reward/batch_scorer.hpp"

namespace accord::reward {
namespace {

class BuiltIn : public BatchScorer {
 public:
  explicit BuiltIn(std::unique_ptr<Scorer> scorer) : scorer_(std::move(scorer)) {}

  Status check_label(std::string_view label) const override { return scorer_->check_label(label); }

  StatusOr<std::vector<Reward>> score(std::span<const ScoreRequest> requests) override {
    std::vector<Reward> rewards;
    rewards.reserve(requests.size());
    for (const ScoreRequest& request : requests) {
      Score scored = scorer_->score(request.response, request.label);
      rewards.push_back({scored.score, std::move(scored.pred), "", false});
    }
    return rewards;
  }

 private:
  const std::unique_ptr<Scorer> scorer_;
};

}  // namespace

StatusOr<std::unique_ptr<BatchScorer>> make_batch_scorer(std::string_view type) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<Scorer> scorer, make_scorer(type));
  return std::make_unique<BuiltIn>(std::move(scorer));
}

}  // namespace accord::reward
