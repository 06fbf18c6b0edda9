#pragma once
// Rewards that are pure functions of (response, label).
//
// To add one: write src/reward/<name>.cpp with a Scorer and its factory, declare the factory in scorers.hpp,
// and add one line to the table in registry.cpp. Recipes, `accord score` and `accord eval` then know it by
// its name.
//
// Texts are UTF-8. Every scorer takes time linear in the lengths of response and label, whatever they hold.
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord::reward {

struct Score {
  double score = 0.0;
  std::optional<std::string> pred;  // the answer that was read out of the response; none found: empty
  bool operator==(const Score&) const = default;
};

class Scorer {
 public:
  virtual ~Scorer() = default;

  // Whether the label can be scored against; a data error that says why not otherwise.
  virtual Status check_label(std::string_view label) const;

  // Thread safe. A label that check_label refuses scores NaN.
  virtual Score score(std::string_view response, std::string_view label) const = 0;
};

// `type` is a name of scorer_types(); anything else is a recipe error that lists them.
StatusOr<std::unique_ptr<Scorer>> make_scorer(std::string_view type);

struct ScorerType {
  std::string_view name;
  std::string_view summary;  // one line for --help
  std::unique_ptr<Scorer> (*make)();
};
std::span<const ScorerType> scorer_types();

}  // namespace accord::reward
