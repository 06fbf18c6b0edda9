#pragma once
// A policy whose logits are a hash of everything that its sequence has in the cache, read through the page
// table: one wrong, stale or overwritten cache row changes every later token.
#include <algorithm>
#include <cstddef>
#include <cstdint>
#include <set>
#include <span>
#include <stdexcept>
#include <utility>
#include <vector>

#include "rollout/host_drawer.hpp"
#include "rollout/policy.hpp"
#include "rollout/sampler.hpp"

namespace accord::rollout::testing {

inline uint64_t mix(uint64_t x) {
  x = (x ^ (x >> 30)) * 0xBF58476D1CE4E5B9ull;
  x = (x ^ (x >> 27)) * 0x94D049BB133111EBull;
  return x ^ (x >> 31);
}

class FakePolicy : public HostPolicy {
 public:
  static constexpr int64_t kVocab = 37;
  static constexpr int64_t kMaxPositions = 600;
  static constexpr int64_t kRoutingWidth = 2;

  explicit FakePolicy(ThreadPool& pool) : drawer_(pool) {}

  int64_t vocab_size() const override { return kVocab; }
  int64_t max_positions() const override { return kMaxPositions; }
  int64_t routing_width() const override { return kRoutingWidth; }
  int64_t num_experts() const override { return 256; }
  int64_t cache_row_bytes() const override { return sizeof(uint64_t); }

  Status reserve(int64_t cache_rows, int64_t max_batch_rows) override {
    cache_.assign(static_cast<size_t>(cache_rows), 0xdeadbeefull);
    max_rows_ = max_batch_rows;
    drawer_.reserve(kVocab, max_batch_rows);
    return absl::OkStatus();
  }
  std::span<std::byte> cache_memory() override { return std::as_writable_bytes(std::span(cache_)); }
  void copy_rows(int32_t from, int32_t to, int32_t count) override {
    for (int32_t i = 0; i < count; ++i) at(to + i) = at(from + i);
  }

  static uint64_t state_of(int32_t token, int32_t position, uint64_t context) {
    return mix(mix(static_cast<uint64_t>(token) * 1000003 + static_cast<uint64_t>(position)) + context);
  }
  static float logit_of(uint64_t state, int64_t id) {
    return static_cast<float>(mix(state + static_cast<uint64_t>(id) * 77777) >> 40) * 0x1p-22F;  // [0, 4)
  }

  Status forward(const model::Batch& batch, std::vector<int32_t>* routing) override {
    if (batch.num_rows() < 1 || batch.num_rows() > max_rows_) throw std::logic_error("batch size");
    std::set<int32_t> written;
    states_.clear();
    if (routing != nullptr) routing->clear();
    for (const model::Segment& segment : batch.segments) {
      for (int32_t i = 0; i < segment.num_rows; ++i) {
        const auto row = static_cast<size_t>(segment.row_begin + i);
        const int32_t position = segment.first_position + i;
        const int32_t cache_row = cache_row_of(segment, position);
        if (row != states_.size() || batch.positions[row] != position || batch.kv_rows[row] != cache_row ||
            !written.insert(cache_row).second) {
          throw std::logic_error("inconsistent batch");
        }
        uint64_t context = 0;
        for (int32_t p = 0; p < position; ++p) context = mix(context + at(cache_row_of(segment, p)));
        const uint64_t state = state_of(batch.tokens[row], position, context);
        at(cache_row) = state;
        states_.push_back(state);
        if (routing != nullptr) {
          routing->push_back(static_cast<int32_t>(state & 0xff));
          routing->push_back(static_cast<int32_t>((state >> 8) & 0xff));
        }
      }
    }
    largest_batch = std::max(largest_batch, batch.num_rows());
    return absl::OkStatus();
  }

  Status draw(std::span<const DrawTask> tasks, std::span<StatusOr<DrawnToken>> drawn,
              double& sampling_seconds) override {
    const auto logits = [this](std::span<const int32_t> rows, MatrixView logits_RV) {
      for (size_t r = 0; r < rows.size(); ++r) {
        const uint64_t state = states_.at(static_cast<size_t>(rows[r]));
        for (int64_t id = 0; id < kVocab; ++id) {
          logits_RV.row<float>(static_cast<int64_t>(r))[id] = logit_of(state, id) + spoil;
        }
      }
      rows_with_logits += rows.size();
    };
    drawer_.draw(tasks, logits, drawn, sampling_seconds);
    return draw_status;
  }

  int64_t largest_batch = 0;
  uint64_t rows_with_logits = 0;
  float spoil = 0.0F;  // added to every logit
  Status draw_status;  // what draw() returns

