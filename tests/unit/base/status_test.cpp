#include "base/status.hpp"

#include "support/catch.hpp"

using namespace accord;

TEST_CASE("a status carries its exit code, also when annotated") {
  const Status status = recipe_error("line {}: unknown key '{}'", 3, "trainr");
  CHECK(exit_code(status) == ExitCode::kBadRecipe);
  const Status outer = annotate(status, "recipe.yaml");
  CHECK(exit_code(outer) == ExitCode::kBadRecipe);
  CHECK(message_of(outer) == "recipe.yaml: line 3: unknown key 'trainr'");
  CHECK(exit_code(absl::OkStatus()) == ExitCode::kOk);
  CHECK(exit_code(absl::InternalError("x")) == ExitCode::kInternal);
}
