#pragma once
// Packs sequences into micro-batches under a token budget, and lays a micro-batch out as model::Batch.
#include <cstdint>
#include <span>
#include <vector>

#include "model/forward.hpp"

namespace accord::trainer {

// Indices of the sequences that run together.
using MicroBatchPlan = std::vector<std::vector<int32_t>>;

// First-fit decreasing over `lengths` (rows of each sequence): longest first, equal lengths by index, each
// into the first micro-batch with room. Within a micro-batch, and among micro-batches by their first member,
// the order is ascending. A sequence longer than the budget has a micro-batch of its own.
MicroBatchPlan pack_sequences(std::span<const int64_t> lengths, int64_t tokens_per_microbatch);

// The rank of each sample, balanced by tokens: the longest first, each to the rank with the fewest tokens;
// equal lengths by index, equal ranks the lower one.
std::vector<int32_t> assign_samples(std::span<const int64_t> num_tokens, int32_t ranks);

// One sequence as it is trained: all its tokens but the last are fed (the last one is only predicted).
struct Sequence {
  std::span<const int32_t> tokens;
  int32_t prompt_length = 0;
  int64_t num_rows() const { return static_cast<int64_t>(tokens.size()) - 1; }
  int64_t num_responses() const { return static_cast<int64_t>(tokens.size()) - prompt_length; }
};

// A laid out micro-batch. Sequence i's rows and cache rows are [row_begin, row_begin + num_rows); row
// prompt_length-1+j predicts response token j.
class PackedBatch {
 public:
  void build(std::span<const Sequence> sequences);

  model::Batch batch() const { return {tokens_, positions_, kv_rows_, segments_}; }
  int64_t num_rows() const { return static_cast<int64_t>(tokens_.size()); }
  // Per response token of all sequences in order: the row that predicts it, the token, its sequence.
  std::span<const int32_t> response_rows() const { return response_rows_; }
  std::span<const int32_t> response_tokens() const { return response_tokens_; }
  std::span<const int32_t> response_sequences() const { return response_sequences_; }

 private:
  std::vector<int32_t> tokens_, positions_, kv_rows_, pages_;
  std::vector<model::Segment> segments_;
  std::vector<int32_t> response_rows_, response_tokens_, response_sequences_;
};

}  // namespace accord::trainer
