#include "text/dataset.hpp"

#include <filesystem>

#include "base/files.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"
#include "text/sft_dataset.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

using Kind = ChatTemplate::Kind;

struct Fixture {
  std::unique_ptr<Tokenizer> tokenizer = testing::tiny_tokenizer();
  DatasetOptions options;
  Kind kind = Kind::kNone;

  Fixture() { options.path = "data.jsonl"; }
  StatusOr<Dataset> parse(std::string_view content) const {
    return Dataset::parse(content, options, *tokenizer, ChatTemplate(kind));
  }
  std::string error(std::string_view content) const {
    const auto data = parse(content);
    REQUIRE(!data.ok());
    CHECK(exit_code(data.status()) == ExitCode::kBadData);
    return testing::error_of(data.status());
  }
};

bool has(const std::string& text, std::string_view part) { return text.find(part) != std::string::npos; }

}  // namespace

TEST_CASE("Both record layouts are read in one file") {
  Fixture f;
  f.kind = Kind::kChatMl;
  const auto data = f.parse(
      "{\"prompt\": [{\"role\": \"user\", \"content\": \"2+2?\"}], \"label\": \"4\"}\n"
      "{\"data_source\": \"m\", \"prompt\": [{\"content\": \"3+3?\", \"role\": \"user\"}], \"ability\": "
      "\"MATH\", "
      "\"reward_model\": {\"ground_truth\": \"6\", \"style\": \"rule\"}, \"extra_info\": {\"index\": "
      "\"7\"}}\n"
      "{\"prompt\": \"4+4?\", \"label\": 8}");
  REQUIRE(data.ok());
  REQUIRE(data->size() == 3);
  CHECK(data->text(1) == "<|im_start|>user\n3+3?<|im_end|>\n<|im_start|>assistant\n");
  CHECK(data->text(2) == "<|im_start|>user\n4+4?<|im_end|>\n<|im_start|>assistant\n");
  CHECK(data->at(0).label == "4");
  CHECK(data->at(1).label == "6");
  CHECK(data->at(2).label == "8");
  for (int64_t i = 0; i < 3; ++i) {
    CHECK(data->at(i).id == static_cast<uint64_t>(i));
    CHECK(data->at(i).tokens == f.tokenizer->encode(data->text(i)).value());
  }
}

TEST_CASE("A record's own label key comes before the upstream one") {
  Fixture f;
  f.options.prompt_key = "question";
  f.options.label_key = "answer";
  const auto data =
      f.parse(R"({"question": "q", "answer": "mine", "reward_model": {"ground_truth": "other"}})");
  REQUIRE(data.ok());
  CHECK(data->at(0).label == "mine");
}

TEST_CASE("Records are kept for scorers when asked") {
  Fixture f;
  f.options.keep_records = true;
  f.options.on_bad_line = OnBad::kSkip;
  const auto data = f.parse(
      "{\"prompt\": \"2+2?\", \"label\": \"4\", \"level\": 5}\nbroken\n"
      "{\"tags\": [\"a\"], \"prompt\": \"3+3?\", \"reward_model\": {\"ground_truth\": \"6\"}}");
  REQUIRE(data.ok());
  REQUIRE(data->size() == 2);
  CHECK(data->record(0).messages == R"([{"role":"user","content":"2+2?"}])");
  CHECK(data->record(0).metadata == R"({"level":5})");
  CHECK(data->record(1).messages == R"([{"role":"user","content":"3+3?"}])");
  CHECK(data->record(1).metadata == R"({"tags":["a"],"reward_model":{"ground_truth":"6"}})");
}

