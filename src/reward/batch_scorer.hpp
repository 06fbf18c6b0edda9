#pragma once
// Rewards of many samples at once: what the step loop and `accord score` ask for. Built-in rewards are pure
// functions (reward.hpp); external ones ask another program (external_scorer.hpp).
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "reward/reward.hpp"

namespace accord::reward {

// One response and everything that is known of it. Texts are UTF-8, except that a response may end within a
// character. The views must outlive the call.
struct ScoreRequest {
  std::string_view set;  // train, or the evaluation set's name
  uint64_t step = 0;     // 0: before the first step
  uint64_t prompt_id = 0;
  uint32_t sample_index = 0;
  std::string_view prompt;           // as it was tokenized
  std::string_view messages = "[]";  // JSON: [{"role", "content"}...]; plain text is one user message
  std::string_view response;         // without special tokens
  std::string_view label;            //
  std::string_view metadata = "{}";  // JSON object: the record's other members
  bool truncated = false;            // ended by the length limit
};

struct Reward {
  double score = 0.0;
  std::optional<std::string> pred;  // the answer that was read out of the response
  std::string extra;                // a JSON object of the external scorer's; empty: none
  bool failed = false;  // no score came: `score` is what the policy puts in its place; NaN: nothing
  bool operator==(const Reward&) const = default;
};

class BatchScorer {
 public:
  virtual ~BatchScorer() = default;

  // Whether the label can be scored against; a data error that says why not otherwise.
  virtual Status check_label(std::string_view label) const = 0;

  // One reward per request, in their order; finite, unless it failed. To be called from one thread at a time.
  virtual StatusOr<std::vector<Reward>> score(std::span<const ScoreRequest> requests) = 0;

  // Whether it may give failed rewards in place of an error.
  virtual bool scores_failures() const { return false; }
};

// A type of scorer_types(), one response after the other.
StatusOr<std::unique_ptr<BatchScorer>> make_batch_scorer(std::string_view type);

}  // namespace accord::reward
