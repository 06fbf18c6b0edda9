#pragma once
// Hopper's asynchronous warpgroup products (sm_90a): fences, shared-memory descriptors with 128-byte swizzle,
// and m64nNk16 with BF16 operands and fp32 accumulators. Device code only.
#include <cuda_runtime.h>

#include <cstdint>

#include "kernels/gemm/wgmma_operands.cuh"

namespace accord::kernels::cuda {

__device__ inline void wgmma_fence() { asm volatile("wgmma.fence.sync.aligned;\n" ::: "memory"); }
__device__ inline void wgmma_commit() { asm volatile("wgmma.commit_group.sync.aligned;\n" ::: "memory"); }
template <int PENDING>
__device__ inline void wgmma_wait() {
  asm volatile("wgmma.wait_group.sync.aligned %0;\n" ::"n"(PENDING) : "memory");
}
// After a wait: keeps the compiler from reading or moving accumulators before it.
template <int N>
__device__ inline void hold_accumulators(float (&d)[N]) {
#pragma unroll
  for (int i = 0; i < N; ++i) asm volatile("" : "+f"(d[i])::"memory");
}
// Makes this thread's ordinary and cp.async stores visible to the tensor cores (then a barrier).
__device__ inline void fence_async_proxy() { asm volatile("fence.proxy.async.shared::cta;\n" ::: "memory"); }

// A tile whose rows are 64 elements (128 bytes), swizzled: chunk c (16 bytes) of row r lies at c ^ (r % 8).
//   along K    rows are rows of the operand; a step of 16 in K adds 32 bytes
//   across K   rows are steps of K, columns 64 rows of the operand; further 64 lie kBlockBytes on; a step of
//   16 in K
//              adds 2048 bytes
constexpr uint32_t kBlockBytes = 64 * 128;
__device__ inline uint64_t operand_descriptor(uint32_t address) {
  constexpr uint64_t kSwizzle128 = uint64_t{1} << 62;
  constexpr uint64_t kGroup = uint64_t{1024 >> 4} << 32;         // eight rows
  constexpr uint64_t kBlock = uint64_t{kBlockBytes >> 4} << 16;  // read across K only
  return kSwizzle128 | kGroup | kBlock | ((address & 0x3ffffu) >> 4);
}

// d (64 x COLUMNS) += A B, both from shared memory, *_ACROSS: that operand lies across K; or with A (64 x 16)
// in registers, a fragment of 16 rows per warp as of mma m16n8k16, and B along K. n0 to n4: REGISTERS and the
// numbers after it.
// clang-format off
#define ACCORD_WGMMA(COLUMNS, REGISTERS, n0, n1, n2, n3, n4)                                            \
  template <int A_ACROSS, int B_ACROSS>                                                                 \
  __device__ inline void wgmma(float (&d)[REGISTERS], uint64_t a, uint64_t b) {                         \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 "                      \
                 "{" ACCORD_NUMBERS_##REGISTERS "}, "                                                   \
                 "%" #n0 ", %" #n1 ", 1, 1, 1, %" #n2 ", %" #n3 ";\n"                                   \
                 : ACCORD_SUMS_##REGISTERS                                                              \
                 : "l"(a), "l"(b), "n"(A_ACROSS), "n"(B_ACROSS));                                       \
  }                                                                                                     \
  __device__ inline void wgmma(float (&d)[REGISTERS], const uint32_t (&a)[4], uint64_t b) {             \
    asm volatile("wgmma.mma_async.sync.aligned.m64n" #COLUMNS "k16.f32.bf16.bf16 "                      \
                 "{" ACCORD_NUMBERS_##REGISTERS "}, "                                                   \
                 "{%" #n0 ", %" #n1 ", %" #n2 ", %" #n3 "}, %" #n4 ", 1, 1, 1, 0;\n"                    \
                 : ACCORD_SUMS_##REGISTERS                                                              \
                 : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "l"(b));                                 \
  }
// clang-format on
ACCORD_WGMMA(8, 4, 4, 5, 6, 7, 8)
ACCORD_WGMMA(16, 8, 8, 9, 10, 11, 12)
ACCORD_WGMMA(32, 16, 16, 17, 18, 19, 20)
ACCORD_WGMMA(64, 32, 32, 33, 34, 35, 36)
ACCORD_WGMMA(128, 64, 64, 65, 66, 67, 68)
ACCORD_WGMMA(136, 68, 68, 69, 70, 71, 72)
ACCORD_WGMMA(144, 72, 72, 73, 74, 75, 76)
ACCORD_WGMMA(192, 96, 96, 97, 98, 99, 100)
ACCORD_WGMMA(240, 120, 120, 121, 122, 123, 124)
ACCORD_WGMMA(256, 128, 128, 129, 130, 131, 132)
#undef ACCORD_WGMMA

}  // namespace accord::kernels::cuda
