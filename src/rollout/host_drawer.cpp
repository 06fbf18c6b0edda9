#include "rollout/host_drawer.hpp"

#include <algorithm>

#include "rollout/stopwatch.hpp"

namespace accord::rollout {
namespace {

// Logits are computed in pieces of about this size, so that a large vocabulary does not need a large buffer.
constexpr int64_t kLogitsBytes = int64_t{64} << 20;
constexpr int64_t kMinLogitsRows = 16;

}  // namespace

HostDrawer::HostDrawer(ThreadPool& threads)
    : threads_(threads), scratch_(static_cast<size_t>(threads.num_threads())) {}

void HostDrawer::reserve(int64_t vocab_size, int64_t max_rows) {
  vocab_size_ = vocab_size;
  const int64_t row_bytes = vocab_size * size_of(Dtype::kF32);
  piece_rows_ = std::min(std::max(kLogitsBytes / row_bytes, kMinLogitsRows), max_rows);
  logits_.ensure(static_cast<size_t>(piece_rows_ * row_bytes));
}

void HostDrawer::draw(std::span<const DrawTask> tasks, const Logits& logits,
                      std::span<StatusOr<DrawnToken>> drawn, double& sampling_seconds) {
  for (size_t begin = 0; begin < tasks.size();) {
    rows_.clear();
    piece_row_.clear();
    size_t end = begin;
    for (; end < tasks.size(); ++end) {
      if (rows_.empty() || rows_.back() != tasks[end].row) {
        if (static_cast<int64_t>(rows_.size()) == piece_rows_) {
          break;
        }
        rows_.push_back(tasks[end].row);
      }
      piece_row_.push_back(static_cast<int32_t>(rows_.size()) - 1);
    }
    const MatrixView logits_RV = logits_.matrix(Dtype::kF32, static_cast<int64_t>(rows_.size()), vocab_size_);
    logits(rows_, logits_RV);
    {
      const Stopwatch watch(sampling_seconds);
      draw_piece(tasks.subspan(begin, end - begin), logits_RV, drawn.subspan(begin, end - begin));
    }
    begin = end;
  }
}

void HostDrawer::draw_piece(std::span<const DrawTask> tasks, MatrixView logits_RV,
                            std::span<StatusOr<DrawnToken>> drawn) {
  threads_.parallel_for(static_cast<int64_t>(scratch_.size()), [&](int64_t thread) {
    for (auto i = static_cast<size_t>(thread); i < tasks.size(); i += scratch_.size()) {
      const std::span<const float> row(logits_RV.row<float>(piece_row_[i]),
                                       static_cast<size_t>(logits_RV.cols));
      drawn[i] = draw_token(row, *tasks[i].sampling, tasks[i].random, scratch_[static_cast<size_t>(thread)]);
    }
  });
}

}  // namespace accord::rollout
