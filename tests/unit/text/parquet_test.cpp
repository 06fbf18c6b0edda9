#include "text/parquet.hpp"

#include <cstdio>

#include "base/files.hpp"
#include "support/catch.hpp"
#include "text/dataset.hpp"
#include "text/sft_dataset.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

using Kind = ChatTemplate::Kind;

std::string file(const std::string& name) { return testing::data_path("../parquet/" + name); }

// Whether this build reads Parquet. One that does not must say so, and what to do.
bool is_built() {
  const Status status = check_format({"x.parquet", {}, {}});
  if (status.ok()) {
    return true;
  }
  CHECK(exit_code(status) == ExitCode::kBadRecipe);
  CHECK(testing::error_of(status).find("run scripts/setup and build again, or convert the file to JSONL") !=
        std::string::npos);
  DatasetOptions options;
  options.path = file("plain.parquet");
  CHECK(!Dataset::load(options, *testing::tiny_tokenizer(), ChatTemplate(Kind::kNone)).ok());
  std::puts("SKIPPED: built without Arrow C++");
  return false;
}

StatusOr<Dataset> load(const std::string& name, const std::string& label_key = "label",
                       Kind kind = Kind::kNone, OnBad on_bad = OnBad::kFail) {
  DatasetOptions options;
  options.path = file(name);
  options.label_key = label_key;
  options.on_bad_line = on_bad;
  return Dataset::load(options, *testing::tiny_tokenizer(), ChatTemplate(kind));
}

std::string error_of(const StatusOr<Dataset>& data) {
  return data.ok() ? "no error" : testing::error_of(data.status());
}

Status count_rows(std::string_view content, int64_t& rows) {
  const DataPath path{"f.parquet", {}, {}};
  return for_each_parquet_record(content, path, {"prompt", "reward_model.ground_truth"}, /*all=*/false,
                                 [&](SourceRecord&) {
                                   ++rows;
                                   return absl::OkStatus();
                                 });
}

}  // namespace

TEST_CASE("A Parquet file gives what the same records give as JSONL") {
  if (!is_built()) {
    return;
  }
  std::string jsonl;
  for (int i = 0; i < 50; ++i) {
    jsonl += Json{{"prompt", {{{"content", fmt::format("{} + {} = ? größer", i, i)}, {"role", "user"}}}},
                  {"label", 2 * i}}
                 .dump() +
             "\n";
  }
  DatasetOptions options;
  options.path = "same.jsonl";
  const ChatTemplate chat(Kind::kChatMl);
  const auto expected = Dataset::parse(jsonl, options, *testing::tiny_tokenizer(), chat);
  REQUIRE(expected.ok());
  for (const char* label : {"label", "reward_model.ground_truth"}) {
    const auto data = load("dapo.parquet", label, Kind::kChatMl);
    INFO(error_of(data));
    REQUIRE(data.ok());
    REQUIRE(data->size() == 50);
    for (int64_t i = 0; i < 50; ++i) {
      CHECK(data->at(i).id == static_cast<uint64_t>(i));
      CHECK(data->at(i).tokens == expected->at(i).tokens);
      CHECK(data->at(i).label == expected->at(i).label);
      CHECK(data->line(i) == i + 1);
    }
  }
}

TEST_CASE("A part of a Parquet file crosses row groups") {
  if (!is_built()) {
    return;
  }
  const auto middle = load("plain.parquet@[5:20]");
  REQUIRE(middle.ok());
  REQUIRE(middle->size() == 15);
  for (int64_t i = 0; i < 15; ++i) {
    CHECK(middle->at(i).id == static_cast<uint64_t>(i + 5));
    CHECK(middle->at(i).label == fmt::format("{}", (i + 5) % 5 + 1));
    CHECK(middle->text(i) == fmt::format("{} + 1", (i + 5) % 5));
  }
  CHECK(load("gzip.parquet@[-3:]")->at(0).id == 47);
  CHECK(error_of(load("gzip.parquet@[50:]")).find("holds none of its 50 records") != std::string::npos);
}

TEST_CASE("Numbers and texts of a Parquet file are read by their types") {
  if (!is_built()) {
    return;
  }
  for (const char* name : {"plain.parquet", "gzip.parquet"}) {
    CHECK(load(name, "half")->at(3).label == "1.5");
    CHECK(load(name, "half")->at(4).label == "2");
    CHECK(load(name, "small")->at(49).label == "49");
    CHECK(load(name, "response")->at(1).label == "2");
    SftOptions options;
    options.path = file(name);
    const auto sft = SftDataset::load(options, *testing::tiny_tokenizer(), ChatTemplate(Kind::kNone));
    REQUIRE(sft.ok());
    CHECK(sft->examples.size() == 50);
  }
}

TEST_CASE("Bad rows and columns of a Parquet file are named") {
  if (!is_built()) {
    return;
  }
  CHECK(
      error_of(load("chats.parquet", "label", Kind::kChatMl)).find("chats.parquet:3: prompt: must be text") !=
      std::string::npos);
  const auto some = load("chats.parquet", "label", Kind::kChatMl, OnBad::kSkip);
  REQUIRE(some.ok());
  CHECK(some->size() == 2);
  CHECK(some->report().bad_lines == 3);
  CHECK(error_of(load("odd.parquet")).find("odd.parquet:2: the label must be") != std::string::npos);
  CHECK(error_of(load("odd.parquet", "bytes")).find("odd.parquet:1: bytes: values of the type binary") !=
        std::string::npos);
  CHECK(error_of(load("odd.parquet", "real")).find("odd.parquet:2: real: a number is NaN") !=
        std::string::npos);
  CHECK(error_of(load("odd.parquet", "nothing")).find("odd.parquet:1: the label 'nothing' is missing") !=
        std::string::npos);
  CHECK(error_of(load("empty.parquet")).find("has no records") != std::string::npos);
  CHECK(exit_code(load("missing.parquet").status()) == ExitCode::kIo);
  DatasetOptions options;
  options.path = file("odd.parquet");
  options.prompt_key = "question";
  const auto data = Dataset::load(options, *testing::tiny_tokenizer(), ChatTemplate(Kind::kNone));
  CHECK(error_of(data).find("the column 'question' is missing; the file has 'prompt', 'label', 'bytes'") !=
        std::string::npos);
}

TEST_CASE("A damaged Parquet file is an error and never a crash") {
  if (!is_built()) {
    return;
  }
  const std::string whole = read_file(file("dapo.parquet"), int64_t{1} << 20).value();
  int64_t rows = 0;
  REQUIRE(count_rows(whole, rows).ok());
  CHECK(rows == 50);
  for (size_t size = 0; size < whole.size(); size += 131) {
    CHECK(!count_rows(std::string_view(whole).substr(0, size), rows).ok());
  }
  int refused = 0;
  for (size_t at = 0; at < whole.size(); at += 41) {
    std::string damaged = whole;
    damaged[at] = static_cast<char>(damaged[at] ^ 0x55);
    rows = 0;
    refused += count_rows(damaged, rows).ok() ? 0 : 1;
    CHECK(rows <= 50);
  }
  CHECK(refused > 0);
}

}  // namespace accord::text
