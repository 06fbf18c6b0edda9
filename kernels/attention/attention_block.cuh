#pragma once
// What attention_cuda.cu (few rows) and attention_rows_cuda.cu (many) share: a block of 64 keys is read and
// weighed the same way, so that their bits are equal (attention_cuda.hpp has the order of every sum).
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/mma.cuh"
#include "kernels/math/exp_log.hpp"

namespace accord::kernels::cuda::attention {

constexpr int kThreads = 128;
constexpr int kWarps = 4;
constexpr int kBlock = 64;   // keys
constexpr int kSplit = 512;  // keys
constexpr int kPage = 16;
constexpr float kMinusInfinity = -__builtin_inff();

// The cache rows of a block of 64 keys: its four pages, read before the copies that need them.
struct BlockPages {
  int32_t first_row[kBlock / kPage];
  __device__ void read(const int32_t* pages, int key0, int context) {
    const int last = (context - 1) / kPage;
#pragma unroll
    for (int i = 0; i < kBlock / kPage; ++i) first_row[i] = pages[min(key0 / kPage + i, last)];
  }
  // Before the kernel has waited for its predecessor: past the L1 cache, which may hold an earlier batch's.
  __device__ void read_at_rest(const int32_t* pages, int key0, int context) {
    const int last = (context - 1) / kPage;
#pragma unroll
    for (int i = 0; i < kBlock / kPage; ++i) first_row[i] = __ldcg(pages + min(key0 / kPage + i, last));
  }
  __device__ int64_t row(int r) const {
    const int32_t low = r & kPage ? first_row[1] : first_row[0];
    const int32_t high = r & kPage ? first_row[3] : first_row[2];
    return (r & (2 * kPage) ? high : low) + r % kPage;
  }
};

__device__ inline AttentionTile tile_at_rest(const AttentionTile* tile) {  // as BlockPages::read_at_rest
  return {__ldcg(&tile->row_begin), __ldcg(&tile->num_rows), __ldcg(&tile->first_position),
          __ldcg(&tile->page_begin)};
}

// WIDTH columns (of `kv_head`) of a block's rows; zeros from `valid_rows` on.
template <int WIDTH>
__device__ inline void copy_block(const BF16* data, int64_t stride, const BlockPages& pages, int kv_head,
                                  int valid_rows, uint32_t to, int to_stride, int tid) {
  constexpr int kChunks = WIDTH / 8;
#pragma unroll 4
  for (int i = 0; i < kBlock * kChunks / kThreads; ++i) {
    const int index = i * kThreads + tid;
    const int r = index / kChunks;
    const int c = index % kChunks * 8;
    const bool valid = r < valid_rows;
    const int64_t row = pages.row(valid ? r : 0);
    copy_async<16>(to + r * to_stride + c * 2,
                   data + row * stride + static_cast<int64_t>(kv_head) * WIDTH + c, valid);
  }
}

// One block of one query: x, scores that lie with a quad's lanes (N = 16: all of a lane's; N = 8: those of
// the first or last 32 columns, with the other half four lanes on), becomes p. `max`: of this lane's scores,
// becomes the running maximum; `factor` rescales what was summed under the maximum `old`. Returns the block's
// sum of p.
template <int N>
__device__ inline float weigh(float (&x)[N], float& max, float old, float& factor) {
  if constexpr (N == 8) max = fmaxf(max, __shfl_xor_sync(gpu::kFullMask, max, 4));
  max = fmaxf(max, __shfl_xor_sync(gpu::kFullMask, max, 1));
  max = fmaxf(max, __shfl_xor_sync(gpu::kFullMask, max, 2));
  max = fmaxf(old, max);
  factor = 1.0F;
  if (max == kMinusInfinity) {  // nothing seen so far, or NaN alone
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = x[i] != x[i] ? x[i] : 0.0F;
  } else {
    factor = exp_nonpositive(old - max);
#pragma unroll
    for (int i = 0; i < N; ++i) x[i] = exp_nonpositive(x[i] - max);
  }
  float half[2] = {};
#pragma unroll
  for (int i = 0; i < N; ++i) half[i / 8] = half[i / 8] + x[i];
  float sum = N == 8 ? half[0] + __shfl_xor_sync(gpu::kFullMask, half[0], 4) : half[0] + half[1];
  sum = sum + __shfl_xor_sync(gpu::kFullMask, sum, 1);
  return sum + __shfl_xor_sync(gpu::kFullMask, sum, 2);
}

}  // namespace accord::kernels::cuda::attention
