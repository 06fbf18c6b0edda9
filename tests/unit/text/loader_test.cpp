// What the loader refuses, and the words it uses.
#include <functional>

#include "support/catch.hpp"
#include "text/tokenizer.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

std::string refusal(const std::function<void(Json&)>& change) {
  Json json = testing::byte_tokenizer_json();
  change(json);
  const auto tokenizer = testing::parse_tokenizer(json);
  REQUIRE(!tokenizer.ok());
  CHECK(exit_code(tokenizer.status()) == ExitCode::kBadData);
  return testing::error_of(tokenizer.status());
}

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

Json token(int id, const std::string& content) {
  return {{"id", id}, {"content", content}, {"special", true}};
}

}  // namespace

TEST_CASE("Unsupported components are refused by name") {
  CHECK(has(refusal([](Json& j) { j["normalizer"] = {{"type", "Lowercase"}}; }), "normalizer: 'Lowercase'"));
  CHECK(has(refusal([](Json& j) {
              j["pre_tokenizer"] = {{"type", "Metaspace"}};
            }),
            "pre-tokenizer 'Metaspace'"));
  CHECK(has(refusal([](Json& j) { j["pre_tokenizer"] = nullptr; }), "no ByteLevel"));
  CHECK(has(refusal([](Json& j) { j["decoder"] = {{"type", "WordPiece"}}; }), "decoder: 'WordPiece'"));
  CHECK(has(refusal([](Json& j) { j["decoder"] = nullptr; }), "decoder: is null"));
  CHECK(has(refusal([](Json& j) {
              j["post_processor"] = {{"type", "BertProcessing"}};
            }),
            "post_processor: 'BertProcessing'"));
  CHECK(has(refusal([](Json& j) { j["model"]["type"] = "Unigram"; }), "the type \"Unigram\""));
  CHECK(has(refusal([](Json& j) { j["model"]["byte_fallback"] = true; }), "byte_fallback"));
  CHECK(has(refusal([](Json& j) { j["model"]["dropout"] = 0.1; }), "dropout"));
  CHECK(has(refusal([](Json& j) { j["model"]["end_of_word_suffix"] = "</w>"; }), "end_of_word_suffix"));
  CHECK(has(refusal([](Json& j) { j["version"] = "2.0"; }), "version"));
  CHECK(has(refusal([](Json& j) { j["version"] = "2.0"; }), "memory/tokenizer.json"));
}

TEST_CASE("Patterns that mean something else in PCRE2 are refused") {
  for (const char* pattern :
       {"(a)\\1", "\\bword", "[a&&b]", "[[:alpha:]]", "\\h", "(?<n>a)", "a(?i)b", "\\p{Greek}", "[]", "(",
        "a)", "*a", "[z-a]", "\\", "\\p{L", "(?m:a.b)", "\\x{D800}", "a{2}?", "(?=a)+"}) {
    CAPTURE(pattern);
    const std::string error = refusal([&](Json& j) {
      j["pre_tokenizer"] = {
          {"type", "Sequence"},
          {"pretokenizers",
           {{{"type", "Split"}, {"pattern", {{"Regex", pattern}}}, {"behavior", "Isolated"}},
            {{"type", "ByteLevel"}}}}};
    });
    CHECK(has(error, "pre_tokenizer: Split: "));
    CHECK(has(error, pattern));
  }
}

TEST_CASE("A contradictory vocabulary is refused") {
  CHECK(has(refusal([](Json& j) { j["model"]["vocab"]["new"] = 7; }), "the same id 7"));
  CHECK(has(refusal([](Json& j) { j["model"]["vocab"]["new"] = -1; }), "the id of 'new'"));
  CHECK(has(refusal([](Json& j) { j["model"]["vocab"]["new"] = 1.5; }), "the id of 'new'"));
  CHECK(has(refusal([](Json& j) { j["model"]["vocab"]["new"] = int64_t{1} << 40; }), "the id of 'new'"));
  CHECK(has(refusal([](Json& j) { j["model"].erase("vocab"); }), "'vocab'"));
  CHECK(has(refusal([](Json& j) { j["model"]["merges"] = {"a b"}; }), "needs 'ab'"));
  CHECK(has(refusal([](Json& j) { j["model"]["merges"] = {"a  b"}; }), "two tokens"));
  CHECK(has(refusal([](Json& j) { j["model"]["merges"] = {5}; }), "entry 0"));
  CHECK(has(refusal([](Json& j) {
              j["model"]["vocab"]["ab"] = 256;
              j["model"]["merges"] = Json::array({"a b", Json::array({"a", "b"})});
            }),
            "appears twice"));
  CHECK(has(refusal([](Json& j) { j["model"]["unk_token"] = "<unk>"; }), "unk_token"));
  const auto twice =
      Tokenizer::parse(R"({"model": {"type": "BPE", "vocab": {"a": 0, "a": 1}, "merges": []}})", "", "m");
  CHECK(has(testing::error_of(twice.status()), "'a' appears twice"));
}

