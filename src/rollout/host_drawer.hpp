#pragma once
// Draws on the CPU, for policies whose logits the host computes.
#include <cstdint>
#include <functional>
#include <span>
#include <vector>

#include "base/status.hpp"
#include "device/buffer.hpp"
#include "device/thread_pool.hpp"
#include "rollout/policy.hpp"
#include "rollout/sampler.hpp"

namespace accord::rollout {

class HostDrawer {
 public:
  // Fills logits_RV (fp32) for rows of the last forward's batch.
  using Logits = std::function<void(std::span<const int32_t> rows, MatrixView logits_RV)>;

  explicit HostDrawer(ThreadPool& threads);

  // Room for pieces of the logits of up to `max_rows` rows. May throw std::bad_alloc.
  void reserve(int64_t vocab_size, int64_t max_rows);

  // HostPolicy::draw. Each row's logits are computed once, in pieces of bounded size.
  void draw(std::span<const DrawTask> tasks, const Logits& logits, std::span<StatusOr<DrawnToken>> drawn,
            double& sampling_seconds);

 private:
  void draw_piece(std::span<const DrawTask> tasks, MatrixView logits_RV,
                  std::span<StatusOr<DrawnToken>> drawn);

  ThreadPool& threads_;
  std::vector<SamplerScratch> scratch_;
  int64_t vocab_size_ = 0;
  int64_t piece_rows_ = 0;
  Buffer logits_;
  std::vector<int32_t> rows_;       // batch rows of one piece
  std::vector<int32_t> piece_row_;  // per task of the piece: its row in the piece
};

}  // namespace accord::rollout