TEST_CASE("Numbers become labels in their shortest form") {
  Fixture f;
  const auto data = f.parse(
      "{\"prompt\":\"a\",\"label\":34}\n{\"prompt\":\"a\",\"label\":34.0}\n{\"prompt\":\"a\",\"label\":-0.5}"
      "\n"
      "{\"prompt\":\"a\",\"label\":18446744073709551615}\n{\"prompt\":\"a\",\"label\":\"034\"}\n{\"prompt\":"
      "\"a\",\"label\":1e3}");
  REQUIRE(data.ok());
  std::vector<std::string> labels;
  for (int64_t i = 0; i < data->size(); ++i) {
    labels.push_back(data->at(i).label);
  }
  CHECK(labels == std::vector<std::string>{"34", "34", "-0.5", "18446744073709551615", "034", "1000"});
  CHECK(has(f.error(R"({"prompt":"a","label":123456789012345678901234})"), "write it as a string"));
  CHECK(has(f.error(R"({"prompt":"a","label":1e300})"), "write it as a string"));
}

TEST_CASE("Byte order marks carriage returns and blank lines are no records") {
  Fixture f;
  const auto data = f.parse(
      "\xEF\xBB\xBF{\"prompt\":\"a\",\"label\":\"1\"}\r\n\r\n  \n{\"prompt\":\"b\",\"label\":\"2\"}\r\n\n");
  REQUIRE(data.ok());
  REQUIRE(data->size() == 2);
  CHECK(data->at(1).id == 1);
  CHECK(data->report().records == 2);
}

TEST_CASE("A bad line is an error with its place and the way out") {
  Fixture f;
  const std::string good = "{\"prompt\":\"a\",\"label\":\"1\"}\n";
  const std::pair<const char*, const char*> cases[] = {
      {"{\"prompt\":\"a\"", "not valid JSON"},
      {"[1]", "must be an object"},
      {"{\"label\":\"1\"}", "'prompt' is missing"},
      {"{\"prompt\":\"a\"}", "'label' is missing"},
      {"{\"prompt\":\"a\",\"label\":null}", "not null"},
      {"{\"prompt\":\"a\",\"label\":true}", "not a boolean"},
      {"{\"prompt\":5,\"label\":\"1\"}", "text or a list"},
      {"{\"prompt\":\"\",\"label\":\"1\"}", "the prompt is empty"},
      {"{\"prompt\":\"a\",\"prompt\":\"b\",\"label\":\"1\"}", "appears twice"},
      {"{\"prompt\":\"a\",\"label\":\"1\"} x", "not valid JSON"},
      {"{\"prompt\":\"\xff\",\"label\":\"1\"}", "not valid JSON"},
      {"{\"prompt\":\"\\ud800\",\"label\":\"1\"}", "not valid JSON"},
      {"{\"prompt\":[{\"role\":\"user\",\"content\":\"a\"}],\"label\":\"1\"}", "need a chat template"},
      {"{\"prompt\":[],\"label\":\"1\"}", "an empty list"},
      {"{\"prompt\":[{\"role\":\"user\",\"content\":[{\"text\":\"a\"}]}],\"label\":\"1\"}",
       "'content' must be a string"},
      {"{\"prompt\":[{\"role\":\"assistant\",\"content\":\"\",\"tool_calls\":[1]}],\"label\":\"1\"}",
       "tool_calls"},
  };
  for (const auto& [line, reason] : cases) {
    CAPTURE(line);
    const std::string error = f.error(good + "\n" + line + "\n" + good);
    CAPTURE(error);
    CHECK(has(error, "data.jsonl:3: "));
    CHECK(has(error, reason));
    CHECK(has(error, "on_bad_line: skip"));
  }
}

TEST_CASE("Skipped lines are counted and keep the ids of the rest") {
  Fixture f;
  f.options.on_bad_line = OnBad::kSkip;
  const auto data =
      f.parse("{\"prompt\":\"a\",\"label\":\"1\"}\nnonsense\n{\"prompt\":\"b\",\"label\":\"2\"}\n{}\n");
  REQUIRE(data.ok());
  CHECK(data->size() == 2);
  CHECK(data->at(1).id == 2);
  CHECK(data->report().bad_lines == 2);
  REQUIRE(data->report().problems.size() == 2);
  CHECK(has(data->report().problems[1], "data.jsonl:4: "));
  CHECK(has(f.error("x\ny\n"), "none of the 2 records"));
}

