// exact: 1 if response and label are equal without their surrounding white space, else 0.
#include "reward/scorers.hpp"
#include "reward/text.hpp"

namespace accord::reward {
namespace {

class Exact : public Scorer {
 public:
  Score score(std::string_view response, std::string_view label) const override {
    const std::string_view pred = strip(response);
    return {pred == strip(label) ? 1.0 : 0.0, std::string(pred)};
  }
};

}  // namespace

std::unique_ptr<Scorer> make_exact() { return std::make_unique<Exact>(); }

}  // namespace accord::reward