 private:
  HostDrawer drawer_;
  uint64_t& at(int32_t row) { return cache_.at(static_cast<size_t>(row)); }
  static int32_t cache_row_of(const model::Segment& segment, int32_t position) {
    return segment.pages[position / model::kPageSize] + position % model::kPageSize;
  }

  std::vector<uint64_t> cache_;
  std::vector<uint64_t> states_;
  int64_t max_rows_ = 0;
};

// The same a step ahead: what a step has drawn shows only when it is collected.
class AheadPolicy : public Policy {
 public:
  explicit AheadPolicy(ThreadPool& pool) : fake(pool) {}

  int64_t vocab_size() const override { return fake.vocab_size(); }
  int64_t max_positions() const override { return fake.max_positions(); }
  int64_t routing_width() const override { return fake.routing_width(); }
  int64_t num_experts() const override { return fake.num_experts(); }
  int64_t cache_row_bytes() const override { return fake.cache_row_bytes(); }
  Status reserve(int64_t cache_rows, int64_t max_batch_rows) override {
    return fake.reserve(cache_rows, max_batch_rows);
  }
  std::span<std::byte> cache_memory() override { return fake.cache_memory(); }
  void copy_rows(int32_t from, int32_t to, int32_t count) override { fake.copy_rows(from, to, count); }

  Status begin() override {
    under_way_.clear();
    last_.clear();
    return absl::OkStatus();
  }
  size_t max_steps_ahead() const override { return 1; }
  Status submit(const Step& step) override {
    if (under_way_.size() > 1) throw std::logic_error("too many steps");
    std::vector<int32_t> tokens(step.batch.tokens.begin(), step.batch.tokens.end());
    for (size_t row = 0; row < tokens.size(); ++row) {
      const int32_t task = step.token_tasks[row];
      if (task < 0) continue;
      if (tokens[row] != 0) throw std::logic_error("a token that is not known");
      tokens[row] = last_.at(static_cast<size_t>(task));
      ++unknown_tokens;
    }
    Step known = step;
    known.batch.tokens = tokens;
    ACCORD_RETURN_IF_ERROR(fake.submit(known));
    ACCORD_RETURN_IF_ERROR(fake.collect(under_way_.emplace_back()));
    last_.clear();
    for (const StatusOr<DrawnToken>& drawn : under_way_.back().drawn) {
      last_.push_back(drawn.ok() ? drawn->token : 0);
    }
    return absl::OkStatus();
  }
  Status collect(StepResult& result) override {
    result = std::move(under_way_.front());
    under_way_.erase(under_way_.begin());
    return absl::OkStatus();
  }

  FakePolicy fake;
  uint64_t unknown_tokens = 0;

 private:
  std::vector<StepResult> under_way_;
  std::vector<int32_t> last_;
};

// What an engine over FakePolicy must draw, computed one token at a time without a cache.
inline Sample reference_sample(const Request& request, uint32_t sample_index, uint64_t run_seed) {
  Sample sample;
  sample.key = {.step = request.step, .prompt_id = request.prompt.id, .sample_index = sample_index};
  sample.tokens = request.prompt.tokens;
  sample.prompt_length = static_cast<int32_t>(sample.tokens.size());
  std::vector<uint64_t> states;
  SamplerScratch scratch;
  while (true) {
    for (size_t p = states.size(); p < sample.tokens.size(); ++p) {
      uint64_t context = 0;
      for (const uint64_t state : states) context = mix(context + state);
      states.push_back(FakePolicy::state_of(sample.tokens[p], static_cast<int32_t>(p), context));
    }
    std::vector<float> logits;
    for (int64_t id = 0; id < FakePolicy::kVocab; ++id)
      logits.push_back(FakePolicy::logit_of(states.back(), id));
    const auto position = static_cast<int32_t>(sample.tokens.size());
    const auto drawn =
        draw_token(logits, request.sampling, token_random(run_seed, sample.key, position), scratch);
    sample.tokens.push_back(drawn.value().token);
    sample.logprobs.push_back(drawn->logprob);
    sample.sampling_logprobs.push_back(drawn->sampling_logprob);
    const auto& stops = request.sampling.stop_tokens;
    if (std::find(stops.begin(), stops.end(), drawn->token) != stops.end()) {
      sample.finish = FinishReason::kStop;
      return sample;
    }
    if (sample.response_length() == request.sampling.max_new_tokens) {
      sample.finish = FinishReason::kLength;
      return sample;
    }
  }
}

}  // namespace accord::rollout::testing