TEST_CASE("Long prompts fail or are skipped by policy") {
  Fixture f;
  f.options.max_prompt_tokens = 3;
  const std::string content = "{\"prompt\":\"xyz\",\"label\":\"1\"}\n{\"prompt\":\"xyzw\",\"label\":\"1\"}\n";
  const std::string error = f.error(content);
  CHECK(has(error, "data.jsonl:2: the prompt has 4 tokens; the limit is 3"));
  CHECK(has(error, "on_long_prompt: skip"));
  f.options.on_long_prompt = OnBad::kSkip;
  const auto data = f.parse(content);
  REQUIRE(data.ok());
  CHECK(data->size() == 1);
  CHECK(data->report().long_prompts == 1);
  CHECK(data->report().max_tokens == 3);
  f.options.max_prompt_tokens = 2;
  CHECK(has(f.error(content), "none of the 2 records"));
}

TEST_CASE("Duplicates are counted and stay") {
  Fixture f;
  const std::string one = "{\"prompt\":\"a\",\"label\":\"1\"}\n";
  const auto data = f.parse(one + one + "{\"prompt\":\"a\",\"label\":\"2\"}\n" + one);
  REQUIRE(data.ok());
  CHECK(data->size() == 4);
  CHECK(data->report().duplicates == 2);
  CHECK(data->at(3).id == 3);
  CHECK(data->at(3).tokens == data->at(0).tokens);
  CHECK(data->text(3) == "a");
}

TEST_CASE("Files without records are refused") {
  Fixture f;
  for (const char* content : {"", "\n\n", "\xEF\xBB\xBF", " \r\n"}) {
    CHECK(has(f.error(content), "has no records"));
  }
}

TEST_CASE("Datasets are read from files") {
  Fixture f;
  const TempDir dir;
  f.options.path = dir / "train.jsonl";
  REQUIRE(write_file_atomic(f.options.path, "{\"prompt\":\"a\",\"label\":\"1\"}\n").ok());
  CHECK(Dataset::load(f.options, *f.tokenizer, ChatTemplate(Kind::kNone))->size() == 1);
  f.options.path = dir / "missing.jsonl";
  CHECK(exit_code(Dataset::load(f.options, *f.tokenizer, ChatTemplate(Kind::kNone)).status()) ==
        ExitCode::kIo);
}

TEST_CASE("Supervised records hold prompt response and the end token") {
  Fixture f;
  SftOptions options;
  options.path = "sft.jsonl";
  const ChatTemplate chat(Kind::kChatMl);
  const std::string content =
      "{\"prompt\":\"2+2?\",\"response\":\"4\"}\n{\"prompt\":[{\"role\":\"user\",\"content\":\"x\"}],"
      "\"response\":\"yz\"}\n";
  const auto data = SftDataset::parse(content, options, *f.tokenizer, chat);
  REQUIRE(data.ok());
  REQUIRE(data->examples.size() == 2);
  const SftExample& first = data->examples[0];
  const auto prompt = f.tokenizer->encode(chat.render_text("2+2?").value()).value();
  CHECK(first.prompt_length == static_cast<int32_t>(prompt.size()));
  CHECK(f.tokenizer->decode(first.tokens, false) ==
        "<|im_start|>user\n2+2?<|im_end|>\n<|im_start|>assistant\n4<|im_end|>");
  CHECK(data->examples[1].id == 1);
  CHECK(has(
      testing::error_of(
          SftDataset::parse("{\"prompt\":\"a\",\"response\":\"\"}", options, *f.tokenizer, chat).status()),
      "sft.jsonl:1: 'response' is empty"));
  options.max_tokens = static_cast<int64_t>(first.tokens.size()) - 1;
  CHECK(!SftDataset::parse(content, options, *f.tokenizer, chat).ok());
}

}  // namespace accord::text
