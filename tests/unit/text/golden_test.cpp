// Token ids and decoded texts that the Hugging Face tokenizers library computed for published tokenizers.
#include "support/catch.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

void check_cases(const std::string& name, const Json& cases) {
  const auto tokenizer = testing::large_tokenizer(name);
  if (tokenizer == nullptr) {
    return;
  }
  REQUIRE(cases.size() > 50);
  for (const Json& item : cases) {
    const auto text = item.at("text").get<std::string>();
    CAPTURE(text);
    const auto ids = tokenizer->encode(text);
    REQUIRE(ids.ok());
    CHECK(*ids == item.at("ids").get<std::vector<int32_t>>());
    CHECK(tokenizer->decode(*ids, /*skip_special=*/false) == item.at("decoded").get<std::string>());
  }
}

}  // namespace

TEST_CASE("Qwen3 ids and decoded texts equal the reference") {
  check_cases("qwen3", testing::read_json(testing::data_path("golden_tokens.json")).at("qwen3"));
}

TEST_CASE("DeepSeek-V3 ids and decoded texts equal the reference") {
  check_cases("deepseek_v3", testing::read_json(testing::data_path("golden_tokens.json")).at("deepseek_v3"));
}

}  // namespace accord::text
