#include <algorithm>
#include <cmath>
#include <filesystem>
#include <map>

#include "base/files.hpp"
#include "support/catch.hpp"
#include "text/data_path.hpp"
#include "text/dataset.hpp"
#include "text/mixture_sampler.hpp"
#include "text/sft_dataset.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

using Source = MixtureSampler::Source;

std::string path_error(std::string_view path) {
  const auto parsed = parse_data_path(path);
  return parsed.ok() ? "no error" : testing::error_of(parsed.status());
}

// What Python's list(range(total))[begin:end] starts and ends with.
std::pair<int64_t, int64_t> part(const std::string& slice, int64_t total) {
  return parse_data_path("f.jsonl@" + slice)->part_of(total).value();
}

}  // namespace

TEST_CASE("A part of a file is Python's slice") {
  using Pair = std::pair<int64_t, int64_t>;
  CHECK(parse_data_path("dir@[x]/f.jsonl")->file == "dir@[x]/f.jsonl");
  CHECK(parse_data_path("f.jsonl@[1:2]")->file == "f.jsonl");
  CHECK(part("[:]", 10) == Pair(0, 10));
  CHECK(part("[2:5]", 10) == Pair(2, 5));
  CHECK(part("[:3]", 10) == Pair(0, 3));
  CHECK(part("[7:]", 10) == Pair(7, 10));
  CHECK(part("[-3:]", 10) == Pair(7, 10));
  CHECK(part("[:-3]", 10) == Pair(0, 7));
  CHECK(part("[-100:100]", 10) == Pair(0, 10));
  CHECK(!parse_data_path("f@[5:5]")->part_of(10).ok());
  CHECK(!parse_data_path("f@[10:]")->part_of(10).ok());
  CHECK(!parse_data_path("f@[-1:1]")->part_of(10).ok());
  const std::string empty = testing::error_of(parse_data_path("f@[8:2]")->part_of(10).status());
  CHECK(empty == "f: @[8:2] holds none of its 10 records");
  for (const char* bad :
       {"f@[]", "f@[1]", "f@[a:b]", "f@[1:2:3]", "f@[1.5:2]", "f@[ 1:2]", "f@[99999999999999999999:]"}) {
    CHECK(path_error(bad).find("write @[a:b]") != std::string::npos);
  }
}

TEST_CASE("A part keeps the identity of its records") {
  const auto tokenizer = testing::tiny_tokenizer();
  const std::string content =
      "{\"prompt\":\"a\",\"label\":\"0\"}\n\n{\"prompt\":\"b\",\"label\":\"1\"}\nnot "
      "json\n{\"prompt\":\"c\",\"label\":\"3\"}\n";
  DatasetOptions options;
  options.path = "f.jsonl@[-1:]";
  options.first_id = uint64_t{1} << 40;
  const auto data = Dataset::parse(content, options, *tokenizer, ChatTemplate(ChatTemplate::Kind::kNone));
  REQUIRE(data.ok());
  REQUIRE(data->size() == 1);
  CHECK(data->at(0).id == (uint64_t{1} << 40) + 3);
  CHECK(data->line(0) == 5);
  CHECK(data->at(0).label == "3");
  options.path = "f.jsonl@[1:3]";
  const auto bad = Dataset::parse(content, options, *tokenizer, ChatTemplate(ChatTemplate::Kind::kNone));
  CHECK(testing::error_of(bad.status()).find("f.jsonl:4: ") == 0);
  options.path = "f.jsonl@[9:]";
  const auto none = Dataset::parse(content, options, *tokenizer, ChatTemplate(ChatTemplate::Kind::kNone));
  CHECK(testing::error_of(none.status()).find("holds none of its 4 records") != std::string::npos);
}

TEST_CASE("Dotted keys lead into a record") {
  const auto tokenizer = testing::tiny_tokenizer();
  DatasetOptions options;
  options.path = "f.jsonl";
  options.prompt_key = "in.text";
  options.label_key = "out.truth.value";
  const auto data = Dataset::parse(R"({"in": {"text": "a"}, "out": {"truth": {"value": 7}}})"
                                   "\n"
                                   R"({"in.text": "a", "in": 1, "out.truth.value": "8", "out": {}})",
                                   options, *tokenizer, ChatTemplate(ChatTemplate::Kind::kNone));
  REQUIRE(data.ok());
  CHECK(data->at(0).label == "7");
  CHECK(data->at(1).label == "8");
  options.label_key = "out.truth.missing";
  CHECK(!Dataset::parse(R"({"in": {"text": "a"}, "out": {"truth": {"value": 7}}})", options, *tokenizer,
                        ChatTemplate(ChatTemplate::Kind::kNone))
             .ok());
}

TEST_CASE("One file alone is drawn as before") {
  const std::vector<Source> one = {{13, 5.0}};
  MixtureSampler mixture(7, one);
  EpochSampler alone(7, 13);
  for (int i = 0; i < 9; ++i) {
    const auto expected = alone.next(5);
    const auto drawn = mixture.next(5);
    for (size_t k = 0; k < 5; ++k) {
      CHECK(drawn[k] == MixtureSampler::Draw{0, expected[k]});
    }
  }
}

TEST_CASE("Each file gets its share and each of its records once an epoch") {
  const std::vector<Source> sources = {{10, 7.0}, {40, 2.0}, {3, 1.0}};
  const std::vector<double> shares = {0.7, 0.2, 0.1};
  for (const uint64_t seed : {uint64_t{0}, uint64_t{1}, ~uint64_t{0}}) {
    MixtureSampler mixture(seed, sources);
    std::vector<std::vector<uint64_t>> drawn(3);
    for (uint64_t k = 1; k <= 3000; ++k) {
      const auto draw = mixture.next(1).front();
      drawn[draw.source].push_back(draw.index);
      for (size_t i = 0; i < 3; ++i) {
        REQUIRE(std::fabs(static_cast<double>(drawn[i].size()) - shares[i] * static_cast<double>(k)) < 5.0);
      }
    }
    for (size_t i = 0; i < 3; ++i) {
      EpochSampler order(seed, sources[i].size, i);
      CHECK(drawn[i] == order.next(drawn[i].size()));
    }
  }
}

TEST_CASE("A mixture that seeks goes on as if it had drawn") {
  const std::vector<Source> sources = {{10, 1.0}, {40, 3.0}, {3, 0.01}};
  MixtureSampler whole(3, sources);
  const auto all = whole.next(500);
  for (const uint64_t at : {uint64_t{0}, uint64_t{1}, uint64_t{9}, uint64_t{123}, uint64_t{499}}) {
    MixtureSampler resumed(3, sources);
    (void)resumed.next(77);
    resumed.seek(at);
    CHECK(resumed.consumed() == at);
    const auto rest = resumed.next(500 - at);
    CHECK(std::equal(rest.begin(), rest.end(), all.begin() + static_cast<std::ptrdiff_t>(at)));
  }
  CHECK(MixtureSampler(3, sources).next(50) != MixtureSampler(4, sources).next(50));
}

TEST_CASE("The files of a mixture are shuffled apart") {
  CHECK(EpochSampler(1, 100, 0).next(100) == EpochSampler(1, 100).next(100));
  CHECK(EpochSampler(1, 100, 1).next(100) != EpochSampler(1, 100).next(100));
}

}  // namespace accord::text
