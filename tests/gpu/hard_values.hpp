#pragma once
// Inputs that are hard on quantizers, fast enough for billions of elements.
#include <cstdint>

#include "base/dtype.hpp"
#include "device/thread_pool.hpp"

namespace gpu_test {

// Fills [rows, cols] with values that depend on seed, row and column alone. Each row is of one kind: uniform
// bits; ordinary values; one exponent a block and up to fifteen below it; small multiples of a power of two,
// which tie; subnormals; values near the largest; mostly zeros of both signs; ordinary values with a NaN of
// either sign, an Inf or an extreme here and there.
constexpr int kNumKinds = 8;
void fill_hard(uint64_t seed, int64_t rows, int64_t cols, float* x, accord::ThreadPool& pool);
void fill_hard(uint64_t seed, int64_t rows, int64_t cols, accord::BF16* x, accord::ThreadPool& pool);

}  // namespace gpu_test
