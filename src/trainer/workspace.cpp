#include "trainer/workspace.hpp"

#include <algorithm>
#include <cstring>
#include <utility>

#include "kernels/linear/linear_backward.hpp"
#include "kernels/rmsnorm/rmsnorm_backward.hpp"

namespace accord::trainer {

namespace {

constexpr int64_t kRowBlock = 128;
constexpr int64_t kElementBlock = 1 << 14;

}  // namespace

Workspace::Workspace(const ModelConfig& config_, const Parameters& parameters_, ThreadPool& pool_,
                     Dtype compute_dtype_, BackwardOptions backward_)
    : config(config_),
      parameters(parameters_),
      pool(pool_),
      compute_dtype(compute_dtype_),
      backward(std::move(backward_)),
      params(config_, parameters_),
      layers(params.layers),
      embedding(params.embedding),
      final_norm(params.final_norm),
      lm_head(params.lm_head),
      rope(config_.head_dim, config_.rope_theta, config_.rope_scaling) {}

void Workspace::for_rows(int64_t rows, const std::function<void(int64_t, int64_t)>& body) const {
  pool.parallel_for((rows + kRowBlock - 1) / kRowBlock, [&](int64_t block) {
    const int64_t begin = block * kRowBlock;
    body(begin, std::min(kRowBlock, rows - begin));
  });
}

const float* Workspace::operand(MatrixView view, Buffer& buffer) const {
  if (view.dtype == Dtype::kF32 && view.stride == view.cols) return static_cast<const float*>(view.data);
  buffer.ensure(static_cast<size_t>(view.rows * view.cols) * sizeof(float));
  float* out = buffer.as<float>();
  for_rows(view.rows, [&](int64_t begin, int64_t count) {
    kernels::widen(view.slice_rows(begin, count), out + begin * view.cols);
  });
  return out;
}

const float* Workspace::weight(int64_t index, Buffer& buffer) const {
  const int64_t count = parameters.specs()[static_cast<size_t>(index)].numel();
  buffer.ensure(static_cast<size_t>(count) * sizeof(float));
  float* out = buffer.as<float>();
  pool.parallel_for((count + kElementBlock - 1) / kElementBlock, [&](int64_t block) {
    const int64_t begin = block * kElementBlock;
    parameters.read_weight(index, begin, std::min(kElementBlock, count - begin), out + begin);
  });
  return out;
}

void Workspace::round_gradient(float* values, int64_t count) const {
  if (compute_dtype != Dtype::kF32) round_into(values, count, values);
}

void Workspace::round_into(const float* in, int64_t count, float* out) const {
  pool.parallel_for((count + kElementBlock - 1) / kElementBlock, [&](int64_t block) {
    const int64_t begin = block * kElementBlock;
    kernels::round_to_bf16(in + begin, std::min(kElementBlock, count - begin), out + begin);
  });
}

void Workspace::norm_backward(MatrixView x, const float* inv_rms, const BF16* weight, int64_t norm,
                              const float* dy, float* dx, bool accumulate) {
  // Partial weight gradients of fixed row blocks, added up in order.
  const int64_t width = x.cols;
  const int64_t blocks = (x.rows + kRowBlock - 1) / kRowBlock;
  const size_t bytes = static_cast<size_t>(blocks * width) * sizeof(float);
  norm_partials_.ensure(bytes);
  float* partials = norm_partials_.as<float>();
  std::memset(partials, 0, bytes);
  for_rows(x.rows, [&](int64_t begin, int64_t count) {
    kernels::rmsnorm_backward(x.slice_rows(begin, count), inv_rms + begin, weight, dy + begin * width,
                              dx + begin * width, accumulate, partials + begin / kRowBlock * width);
  });
  float* gradient = parameters.gradient(norm).data();
  for (int64_t b = 0; b < blocks; ++b) {
    for (int64_t h = 0; h < width; ++h) gradient[h] += partials[b * width + h];
  }
}

Workspace::Lease::Lease(Workspace& owner, size_t floats) : owner_(owner) {
  {
    const std::lock_guard lock(owner.mutex_);
    if (!owner.free_.empty()) {
      buffer_ = std::move(owner.free_.back());
      owner.free_.pop_back();
    }
  }
  if (buffer_ == nullptr) buffer_ = std::make_unique<Buffer>();
  buffer_->ensure(floats * sizeof(float));
}

Workspace::Lease::~Lease() {
  const std::lock_guard lock(owner_.mutex_);
  owner_.free_.push_back(std::move(buffer_));
}

}  // namespace accord::trainer
