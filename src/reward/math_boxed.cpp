// math_boxed: +1 if the last \boxed{...} within the last 100 characters holds exactly the label, else -1.
// Nothing is normalized; a box that begins before those characters does not count.
#include "reward/scorers.hpp"
#include "reward/text.hpp"

namespace accord::reward {
namespace {

constexpr size_t kWindow = 100;

class MathBoxed : public Scorer {
 public:
  Score score(std::string_view response, std::string_view label) const override {
    const auto boxed = last_boxed(last_characters(response, kWindow));
    if (!boxed) {
      return {-1.0, std::nullopt};
    }
    return {*boxed == label ? 1.0 : -1.0, std::string(*boxed)};
  }
};

}  // namespace

std::unique_ptr<Scorer> make_math_boxed() { return std::make_unique<MathBoxed>(); }

}  // namespace accord::reward
