#pragma once
// C[m,n] (+)= sum over l of A(m,l) B(n,l) for many rows per expert on wgmma (gemm_large.hpp): forward in
// BF16, dgrad in fp32. Included by the files that instantiate it.
//
// One block per multiprocessor takes every so manieth tile of the list. A warpgroup copies
// (experts_copies.cuh), two multiply, each 64 columns of C: weights are the 64-row operand (BF16 from shared
// memory, others decoded into registers while what was decoded before is multiplied), the tile's rows the
// wide one, of 128 to kWideRows. So an expert's rows are padded little, and most experts' weights are read
// and decoded once. Results leave while the next tile is multiplied.
#include "kernels/gemm/experts_copies.cuh"
#include "kernels/gemm/experts_results.cuh"
#include "kernels/gemm/wgmma.cuh"

namespace accord::kernels::cuda {

constexpr int kExpertThreads = 384;

// A warpgroup that multiplies.
template <WeightFormat F, bool ACROSS>
class ExpertProduct {
  using Stage = ExpertStage<F>;
  using Shared = ExpertShared<F, ACROSS>;
  static constexpr int kLeaving = 2;  // times 16 rows of the tile before, after a step: all in nine steps

 public:
  __device__ __forceinline__ ExpertProduct(const LargeParams& p, uint32_t base, int warpgroup, int tid)
      : p_(p), base_(base), warpgroup_(warpgroup), tid_(tid) {}

  // `tiles` of them, whose extents the copying warpgroup tells: registers are scarce.
  __device__ __forceinline__ void run(int tiles) {
#pragma unroll 1
    for (; tiles > 0; --tiles) {
      wait_full(done_);
      const int rows = __shfl_sync(gpu::kFullMask, static_cast<int>(load_shared_4(extent() + 4)), 0);
      // With more widths the compiler finds too few registers for fragments, and serializes the products.
      if constexpr (Stage::kQuantized) {
        product_of<144, 192, 256, 272>(rows);
      } else {
        product_of<128, 144, 192, 240, 256, 272>(rows);
      }
      ++tiles_;
    }
    if constexpr (!ACROSS) leaving_.finish(p_);
  }

 private:
  // Of the tile, in shared memory.
  __device__ __forceinline__ uint32_t extent() const {
    return base_ + Shared::kExtents + tiles_ % Shared::kTilesAhead * 16;
  }
  __device__ __forceinline__ uint32_t stage(uint32_t step) const {
    return base_ + step % Shared::kRing * Stage::kBytes;
  }
  __device__ __forceinline__ void wait_full(uint32_t step) const {
    gpu::barrier_wait(base_ + Shared::kBarriers + step % Shared::kRing * 8, step / Shared::kRing & 1u);
    fence_async_proxy();
  }
  // The products of `step` are over.
  __device__ __forceinline__ void release(uint32_t step) const {
    if (tid_ % 32 == 0)
      gpu::barrier_arrive(base_ + Shared::kBarriers + (Shared::kRing + step % Shared::kRing) * 8);
  }

  template <int FIRST, int HALVES, int N>
  __device__ __forceinline__ void multiply(float (&acc)[HALVES][N], const uint32_t (&w)[2][4],
                                           uint32_t step) const {
    wgmma_fence();
#pragma unroll
    for (int ks = FIRST; ks < FIRST + 2; ++ks) {
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        wgmma(acc[h], w[ks - FIRST], operand_descriptor(stage(step) + h * N * 2 * 128 + ks * 32));
      }
    }
    wgmma_commit();
  }
  template <int HALVES, int N>
  __device__ __forceinline__ void multiply(float (&acc)[HALVES][N], uint32_t step) const {
    const uint32_t weights = stage(step) + Stage::kWeights + warpgroup_ * kBlockBytes;
    wgmma_fence();
#pragma unroll
    for (int ks = 0; ks < 4; ++ks) {
      const uint64_t a = operand_descriptor(weights + ks * (ACROSS ? 2048 : 32));
#pragma unroll
      for (int h = 0; h < HALVES; ++h) {
        wgmma<ACROSS, 0>(acc[h], a, operand_descriptor(stage(step) + h * N * 2 * 128 + ks * 32));
      }
    }
    wgmma_commit();
  }
  template <int FIRST>
  __device__ __forceinline__ void decode(uint32_t (&w)[2][4], uint32_t step) const {
    const int row = warpgroup_ * 64 + tid_ / 32 * 16 + tid_ % 32 / 4;
    decode_half<F, FIRST>(w, stage(step) + Stage::kWeights + row * Stage::kRowStride,
                          stage(step) + Stage::kScales + row * 16, tid_ % 4);
  }
  // After a wait: the registers were the products' until now.
  __device__ __forceinline__ static void hold(uint32_t (&w)[2][4]) {
#pragma unroll
    for (int i = 0; i < 8; ++i) asm volatile("" : "+r"(w[i / 4][i % 4])::"memory");
  }

  __device__ __forceinline__ void let_rows_leave() {
    if constexpr (!ACROSS) leaving_.template go_on<kLeaving>(p_);
  }

  // Of the first of these widths that suffices.
  template <int ROWS, int... OTHERS>
  __device__ __forceinline__ void product_of(int rows) {
    if constexpr (sizeof...(OTHERS) == 0) {
      product<ROWS>();
    } else if (rows <= ROWS) {
      product<ROWS>();
    } else {
      product_of<OTHERS...>(rows);
    }
  }

