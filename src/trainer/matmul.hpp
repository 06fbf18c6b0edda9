#pragma once
// fp32 matrix products of the backward, through libtorch. Each product is cut into blocks of the output by
// its shape alone, and every block is one single-threaded library call, so the thread count never changes a
// bit.
#include <cstdint>
#include <vector>

#include "base/status.hpp"
#include "device/thread_pool.hpp"

namespace accord::trainer {

// A list of independent products that run together. Operands are contiguous fp32 and must live until run().
class Products {
 public:
  struct Term {
    const float* a = nullptr;
    const float* b = nullptr;
    int64_t depth = 0;
  };

  // c[M,N] = (c +) a[M,L] b[L,N]: dgrad, rows of dy against a weight [out, in]. Further terms are added in
  // order.
  void add_rows(std::vector<Term> terms, int64_t m, int64_t n, float* c, bool accumulate = false);
  // c[M,N] += a[L,M]^T b[L,N]: wgrad, dy^T x over L rows. With L = 0 nothing is added.
  void add_gradient(const float* a, const float* b, int64_t depth, int64_t m, int64_t n, float* c);

  // Runs and clears the list. An error carries the library's text.
  Status run(ThreadPool& pool);

 private:
  struct Block {
    std::vector<Term> terms;
    bool transpose_a = false;
    bool accumulate = false;
    int64_t a_stride = 0;
    int64_t m = 0, n = 0;
    float* c = nullptr;
  };
  static void run_block(const Block& block);

  std::vector<Block> blocks_;
};

}  // namespace accord::trainer
