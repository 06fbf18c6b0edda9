// Any response and label: every scorer answers with one of its scores.
#include <algorithm>
#include <cmath>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string_view>
#include <vector>

#include "reward/reward.hpp"

using namespace accord;

// The label ends at the first NUL, the rest is the response.
extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::vector<std::unique_ptr<reward::Scorer>> scorers = [] {
    std::vector<std::unique_ptr<reward::Scorer>> made;
    for (const reward::ScorerType& type : reward::scorer_types()) {
      made.push_back(type.make());
    }
    return made;
  }();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const std::string_view label = text.substr(0, text.find('\0'));
  const std::string_view response = text.substr(std::min(label.size() + 1, text.size()));
  for (const auto& scorer : scorers) {
    const reward::Score score = scorer->score(response, label);
    const bool fine = score.score == 1.0 || score.score == 0.0 || score.score == -1.0;
    if (scorer->check_label(label).ok() ? !fine : !std::isnan(score.score)) {
      std::abort();
    }
  }
  return 0;
}
