#include "reward/reward.hpp"

#include <cmath>
#include <ctime>
#include <fstream>
#include <nlohmann/json.hpp>
#include <string>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::reward;
using nlohmann::json;

namespace {

json reference_cases() {
  std::ifstream file(ACCORD_TEST_DATA "/reward/cases.json");
  REQUIRE(file.good());
  return json::parse(file);
}

std::unique_ptr<Scorer> scorer(const char* type) {
  StatusOr<std::unique_ptr<Scorer>> made = make_scorer(type);
  REQUIRE(made.ok());
  return std::move(*made);
}

void check_score(const Score& got, const json& score, const json& pred) {
  CHECK(got.score == score.get<double>());
  CHECK(got.pred.has_value() == !pred.is_null());
  if (got.pred && !pred.is_null()) {
    CHECK(*got.pred == pred.get<std::string>());
  }
}

std::string repeat(const std::string& unit, size_t bytes) {
  std::string out;
  while (out.size() < bytes) {
    out += unit;
  }
  return out;
}

}  // namespace

TEST_CASE("math rewards equal the reference in every field") {
  const json cases = reference_cases();
  const auto dapo = scorer("math_dapo");
  const auto boxed = scorer("math_boxed");
  const auto integer = scorer("math_dapo_integer");
  CHECK(cases["math_dapo"].size() == 49);
  for (const json& c : cases["math_dapo"]) {
    const std::string response = c["response"];
    const std::string label = c["label"];
    CAPTURE(response);
    CAPTURE(label);
    check_score(dapo->score(response, label), c["score"], c["pred"]);
    check_score(boxed->score(response, label), c["boxed_score"], c["boxed_pred"]);
    const json& expected = c["integer_label"];
    if (expected.contains("error")) {
      CHECK(exit_code(integer->check_label(label)) == ExitCode::kBadData);
      CHECK(std::isnan(integer->score(response, label).score));
    } else {
      CHECK(integer->check_label(label).ok());
      check_score(integer->score(response, label), expected["score"], expected["pred"]);
    }
  }
}

TEST_CASE("gsm8k rewards equal the reference in every field") {
  const json cases = reference_cases();
  const auto strict = scorer("gsm8k");
  const auto flexible = scorer("gsm8k_flexible");
  CHECK(cases["gsm8k"].size() == 17);
  for (const json& c : cases["gsm8k"]) {
    const std::string response = c["response"];
    const std::string label = c["label"];
    CAPTURE(response);
    check_score(strict->score(response, label), c["strict"], c["strict_pred"]);
    check_score(flexible->score(response, label), c["flexible"], c["flexible_pred"]);
  }
}

TEST_CASE("windows count characters, not bytes") {
  const auto dapo = scorer("math_dapo");
  // "Answer: 5" and a line end are 10 characters; 290 more of any width keep them in the window of 300.
  for (const char* filler : {"y", "é", "数", "😀"}) {
    CAPTURE(filler);
    std::string tail;
    for (int i = 0; i < 290; ++i) {
      tail += filler;
    }
    CHECK(dapo->score("Answer: 5\n" + tail, "5").score == 1.0);
    CHECK(dapo->score("Answer: 5\n" + tail + filler, "5").pred == "[INVALID]");
  }
  const auto boxed = scorer("math_boxed");
  CHECK(boxed->score("\\boxed{7}" + repeat("x", 91), "7").score == 1.0);
  CHECK(boxed->score("\\boxed{7}" + repeat("x", 92), "7").score == -1.0);
}

TEST_CASE("an answer of nothing but space is found as the reference pattern finds it") {
  const auto dapo = scorer("math_dapo");
  CHECK(dapo->score("Answer:\n\n  42\n", "42").score == 1.0);
  CHECK(dapo->score("Answer: 7\nAnswer: \n", "7").pred == "");
  CHECK(dapo->score("Answer: 7\nAnswer:\n", "7").pred == "7");
  CHECK(dapo->score("Answer: Answer: 7", "7").pred == "Answer:7");
  CHECK(dapo->score("An\u017Fwer\u00A0:\u30008", "8").score == 1.0);
  CHECK(dapo->score("Answer : 1,\u0662\u00B3", "1\u0662\u00B3").score == 1.0);
}

TEST_CASE("labels of math_dapo_integer are cut to whole numbers") {
  const auto integer = scorer("math_dapo_integer");
  CHECK(integer->score("Answer: 34", "34.9").score == 1.0);
  CHECK(integer->score("Answer: -3", "-3.5").score == 1.0);
  CHECK(integer->score("Answer: 0", "-0.5").score == 1.0);
  CHECK(integer->score("Answer: 1000", "1_000").score == 1.0);
  CHECK(integer->score("Answer: 1000000000000000019884624838656", "1e30").score == 1.0);
  CHECK(!integer->check_label("").ok());
  CHECK(!integer->check_label("nan").ok());
  CHECK(!integer->check_label("inf").ok());
}

TEST_CASE("exact ignores surrounding space only") {
  const auto exact = scorer("exact");
  CHECK(exact->score(" a b\n", "a b").score == 1.0);
  CHECK(exact->score("a  b", "a b").score == 0.0);
  CHECK(exact->score("\u3000x\u00A0", "x").pred == "x");
  CHECK(exact->score("", "").score == 1.0);
}

TEST_CASE("an unknown reward is a recipe error that lists the known ones") {
  const auto made = make_scorer("math_dap0");
  REQUIRE(!made.ok());
  CHECK(exit_code(made.status()) == ExitCode::kBadRecipe);
  for (const ScorerType& type : scorer_types()) {
    CHECK(message_of(made.status()).find(type.name) != std::string_view::npos);
    CHECK(make_scorer(type.name).ok());
  }
}

TEST_CASE("hostile megabytes take linear time") {
  constexpr size_t kMegabyte = 1 << 20;
  for (const ScorerType& type : scorer_types()) {
    const auto one = scorer(std::string(type.name).c_str());
    for (const char* unit : {"Answer:", "Answer",    "\\boxed{", "\\text{", "####  ", "#### ",    "$",
                             "{",       "}",         "1",        ",",       "frac",   "sqrt",     " ",
                             "\n",      "\\text{\n", "=",        "a ",      "\xff",   "\xe2\x80", "-.,"}) {
      const std::string text = repeat(unit, kMegabyte);
      CAPTURE(std::string(type.name));
      CAPTURE(unit);
      const std::clock_t start = std::clock();
      one->score(text, "34");
      one->score("Answer: 34 \\boxed{34} #### 34", text);
      one->score("Answer: " + text, text);
      const double seconds = static_cast<double>(std::clock() - start) / CLOCKS_PER_SEC;
      CHECK(seconds < 5.0);  // milliseconds in practice; minutes if anything were quadratic
    }
  }
}
