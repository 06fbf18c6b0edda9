#pragma once
// Staging of BF16 operands for wgmma: 64 steps of the contracted dimension l, swizzled as wgmma.cuh says, by
// cp.async.
#include "kernels/cuda/launch.cuh"
#include "kernels/gemm/gemm_large.hpp"
#include "kernels/gemm/mma.cuh"
#include "kernels/gemm/wgmma.cuh"

namespace accord::kernels::cuda {

constexpr int kLargeThreads = 256;  // two warpgroups
constexpr int kBM = 128;
constexpr int kBL = 64;
constexpr int kStages = 4;

// The width, of 64, 128 and 256, of the tiles that cover n columns `others` times soonest: rounds of all
// multiprocessors, each as long as a tile is wide, and a fixed part that favors wide ones.
inline int tile_width(int64_t n, int64_t others) {
  constexpr int kFixed = 48;
  int best = 0;
  int64_t best_cost = 0;
  for (const int width : {256, 128, 64}) {
    const int64_t rounds = gpu::ceil_div(gpu::ceil_div(n, width) * others, num_multiprocessors());
    const int64_t cost = rounds * (width + kFixed);
    if (best == 0 || cost < best_cost) {
      best = width;
      best_cost = cost;
    }
  }
  return best;
}

// Where a thread's copies of one operand come from and go to. Every thread copies the same chunk (8 elements)
// of several rows (along l) or of several steps of l (across).
template <bool ACROSS, int ROWS>
struct Loader {
  static constexpr int kBytes = ROWS * kBL * 2;
  static constexpr int kCopies = ROWS * 8 / kLargeThreads;  // along: rows 32 apart
  const uint16_t* from[ACROSS ? 1 : kCopies];
  uint32_t to;
  int chunk;  // along: first element of l in the stage; across: first row
  int step;   // across: step of l in the stage
  int64_t ld;
  int limit;  // rows of the operand from this tile on
  const int32_t* gather;

  // `rows` valid rows from `first` on; the others are zeros.
  __device__ void init(const uint16_t* data, int64_t stride, int first, int rows, const int32_t* rows_gather,
                       int tid, uint32_t shared) {
    ld = stride;
    limit = rows;
    gather = rows_gather;
    chunk = tid % 8 * 8;
    step = tid / 8;
    to = shared + step * 128 + ((tid % 8) ^ (step % 8)) * 16;
    if constexpr (ACROSS) {
      from[0] = data + first + chunk;
    } else {
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const int r = first + min(step + i * 32, rows - 1);
        from[i] = data + static_cast<int64_t>(gather != nullptr ? gather[r] : r) * stride + chunk;
      }
    }
  }

  __device__ void issue(uint32_t stage_offset, int l0, int l_end) const {
    if constexpr (ACROSS) {
#pragma unroll
      for (int half = 0; half < 2; ++half) {
        const int l = l0 + step + half * 32;
        const bool in = l < l_end;
        const int64_t row = in && gather != nullptr ? gather[l] : l;
        const uint16_t* source = in ? from[0] + row * ld : from[0];
#pragma unroll
        for (int b = 0; b < ROWS / 64; ++b) {
          const bool valid = in && chunk + b * 64 < limit;
          copy_async<16>(to + stage_offset + b * kBlockBytes + half * 32 * 128,
                         valid ? source + b * 64 : from[0] - chunk, valid);
        }
      }
    } else {
      const bool in = l0 + chunk < l_end;
#pragma unroll
      for (int i = 0; i < kCopies; ++i) {
        const bool valid = in && step + i * 32 < limit;
        copy_async<16>(to + stage_offset + i * 32 * 128, valid ? from[i] + l0 : from[i] - chunk, valid);
      }
    }
  }
};

}  // namespace accord::kernels::cuda