TEST_CASE("Contradictory added tokens are refused") {
  CHECK(has(refusal([](Json& j) { j["added_tokens"] = {token(300, "<x>")}; }), "the next free id is 256"));
  CHECK(has(refusal([](Json& j) { j["added_tokens"] = {token(5, "a")}; }), "the vocabulary gives it 97"));
  CHECK(has(refusal([](Json& j) { j["added_tokens"] = {token(97, "a"), token(97, "a")}; }), "appears twice"));
  CHECK(has(refusal([](Json& j) { j["added_tokens"] = {token(256, "")}; }), "empty"));
}

TEST_CASE("End-of-text ids come from tokenizer_config.json") {
  Json json = testing::byte_tokenizer_json();
  json["added_tokens"] = {token(256, "<end>")};
  CHECK((*testing::parse_tokenizer(json))->eos_token_ids().empty());
  CHECK((*testing::parse_tokenizer(json, R"({"eos_token": "<end>"})"))->eos_token_ids() ==
        std::vector<int32_t>{256});
  CHECK((*testing::parse_tokenizer(json, R"({"eos_token": {"content": "<end>"}})"))->eos_token_ids() ==
        std::vector<int32_t>{256});
  CHECK((*testing::parse_tokenizer(json, R"({"eos_token": null})"))->eos_token_ids().empty());
  CHECK(has(testing::error_of(testing::parse_tokenizer(json, R"({"eos_token": "<eos>"})").status()),
            "eos_token"));
  CHECK(has(testing::error_of(
                testing::parse_tokenizer(json, R"({"added_tokens_decoder": {"7": {"content": "<end>"}}})")
                    .status()),
            "added_tokens_decoder"));
}

TEST_CASE("Ids and tokens are looked up both ways") {
  const auto tokenizer = testing::tiny_tokenizer();
  CHECK(tokenizer->vocab_size() == 485);
  CHECK(tokenizer->token_id("<|im_end|>") == 482);
  CHECK(tokenizer->token_id("a") == 64);
  CHECK(!tokenizer->token_id("no such token").has_value());
  CHECK(tokenizer->is_special(482));
  CHECK(!tokenizer->is_special(*tokenizer->token_id("<think>")));
  CHECK(!tokenizer->has_id(485));
  CHECK(!tokenizer->has_id(-1));
  CHECK(tokenizer->bytes_of(*tokenizer->token_id("Ġthe")) == " the");
  CHECK(tokenizer->decode(std::vector<int32_t>{64, 485, -3, 64}) == "aa");
  CHECK(tokenizer->eos_token_ids() == std::vector<int32_t>{482});
}

TEST_CASE("Missing bytes become the unknown token or an error") {
  Json json = testing::byte_tokenizer_json();
  json["model"]["vocab"].erase("z");
  json["model"]["vocab"]["<unk>"] = 122;
  const auto strict = testing::parse_tokenizer(json);
  REQUIRE(strict.ok());
  CHECK(has(testing::error_of((*strict)->encode("az").status()), "byte 0x7a"));
  json["model"]["unk_token"] = "<unk>";
  CHECK((*testing::parse_tokenizer(json))->encode("zza").value() == std::vector<int32_t>{122, 122, 97});
  json["model"]["fuse_unk"] = true;
  CHECK((*testing::parse_tokenizer(json))->encode("zzaz").value() == std::vector<int32_t>{122, 97, 122});
}

TEST_CASE("ignore_merges takes a whole piece that the vocabulary has") {
  Json json = testing::byte_tokenizer_json();
  json["model"]["vocab"]["abc"] = 256;
  CHECK((*testing::parse_tokenizer(json))->encode("abc").value() == std::vector<int32_t>{97, 98, 99});
  json["model"]["ignore_merges"] = true;
  CHECK((*testing::parse_tokenizer(json))->encode("abc").value() == std::vector<int32_t>{256});
  CHECK((*testing::parse_tokenizer(json))->encode("abcd").value() == std::vector<int32_t>{97, 98, 99, 100});
}

TEST_CASE("Text that is not UTF-8 is refused with its offset") {
  const auto tokenizer = testing::tiny_tokenizer();
  for (const std::string text : {"ab\xff", "ab\xc3", "ab\xed\xa0\x80", "ab\xc0\x80", "ab\xf4\x90\x80\x80"}) {
    const auto ids = tokenizer->encode(text);
    REQUIRE(!ids.ok());
    CHECK(exit_code(ids.status()) == ExitCode::kBadData);
    CHECK(has(testing::error_of(ids.status()), "offset 2"));
  }
}

}  // namespace accord::text
