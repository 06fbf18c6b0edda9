// Draws in pieces of logits equal draws one by one, and each row's logits are asked for once.
#include "rollout/host_drawer.hpp"

#include <cmath>
#include <limits>
#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::rollout;

namespace {

constexpr int64_t kVocab = int64_t{1} << 20;  // 4 MiB a row: 16 rows are a piece

float logit_of(int32_t row, int64_t id) {
  const auto bits = (static_cast<uint64_t>(id) * 40503 + static_cast<uint64_t>(row) * 2654435761U) % 65536;
  return static_cast<float>(bits) * 0x1p-13F;  // [0, 8), many ties
}

}  // namespace

TEST_CASE("draws in pieces equal draws one by one") {
  SamplingParams plain, cut, greedy;
  cut.top_k = 40;
  cut.top_p = 0.9F;
  cut.temperature = 0.8F;
  greedy.temperature = 0.0F;
  const SamplingParams* const params[] = {&plain, &cut, &greedy};
  std::vector<DrawTask> tasks;
  for (int32_t row = 0; row < 19; ++row) {
    const int siblings = row == 3 || row == 15 ? 3 : 1;  // the second ones end a piece
    for (int i = 0; i < siblings; ++i) {
      tasks.push_back({.row = 50 - row,
                       .sampling = params[tasks.size() % 3],
                       .random = (tasks.size() + 1) * 0x9E3779B97F4A7C15ULL});
    }
  }
  for (const int num_threads : {1, 3}) {
    CAPTURE(num_threads);
    ThreadPool pool(num_threads);
    HostDrawer drawer(pool);
    drawer.reserve(kVocab, 64);
    std::vector<size_t> pieces;
    std::vector<int32_t> asked;
    const auto logits = [&](std::span<const int32_t> rows, MatrixView logits_RV) {
      REQUIRE(logits_RV.rows == static_cast<int64_t>(rows.size()));
      REQUIRE(logits_RV.cols == kVocab);
      pieces.push_back(rows.size());
      asked.insert(asked.end(), rows.begin(), rows.end());
      for (size_t r = 0; r < rows.size(); ++r) {
        for (int64_t id = 0; id < kVocab; ++id) {
          logits_RV.row<float>(static_cast<int64_t>(r))[id] = logit_of(rows[r], id);
        }
      }
    };
    std::vector<StatusOr<DrawnToken>> drawn(tasks.size(), DrawnToken{});
    double seconds = 0.0;
    drawer.draw(tasks, logits, drawn, seconds);
    CHECK(pieces == std::vector<size_t>{16, 3});
    REQUIRE(asked.size() == 19);
    for (int32_t row = 0; row < 19; ++row) CHECK(asked[static_cast<size_t>(row)] == 50 - row);
    CHECK(seconds > 0);

    SamplerScratch scratch;
    std::vector<float> row(kVocab);
    for (size_t i = 0; i < tasks.size(); ++i) {
      CAPTURE(i);
      for (int64_t id = 0; id < kVocab; ++id) row[static_cast<size_t>(id)] = logit_of(tasks[i].row, id);
      const auto want = draw_token(row, *tasks[i].sampling, tasks[i].random, scratch);
      REQUIRE(want.ok());
      REQUIRE(drawn[i].ok());
      CHECK(drawn[i]->token == want->token);
      CHECK(drawn[i]->logprob == want->logprob);
      CHECK(drawn[i]->sampling_logprob == want->sampling_logprob);
    }
  }
}

TEST_CASE("a row that cannot be drawn from is the error of its own tasks alone") {
  ThreadPool pool(1);
  HostDrawer drawer(pool);
  constexpr int64_t kFew = 5;
  drawer.reserve(kFew, 4);
  const auto logits = [](std::span<const int32_t> rows, MatrixView logits_RV) {
    for (size_t r = 0; r < rows.size(); ++r) {
      for (int64_t id = 0; id < kFew; ++id) {
        logits_RV.row<float>(static_cast<int64_t>(r))[id] =
            rows[r] == 1 && id == 2 ? std::numeric_limits<float>::infinity() : static_cast<float>(id);
      }
    }
  };
  SamplingParams greedy;
  greedy.temperature = 0.0F;
  const std::vector<DrawTask> tasks = {{0, &greedy, 1}, {1, &greedy, 2}, {1, &greedy, 3}, {2, &greedy, 4}};
  std::vector<StatusOr<DrawnToken>> drawn(tasks.size(), DrawnToken{});
  double seconds = 0.0;
  drawer.draw(tasks, logits, drawn, seconds);
  CHECK(drawn[0]->token == 4);
  CHECK(drawn[3]->token == 4);
  for (const size_t i : {size_t{1}, size_t{2}}) {
    REQUIRE(!drawn[i].ok());
    CHECK(std::string(message_of(drawn[i].status())) == "the logit of token 2 is inf");
  }
}
