#pragma once
// Runs sequences through CudaModel in any arrangement of pieces, over pages handed out in a scattered order
// (tests/unit/model/fixture.hpp's Runner on the device).
#include <cstdint>
#include <memory>
#include <vector>

#include "device/device_buffer.hpp"
#include "device_policy.hpp"
#include "gpu.hpp"
#include "model/cuda_model.hpp"

namespace gpu_test {

// Rows of one sequence to run in one batch.
struct Piece {
  int32_t sequence = 0;
  int32_t first = 0;
  int32_t count = 0;
};

class DeviceRunner {
 public:
  DeviceRunner(const Gpu& gpu, accord::model::CudaModel& model, std::vector<std::vector<int32_t>> sequences,
               uint64_t page_seed);

  // One forward over the pieces, in this order of rows; keeps each position's logits and expert ids. `tape`:
  // with a tape per layer. `replay` [layer][rows * K]: routing to replay.
  void run(const std::vector<Piece>& pieces, bool tape = false,
           const std::vector<std::vector<int32_t>>* replay = nullptr);

  const std::vector<float>& logits(int32_t sequence) const { return logits_[static_cast<size_t>(sequence)]; }
  const std::vector<std::vector<int32_t>>& expert_ids() const { return expert_ids_; }  // of the last run

 private:
  const Gpu& gpu_;
  accord::model::CudaModel& model_;
  std::vector<std::vector<int32_t>> sequences_;
  std::vector<std::vector<int32_t>> pages_;
  std::vector<std::vector<float>> logits_;
  std::vector<std::vector<int32_t>> expert_ids_;
  std::vector<accord::Memory> keys_, values_;
  int64_t cache_rows_ = 0;
};

// `length` random tokens of a vocabulary.
std::vector<int32_t> random_tokens(int64_t vocab, int32_t length, uint64_t seed);

}  // namespace gpu_test
