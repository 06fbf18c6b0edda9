#include "trainer/matmul.hpp"

#include <ATen/Parallel.h>
#include <ATen/core/Tensor.h>
#include <ATen/ops/addmm.h>
#include <ATen/ops/from_blob.h>
#include <ATen/ops/mm.h>
#include <c10/core/InferenceMode.h>

#include <algorithm>
#include <exception>
#include <mutex>
#include <utility>

namespace accord::trainer {

namespace {

constexpr int64_t kRowBlock = 256;         // output rows of a dgrad block
constexpr int64_t kMinGradientBlock = 32;  // output rows of a wgrad block
constexpr int64_t kMaxGradientBlocks = 16;

at::Tensor view(const float* data, at::IntArrayRef sizes, at::IntArrayRef strides) {
  // from_blob takes a mutable pointer; operands are only read.
  return at::from_blob(const_cast<float*>(data), sizes, strides, at::TensorOptions().dtype(at::kFloat));
}

// The library keeps its thread count per calling thread, and its bits depend on it (a few rows of products
// with 64 columns, say). A worker's calls come on any thread.
void use_one_library_thread() {
  thread_local const bool done = [] {
    at::set_num_threads(1);
    return true;
  }();
  static_cast<void>(done);
}

}  // namespace

void Products::add_rows(std::vector<Term> terms, int64_t m, int64_t n, float* c, bool accumulate) {
  for (int64_t row = 0; row < m; row += kRowBlock) {
    Block block;
    block.terms = terms;
    for (Term& term : block.terms) term.a += row * term.depth;
    block.accumulate = accumulate;
    block.m = std::min(kRowBlock, m - row);
    block.n = n;
    block.c = c + row * n;
    blocks_.push_back(std::move(block));
  }
}

void Products::add_gradient(const float* a, const float* b, int64_t depth, int64_t m, int64_t n, float* c) {
  if (depth == 0) return;
  const int64_t even = (m + kMaxGradientBlocks - 1) / kMaxGradientBlocks;
  const int64_t height = std::max(kMinGradientBlock, (even + 15) / 16 * 16);
  for (int64_t row = 0; row < m; row += height) {
    Block block;
    block.terms = {{a + row, b, depth}};
    block.transpose_a = true;
    block.accumulate = true;
    block.a_stride = m;
    block.m = std::min(height, m - row);
    block.n = n;
    block.c = c + row * n;
    blocks_.push_back(std::move(block));
  }
}

void Products::run_block(const Block& block) {
  use_one_library_thread();
  const c10::InferenceMode guard;
  at::Tensor c = view(block.c, {block.m, block.n}, {block.n, 1});
  bool accumulate = block.accumulate;
  for (const Term& term : block.terms) {
    const at::Tensor a = block.transpose_a ? view(term.a, {block.m, term.depth}, {1, block.a_stride})
                                           : view(term.a, {block.m, term.depth}, {term.depth, 1});
    const at::Tensor b = view(term.b, {term.depth, block.n}, {block.n, 1});
    if (accumulate) {
      at::addmm_out(c, c, a, b);
    } else {
      at::mm_out(c, a, b);
    }
    accumulate = true;
  }
}

Status Products::run(ThreadPool& pool) {
  const std::vector<Block> blocks = std::exchange(blocks_, {});
  std::mutex mutex;
  Status status = absl::OkStatus();
  pool.parallel_for(static_cast<int64_t>(blocks.size()), [&](int64_t i) {
    try {
      run_block(blocks[static_cast<size_t>(i)]);
    } catch (const std::exception& error) {
      const std::lock_guard lock(mutex);
      status.Update(internal_error("matrix product: {}", error.what()));
    }
  });
  return status;
}

}  // namespace accord::trainer
