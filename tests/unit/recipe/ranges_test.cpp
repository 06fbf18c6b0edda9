#include <string>
#include <vector>

#include "recipe/recipe.hpp"
#include "support/catch.hpp"

namespace accord::recipe {
namespace {

TEST_CASE("Numbers that fp32 would turn into 0 or infinity are refused") {
  for (const std::string set :
       {"rollout.top_p=1e-300", "trainer.optimizer.eps=1e-320", "trainer.optimizer.lr=1e300"}) {
    const std::vector<std::string> sets{set};
    const std::string key = set.substr(0, set.find('='));
    const Status status = parse_recipe("run: {name: n}", "r.yaml", sets).status();
    INFO(set);
    CHECK(std::string(message_of(status)).find(key + ": must be at least") != std::string::npos);
  }
}

}  // namespace
}  // namespace accord::recipe
