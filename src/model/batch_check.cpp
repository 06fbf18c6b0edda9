#include "model/batch_check.hpp"

#include <algorithm>
#include <vector>

namespace accord::model {

Status check_batch(const ModelConfig& config, const Batch& batch, int64_t kv_rows) {
  const auto rows = static_cast<size_t>(batch.num_rows());
  if (batch.positions.size() != rows || batch.kv_rows.size() != rows) {
    return internal_error("batch: {} tokens, {} positions, {} cache rows", rows, batch.positions.size(),
                          batch.kv_rows.size());
  }
  for (size_t t = 0; t < rows; ++t) {
    if (batch.tokens[t] < 0 || batch.tokens[t] >= config.vocab_size) {
      return data_error("token id {} at row {} is outside the vocabulary of {}", batch.tokens[t], t,
                        config.vocab_size);
    }
    if (batch.kv_rows[t] < 0 || batch.kv_rows[t] >= kv_rows) {
      return internal_error("batch: row {} writes cache row {} of {}", t, batch.kv_rows[t], kv_rows);
    }
  }
  std::vector<bool> seen(rows, false);
  for (const Segment& s : batch.segments) {
    if (s.row_begin < 0 || s.num_rows < 0 || s.first_position < 0 || s.pages == nullptr ||
        static_cast<size_t>(s.row_begin) + static_cast<size_t>(s.num_rows) > rows) {
      return internal_error("batch: a segment covers rows [{}, +{}) of {}", s.row_begin, s.num_rows, rows);
    }
    for (int32_t i = 0; i < s.num_rows; ++i) {
      const auto t = static_cast<size_t>(s.row_begin + i);
      const int32_t p = s.first_position + i;
      if (seen[t] || batch.positions[t] != p || batch.kv_rows[t] != s.pages[p / kPageSize] + p % kPageSize) {
        return internal_error("batch: row {} is in two segments, or its position or cache row disagrees", t);
      }
      seen[t] = true;
    }
    for (int32_t page = 0; page * kPageSize < s.first_position + s.num_rows; ++page) {
      if (s.pages[page] < 0 || s.pages[page] >= kv_rows) {
        return internal_error("batch: page {} of a segment lies at cache row {} of {}", page, s.pages[page],
                              kv_rows);
      }
    }
  }
  if (std::find(seen.begin(), seen.end(), false) != seen.end()) {
    return internal_error("batch: a row is in no segment");
  }
  return absl::OkStatus();
}

Status check_replay(const ModelConfig& config, std::span<const int32_t> ids, int64_t num_rows) {
  const int64_t k = config.num_experts_per_token;
  if (static_cast<int64_t>(ids.size()) != num_rows * k) {
    return data_error("routing replay: {} expert ids for {} rows of {}", ids.size(), num_rows, k);
  }
  for (size_t i = 0; i < ids.size(); ++i) {
    const size_t row_begin = i / static_cast<size_t>(k) * static_cast<size_t>(k);
    const bool repeated = std::find(ids.begin() + static_cast<std::ptrdiff_t>(row_begin),
                                    ids.begin() + static_cast<std::ptrdiff_t>(i),
                                    ids[i]) != ids.begin() + static_cast<std::ptrdiff_t>(i);
    if (ids[i] < 0 || ids[i] >= config.num_experts || repeated) {
      return data_error("routing replay: expert id {} of row {} is repeated or not below {}", ids[i],
                        i / static_cast<size_t>(k), config.num_experts);
    }
  }
  return absl::OkStatus();
}

}  // namespace accord::model
