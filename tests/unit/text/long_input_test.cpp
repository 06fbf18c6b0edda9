// Long and hostile texts: time grows with the length, not with its square.
#include <chrono>
#include <thread>

#include "support/catch.hpp"
#include "text/nfc.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

constexpr size_t kMega = size_t{1} << 20;
// A quadratic step would take hours at this length; a slow machine with sanitizers stays well below.
constexpr double kMaxSeconds = 60;

double seconds_of(const std::function<void()>& work) {
  const auto start = std::chrono::steady_clock::now();
  work();
  return std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count();
}

std::string repeat(const std::string& unit, size_t bytes) {
  std::string text;
  while (text.size() < bytes) {
    text += unit;
  }
  return text;
}

void check_long_texts(const Tokenizer& tokenizer) {
  for (const std::string unit : {"a", " ", "\n", "\xCC\x81", "ab ", "7", "\xE4\xB8\xAD", "<|im_start|", " \t",
                                 "!a", "\xF0\x9F\x98\x80"}) {
    const std::string text = repeat(unit, kMega);
    CAPTURE(unit);
    CHECK(seconds_of([&] {
            const auto ids = tokenizer.encode(text);
            INFO(testing::error_of(ids.status()));
            REQUIRE(ids.ok());
            CHECK(ids->size() > 1);
            CHECK(tokenizer.decode(*ids, false) == text);
          }) < kMaxSeconds);
  }
}

}  // namespace

TEST_CASE("A megabyte of one thing is encoded in linear time") {
  check_long_texts(*testing::tiny_tokenizer());
}

TEST_CASE("A megabyte of one thing is encoded in linear time by published tokenizers") {
  for (const char* name : {"qwen3", "deepseek_v3"}) {
    if (const auto tokenizer = testing::large_tokenizer(name)) {
      check_long_texts(*tokenizer);
    }
  }
}

TEST_CASE("Marks in the worst order are normalized in linear time") {
  const std::string high = "\xCC\x81";  // U+0301, class 230
  const std::string low = "\xCC\xA3";   // U+0323, class 220
  const std::string text = "a" + repeat(high, kMega / 2) + repeat(low, kMega / 2);
  CHECK(seconds_of([&] {
          const auto normalized = nfc(text);
          REQUIRE(normalized.ok());
          // U+1EA1 takes the first dot below; the acutes cannot pass the other dots.
          CHECK(*normalized == "\xE1\xBA\xA1" + repeat(low, kMega / 2 - 2) + repeat(high, kMega / 2));
        }) < kMaxSeconds);
}

TEST_CASE("A tokenizer serves many threads at once") {
  const auto tokenizer = testing::tiny_tokenizer();
  const std::string text =
      repeat("The answer, don't you see, is 42. \xE4\xB8\xAD\xE6\x96\x87 e\xCC\x81 ", 4000);
  const auto expected = tokenizer->encode(text).value();
  std::vector<std::vector<int32_t>> results(4);
  std::vector<std::thread> threads;
  for (auto& result : results) {
    threads.emplace_back([&] {
      for (int i = 0; i < 5; ++i) {
        result = tokenizer->encode(text).value();
      }
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  for (const auto& result : results) {
    CHECK(result == expected);
  }
}

}  // namespace accord::text
