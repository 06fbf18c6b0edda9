#include "base/queue.hpp"

#include <memory>
#include <thread>
#include <vector>

#include "support/catch.hpp"

using namespace accord;
using std::chrono::milliseconds;

namespace {
Wait soon(const char* reason, int ms = 20) { return {nullptr, reason, Deadline::after(milliseconds(ms))}; }
}  // namespace

TEST_CASE("a queue keeps order and bounds its size") {
  Queue<int> queue(2);
  CHECK(queue.push(1, soon("room")).ok());
  CHECK(queue.push(2, soon("room")).ok());
  const Status full = queue.push(3, soon("room"));
  CHECK(full.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(message_of(full)).find("for room") != std::string::npos);
  CHECK(exit_code(full) == ExitCode::kUnavailable);
  CHECK(queue.size() == 2);
  CHECK(queue.pop(soon("an item")).value() == 1);
  CHECK(queue.pop(soon("an item")).value() == 2);
  CHECK(queue.pop(soon("an item")).status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK_FALSE(queue.try_pop().has_value());
}

TEST_CASE("a closed queue hands out what it holds, then why it was closed") {
  Queue<int> queue(4);
  REQUIRE(queue.push(7, soon("room")).ok());
  queue.close(data_error("prompts.jsonl:3: bad line"));
  queue.close();  // the first reason stays
  CHECK(queue.closed());
  CHECK(exit_code(queue.push(8, soon("room"))) == ExitCode::kBadData);
  CHECK(queue.pop(soon("an item")).value() == 7);
  const Status end = queue.pop(soon("an item")).status();
  CHECK(message_of(end) == "prompts.jsonl:3: bad line");
}

TEST_CASE("closing wakes both sides") {
  Queue<int> full(1);
  REQUIRE(full.push(1, soon("room")).ok());
  Queue<int> empty(1);
  Status pushed;
  Status popped;
  std::thread producer([&] { pushed = full.push(2, soon("room", 30000)); });
  std::thread consumer([&] { popped = empty.pop(soon("an item", 30000)).status(); });
  std::this_thread::sleep_for(milliseconds(10));
  full.close();
  empty.close();
  producer.join();
  consumer.join();
  CHECK(pushed.code() == absl::StatusCode::kCancelled);
  CHECK(popped.code() == absl::StatusCode::kCancelled);
}

TEST_CASE("items of several producers all arrive, each producer's in order") {
  constexpr int kProducers = 3;
  constexpr int kItems = 2000;
  Queue<std::unique_ptr<int>> queue(5);
  std::vector<std::thread> producers;
  for (int p = 0; p < kProducers; ++p) {
    producers.emplace_back([&queue, p] {
      for (int i = 0; i < kItems; ++i) {
        if (!queue.push(std::make_unique<int>(p * kItems + i), soon("room", 30000)).ok()) {
          return;
        }
      }
    });
  }
  std::vector<int> next(kProducers, 0);
  for (int i = 0; i < kProducers * kItems; ++i) {
    auto item = queue.pop(soon("an item", 30000));
    REQUIRE(item.ok());
    const int producer = **item / kItems;
    REQUIRE(**item % kItems == next[static_cast<size_t>(producer)]++);
  }
  for (std::thread& producer : producers) {
    producer.join();
  }
  CHECK(queue.size() == 0);
}

TEST_CASE("draining makes room") {
  Queue<int> queue(1);
  REQUIRE(queue.push(1, soon("room")).ok());
  CHECK(queue.drain().size() == 1);
  CHECK(queue.push(2, soon("room")).ok());
}
