#pragma once
// What every part of the backward shares: parameters, pool, reusable fp32 operands, and row-parallel loops
// whose blocks depend on the row count alone.
#include <cstdint>
#include <functional>
#include <memory>
#include <mutex>
#include <span>
#include <vector>

#include "base/model_config.hpp"
#include "device/buffer.hpp"
#include "device/tensor_view.hpp"
#include "device/thread_pool.hpp"
#include "kernels/rope/rope.hpp"
#include "trainer/layer_params.hpp"
#include "trainer/parameters.hpp"

namespace accord::trainer {

class Workspace {
 public:
  Workspace(const ModelConfig& config, const Parameters& parameters, ThreadPool& pool, Dtype compute_dtype,
            BackwardOptions backward = {});

  const ModelConfig& config;
  const Parameters& parameters;
  ThreadPool& pool;
  const Dtype compute_dtype;
  const BackwardOptions backward;
  const ModelParams params;
  const std::vector<LayerParams>& layers;
  const int64_t embedding, final_norm, lm_head;  // lm_head is the embedding when tied
  kernels::RopeTable rope;

  // body(begin, count) over [0, rows) in fixed blocks.
  void for_rows(int64_t rows, const std::function<void(int64_t, int64_t)>& body) const;

  // `view` as contiguous fp32: itself, or a copy in `buffer`.
  const float* operand(MatrixView view, Buffer& buffer) const;
  // bf16(master) of a weight that this rank holds as fp32, in `buffer`.
  const float* weight(int64_t index, Buffer& buffer) const;
  // A gradient as a GEMM operand: bf16(values) in place, or as it is when the compute dtype is float32.
  void round_gradient(float* values, int64_t count) const;
  // out = bf16(in) as fp32, whatever the compute dtype.
  void round_into(const float* in, int64_t count, float* out) const;

  // dx (+)= the norm's backward over all rows; dweight is added to the gradient of parameter `norm`.
  void norm_backward(MatrixView x, const float* inv_rms, const BF16* weight, int64_t norm, const float* dy,
                     float* dx, bool accumulate);

  // Scratch memory of one running task.
  class Lease {
   public:
    Lease(Workspace& owner, size_t floats);
    ~Lease();
    Lease(const Lease&) = delete;
    Lease& operator=(const Lease&) = delete;
    float* data() const { return buffer_->as<float>(); }

   private:
    Workspace& owner_;
    std::unique_ptr<Buffer> buffer_;
  };

 private:
  std::mutex mutex_;
  std::vector<std::unique_ptr<Buffer>> free_;
  Buffer norm_partials_;
};

}  // namespace accord::trainer
