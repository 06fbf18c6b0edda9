// Against what the Hugging Face tokenizers library (0.23) and Jinja gave for the same inputs; see
// tests/data/text.
#include "support/catch.hpp"
#include "text/byte_level.hpp"
#include "text/chat_template.hpp"
#include "text/pretokenizer.hpp"
#include "text/records.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

void check_cases(const Tokenizer& tokenizer, const Json& cases) {
  for (const Json& item : cases) {
    const auto text = item.at("text").get<std::string>();
    CAPTURE(text);
    const auto ids = tokenizer.encode(text);
    REQUIRE(ids.ok());
    CHECK(*ids == item.at("ids").get<std::vector<int32_t>>());
    CHECK(tokenizer.decode(*ids, /*skip_special=*/false) == item.at("decoded").get<std::string>());
    CHECK(tokenizer.decode(*ids, /*skip_special=*/true) == item.at("skipped").get<std::string>());
  }
}

std::vector<std::string> byte_pieces(const Json& spelled) {
  std::vector<std::string> pieces;
  for (const Json& piece : spelled) {
    pieces.push_back(spelled_bytes(piece.get<std::string>()).value());
  }
  return pieces;
}

}  // namespace

TEST_CASE("Small tokenizers give the reference ids and texts") {
  const Json cases = testing::read_json(testing::data_path("small_cases.json"));
  check_cases(*testing::tiny_tokenizer(), cases.at("tiny"));
  auto quickstart = Tokenizer::load(std::string(ACCORD_SOURCE_DIR) + "/configs/quickstart/tokenizer");
  REQUIRE(quickstart.ok());
  check_cases(**quickstart, cases.at("quickstart"));
}

TEST_CASE("Qwen3 gives the reference ids of awkward texts") {
  if (const auto tokenizer = testing::large_tokenizer("qwen3")) {
    check_cases(*tokenizer, testing::read_json(testing::data_path("awkward_cases.json")).at("qwen3"));
  }
}

TEST_CASE("DeepSeek-V3 gives the reference ids of awkward texts") {
  if (const auto tokenizer = testing::large_tokenizer("deepseek_v3")) {
    check_cases(*tokenizer, testing::read_json(testing::data_path("awkward_cases.json")).at("deepseek_v3"));
  }
}

TEST_CASE("Random ids decode to the reference text, also token by token") {
  const auto tokenizer = testing::tiny_tokenizer();
  for (const Json& item : testing::read_json(testing::data_path("decode_cases.json"))) {
    const auto ids = item.at("ids").get<std::vector<int32_t>>();
    CAPTURE(ids);
    for (const bool skip : {false, true}) {
      const auto expected = item.at(skip ? "skipped" : "decoded").get<std::string>();
      CHECK(tokenizer->decode(ids, skip) == expected);
      StreamDecoder stream(*tokenizer, skip);
      std::string streamed;
      for (const int32_t id : ids) {
        streamed += stream.push(id);
      }
      CHECK(streamed + stream.finish() == expected);
    }
  }
}

TEST_CASE("Pre-tokenizers cut where the reference cuts") {
  for (const Json& variant : testing::read_json(testing::data_path("pretokenizer_cases.json"))) {
    INFO(variant.at("name").get<std::string>());
    const auto pre_tokenizer = PreTokenizer::parse(variant.at("pre_tokenizer"));
    INFO(testing::error_of(pre_tokenizer.status()));
    REQUIRE(pre_tokenizer.ok());
    for (const Json& item : variant.at("cases")) {
      const auto text = item.at("text").get<std::string>();
      CAPTURE(text);
      Regex::Scratch scratch;
      Pieces pieces;
      REQUIRE(pre_tokenizer->split(text, scratch, pieces).ok());
      CHECK(std::vector<std::string>(pieces.views.begin(), pieces.views.end()) ==
            byte_pieces(item.at("pieces")));
    }
  }
}

TEST_CASE("Added tokens are found where the reference finds them") {
  Json json = testing::read_json(testing::data_path("tiny_tokenizer/tokenizer.json"));
  for (const Json& variant : testing::read_json(testing::data_path("added_token_cases.json"))) {
    INFO(variant.at("name").get<std::string>());
    json["added_tokens"] = variant.at("added_tokens");
    const auto tokenizer = testing::parse_tokenizer(json);
    INFO(testing::error_of(tokenizer.status()));
    REQUIRE(tokenizer.ok());
    for (const Json& item : variant.at("cases")) {
      CAPTURE(item.at("text").get<std::string>());
      CHECK((*tokenizer)->encode(item.at("text").get<std::string>()).value() ==
            item.at("ids").get<std::vector<int32_t>>());
    }
  }
}

TEST_CASE("Chat templates render what their Jinja text renders") {
  const Json cases = testing::read_json(testing::data_path("chat_cases.json"));
  REQUIRE(cases.size() > 100);
  for (const Json& item : cases) {
    const auto chat = ChatTemplate::named(item.at("template").get<std::string>());
    REQUIRE(chat.ok());
    const auto messages = parse_messages(item.at("messages"));
    REQUIRE(messages.ok());
    const auto text = chat->render(*messages, item.at("add_generation_prompt").get<bool>());
    CAPTURE(item.dump());
    REQUIRE(text.ok());
    CHECK(*text == item.at("text").get<std::string>());
  }
}

}  // namespace accord::text
