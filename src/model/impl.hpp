#pragma once
// Inside of Model: what one call keeps between its stages. Not for other rooms.
#include <functional>
#include <memory>
#include <utility>
#include <vector>

#include "kernels/formats/ieee_mode.hpp"
#include "model/forward.hpp"

namespace accord::model {

// One piece of the expert products: sorted rows [begin, end), all of `expert`.
struct ExpertTask {
  int32_t expert = 0;
  int32_t begin = 0;
  int32_t end = 0;
};

struct Model::Impl {
  Impl(const ModelConfig& c, PolicyWeights w, Dtype d, ThreadPool& p)
      : config(c), weights(std::move(w)), dtype(d), pool(p), rope(c.head_dim, c.rope_theta, c.rope_scaling) {}

  ModelConfig config;
  PolicyWeights weights;
  Dtype dtype;
  ThreadPool& pool;
  kernels::RopeTable rope;
  kernels::WorkspacePool scratch;
  std::unique_ptr<ExpertExchange> exchange;  // null: all experts are here

  LayerTape own_tape;              // stands in where the caller wants none
  Buffer k_normed;                 // [T,C] after k norm, before rotary
  Buffer v;                        // [T,C] on its way to the cache
  Buffer branch;                   // [T,H] output of attention's o, or of the dense MLP
  Buffer expert_operand;           // [T, padded H] fp32: norm2 (or arrived rows) as the experts read it
  Buffer expert_outer;             // [T] its outer scales
  Buffer leaving;                  // [R,H] rows on their way to another place
  Buffer owner_down;               // [A,H] outputs of arrived rows
  Buffer normed;                   // [R,H] final norm
  std::vector<int32_t> slot_rows;  // [T*K] sorted row of each (token, slot)
  std::vector<ExpertTask> expert_tasks;

  // Calls stage(begin, end, inner) over all rows: in chunks on all threads (inner null), or, when the rows
  // are too few to split, once with the pool for use inside. `work`: multiply-adds of the whole stage.
  template <class Stage>
  void for_rows(int64_t rows, int64_t work, const Stage& stage);
};

// Below this many multiply-adds a stage stays on the calling thread: a handoff costs about 10 us.
inline constexpr int64_t kParallelWork = int64_t{1} << 20;
// Chunks of fewer rows would spend their time decoding weights; larger ones leave the cache.
inline constexpr int64_t kMinChunkRows = 16;
inline constexpr int64_t kMaxChunkRows = 256;

template <class Stage>
void Model::Impl::for_rows(int64_t rows, int64_t work, const Stage& rows_stage) {
  // Whatever a library in this process set: subnormals are kept (docs/contract.md).
  const auto stage = [&rows_stage](int64_t begin, int64_t end, ThreadPool* inner) {
    const formats::IeeeMode ieee;
    rows_stage(begin, end, inner);
  };
  const int64_t threads = pool.num_threads();
  if (threads == 1 || work < kParallelWork) {
    stage(int64_t{0}, rows, static_cast<ThreadPool*>(nullptr));
    return;
  }
  if (rows < 2 * kMinChunkRows) {
    stage(int64_t{0}, rows, &pool);
    return;
  }
  // Two chunks per thread even out progress where they do not get too small.
  const int64_t wanted = rows >= 4 * threads * kMinChunkRows ? 2 * threads : threads;
  int64_t chunk = (rows + wanted - 1) / wanted;
  chunk = chunk < kMinChunkRows ? kMinChunkRows : chunk > kMaxChunkRows ? kMaxChunkRows : chunk;
  const auto task = [&](int64_t i) {
    const int64_t begin = i * chunk;
    const int64_t end = begin + chunk < rows ? begin + chunk : rows;
    stage(begin, end, static_cast<ThreadPool*>(nullptr));
  };
  pool.parallel_for((rows + chunk - 1) / chunk, std::ref(task));
}

}  // namespace accord::model
