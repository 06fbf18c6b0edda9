#include "trainer/packing.hpp"

#include <algorithm>
#include <numeric>

namespace accord::trainer {

namespace {

// Indices, the longest first, equal ones by index.
std::vector<int32_t> longest_first(std::span<const int64_t> lengths) {
  std::vector<int32_t> order(lengths.size());
  std::iota(order.begin(), order.end(), 0);
  std::stable_sort(order.begin(), order.end(), [&](int32_t a, int32_t b) {
    return lengths[static_cast<size_t>(a)] > lengths[static_cast<size_t>(b)];
  });
  return order;
}

}  // namespace

std::vector<int32_t> assign_samples(std::span<const int64_t> num_tokens, int32_t ranks) {
  std::vector<int32_t> assigned(num_tokens.size());
  std::vector<int64_t> load(static_cast<size_t>(ranks));
  for (int32_t index : longest_first(num_tokens)) {
    const auto least = std::min_element(load.begin(), load.end());
    assigned[static_cast<size_t>(index)] = static_cast<int32_t>(least - load.begin());
    *least += num_tokens[static_cast<size_t>(index)];
  }
  return assigned;
}

MicroBatchPlan pack_sequences(std::span<const int64_t> lengths, int64_t tokens_per_microbatch) {
  MicroBatchPlan plan;
  std::vector<int64_t> used;
  for (int32_t index : longest_first(lengths)) {
    const int64_t length = lengths[static_cast<size_t>(index)];
    size_t bin = 0;
    while (bin < plan.size() && used[bin] + length > tokens_per_microbatch) ++bin;
    if (bin == plan.size()) {
      plan.emplace_back();
      used.push_back(0);
    }
    plan[bin].push_back(index);
    used[bin] += length;
  }
  for (auto& members : plan) std::sort(members.begin(), members.end());
  std::sort(plan.begin(), plan.end());
  return plan;
}

void PackedBatch::build(std::span<const Sequence> sequences) {
  for (auto* v : {&tokens_, &positions_, &kv_rows_, &pages_, &response_rows_, &response_tokens_,
                  &response_sequences_}) {
    v->clear();
  }
  segments_.clear();
  std::vector<size_t> first_page;
  for (size_t s = 0; s < sequences.size(); ++s) {
    const Sequence& sequence = sequences[s];
    const int32_t begin = static_cast<int32_t>(tokens_.size());
    const int32_t rows = static_cast<int32_t>(sequence.num_rows());
    first_page.push_back(pages_.size());
    for (int32_t r = 0; r < rows; ++r) {
      tokens_.push_back(sequence.tokens[static_cast<size_t>(r)]);
      positions_.push_back(r);
      kv_rows_.push_back(begin + r);
      if (r % model::kPageSize == 0) pages_.push_back(begin + r);
      if (r >= sequence.prompt_length - 1) {
        response_rows_.push_back(begin + r);
        response_tokens_.push_back(sequence.tokens[static_cast<size_t>(r) + 1]);
        response_sequences_.push_back(static_cast<int32_t>(s));
      }
    }
    segments_.push_back({begin, rows, 0, nullptr});
  }
  // Only now does `pages_` keep its address.
  for (size_t s = 0; s < segments_.size(); ++s) segments_[s].pages = pages_.data() + first_page[s];
}

}  // namespace accord::trainer