  template <int ROWS>
  __device__ __forceinline__ void product() {
    constexpr int kHalves = ROWS > 256 ? 2 : 1;
    constexpr int kN = ROWS / kHalves;
    float acc[kHalves][kN / 2] = {};
    const uint32_t first = done_;
    const uint32_t end = first + static_cast<uint32_t>(p_.l + kStepDepth - 1) / kStepDepth;
    done_ = end;
    uint32_t step = first;
    if constexpr (F == WeightFormat::kBF16) {
      for (; step < end; ++step) {
        wait_full(step);
        multiply(acc, step);
        let_rows_leave();
        wgmma_wait<1>();
        if (step > first) release(step - 1);
      }
    } else {
      uint32_t low[2][4] = {};  // the fragments of a stage's first 32 values, and of its others
      uint32_t high[2][4] = {};
      for (; step < end; ++step) {
        wait_full(step);
        decode<0>(low, step);
        multiply<0>(acc, low, step);
        wgmma_wait<1>();
        hold(high);
        if (step > first) release(step - 1);
        decode<2>(high, step);
        multiply<2>(acc, high, step);
        let_rows_leave();
        wgmma_wait<1>();
        hold(low);
      }
    }
    wgmma_wait<0>();
#pragma unroll
    for (int h = 0; h < kHalves; ++h) hold_accumulators(acc[h]);
    release(end - 1);
    int tid = tid_;  // what follows from it need not be kept while products run
    asm volatile("" : "+r"(tid));

    const uint4 bits = load_shared_16(extent());
    const ExpertExtent tile = {static_cast<int>(bits.x), static_cast<int>(bits.y), static_cast<int>(bits.z)};
    const uint32_t outers = base_ + Shared::kOuter + tiles_ % Shared::kTilesAhead * kWideRows * 4;
    ExpertResults<F, ACROSS, kHalves, kN / 2> results(p_, acc, tile, warpgroup_, tid, base_, outers);
    if constexpr (ACROSS) {
      results.store_f32();
    } else {
      leaving_.finish(p_);
      results.turn_bf16();
      leaving_.begin(p_, tile, warpgroup_, tid_, base_);
    }
  }

  const LargeParams& p_;
  const uint32_t base_;
  const int warpgroup_;
  const int tid_;
  uint32_t tiles_ = 0;  // done so far
  uint32_t done_ = 0;   // their steps
  LeavingRows<F> leaving_;
};

template <WeightFormat F, bool ACROSS>
__global__ void __launch_bounds__(kExpertThreads, 1) experts_kernel(const __grid_constant__ LargeParams p) {
  using Stage = ExpertStage<F>;
  using Shared = ExpertShared<F, ACROSS>;
  extern __shared__ __align__(1024) unsigned char raw_shared[];
  const uint32_t base = (shared_address(raw_shared) + 1023u) & ~1023u;
  const int warpgroup = __shfl_sync(gpu::kFullMask, static_cast<int>(threadIdx.x) / 128, 0);
  const uint32_t full = base + Shared::kBarriers;
  const uint32_t empty = full + Shared::kRing * 8;
  if (threadIdx.x == 0) {
    for (int s = 0; s < Shared::kRing; ++s) {
      gpu::barrier_init(full + s * 8, kCopyThreads + kCopyThreads / 32);
      gpu::barrier_init(empty + s * 8, 8);
    }
    gpu::fence_barriers();
  }
  __syncthreads();
  const WideTiles tiles(p);
  if (static_cast<int>(blockIdx.x) >= tiles.count) return;
  if (warpgroup < 2) {
    gpu::more_registers<208>();
    const int mine = (tiles.count - static_cast<int>(blockIdx.x) - 1) / static_cast<int>(gridDim.x) + 1;
    ExpertProduct<F, ACROSS>(p, base, warpgroup, static_cast<int>(threadIdx.x) % 128).run(mine);
    return;
  }
  gpu::fewer_registers<88>();
  const int tid = static_cast<int>(threadIdx.x) - 256;
  ExpertCopies<F, ACROSS> copies(p, tid, base);
  const int steps = (p.l + kStepDepth - 1) / kStepDepth;
  uint32_t issued = 0;
  int index = static_cast<int>(blockIdx.x);
  copies.look_at(tiles.at(index));
  copies.look_at_weights();
  while (index < tiles.count) {
    copies.begin();
    index += static_cast<int>(gridDim.x);
    for (int step = 0; step < steps; ++step, ++issued) {
      const uint32_t slot = issued % Shared::kRing;
      if (issued >= Shared::kRing) gpu::barrier_wait(empty + slot * 8, (issued / Shared::kRing - 1) & 1u);
      copies.issue(step, steps, base + slot * Stage::kBytes);
      gpu::barrier_arrive_copies(full + slot * 8);
      __syncwarp();
      if (tid % 32 == 0) gpu::barrier_arrive(full + slot * 8);
      if (index < tiles.count) {
        if (step == 0) copies.look_at(tiles.at(index));
        if (step == min(2, steps - 1)) copies.look_at_weights();
      }
    }
  }
  asm volatile("cp.async.wait_all;\n" ::: "memory");
}

template <WeightFormat F, bool ACROSS>
void launch_experts_of(const LargeParams& p, StreamHandle stream) {
  const auto kernel = experts_kernel<F, ACROSS>;
  constexpr int kBytes = ExpertShared<F, ACROSS>::kBytes;
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, kBytes);
  kernel<<<static_cast<unsigned>(num_multiprocessors()), kExpertThreads, kBytes, stream>>>(p);
  check_launch("products of experts");
}

}  // namespace accord::kernels::cuda
