#pragma once
// wgmma as attention uses it: d (64 x N) = A B, or += A B with `add`, one step of 16 along K. d[4 j + e] of a
// lane is mma_16816's c[e] of the columns 8 j to 8 j + 7, the warp's 16 rows; A from registers is its
// fragment.
#include "kernels/gemm/wgmma.cuh"

namespace accord::kernels::cuda::attention {

// An operand_descriptor() in shared memory: its low word, an address in units of 16 bytes and the blocks'
// distance, that steps add to; the high word is the same for all.
constexpr uint32_t kDescriptorHigh = (1u << 30) | (1024u >> 4);
__device__ inline uint32_t descriptor_low(uint32_t address) {
  return (kBlockBytes >> 4 << 16) | ((address & 0x3ffffu) >> 4);
}

template <int B_ACROSS>
__device__ inline void multiply(float (&d)[32], const uint32_t (&a)[4], uint32_t b, bool add) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %37, 0;\nmov.b64 b, {%36, %39};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" ACCORD_NUMBERS_32 "}, "
      "{%32, %33, %34, %35}, b, p, 1, 1, %38;\n}\n"
      : ACCORD_SUMS_32
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(add)), "n"(B_ACROSS), "n"(kDescriptorHigh));
  // clang-format on
}
template <int A_ACROSS, int B_ACROSS>
__device__ inline void multiply(float (&d)[32], uint32_t a, uint32_t b, bool add) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %34, 0;\nmov.b64 a, {%32, %37};\nmov.b64 b, {%33, %37};\n"
      "wgmma.mma_async.sync.aligned.m64n64k16.f32.bf16.bf16 "
      "{" ACCORD_NUMBERS_32 "}, "
      "a, b, p, 1, 1, %35, %36;\n}\n"
      : ACCORD_SUMS_32
      : "r"(a), "r"(b), "r"(static_cast<int>(add)), "n"(A_ACROSS), "n"(B_ACROSS), "n"(kDescriptorHigh));
  // clang-format on
}

template <int B_ACROSS>
__device__ inline void multiply(float (&d)[64], const uint32_t (&a)[4], uint32_t b, bool add) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 b;\nsetp.ne.b32 p, %69, 0;\nmov.b64 b, {%68, %71};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" ACCORD_NUMBERS_64 "}, "
      "{%64, %65, %66, %67}, b, p, 1, 1, %70;\n}\n"
      : ACCORD_SUMS_64
      : "r"(a[0]), "r"(a[1]), "r"(a[2]), "r"(a[3]), "r"(b), "r"(static_cast<int>(add)), "n"(B_ACROSS), "n"(kDescriptorHigh));
  // clang-format on
}
template <int A_ACROSS, int B_ACROSS>
__device__ inline void multiply(float (&d)[64], uint32_t a, uint32_t b, bool add) {
  // clang-format off
  asm volatile(
      "{\n.reg .pred p;\n.reg .b64 a, b;\nsetp.ne.b32 p, %66, 0;\nmov.b64 a, {%64, %69};\nmov.b64 b, {%65, %69};\n"
      "wgmma.mma_async.sync.aligned.m64n128k16.f32.bf16.bf16 "
      "{" ACCORD_NUMBERS_64 "}, "
      "a, b, p, 1, 1, %67, %68;\n}\n"
      : ACCORD_SUMS_64
      : "r"(a), "r"(b), "r"(static_cast<int>(add)), "n"(A_ACROSS), "n"(B_ACROSS), "n"(kDescriptorHigh));
  // clang-format on
}

// The first lane's value, of which the compiler then knows that it is the warp's: addresses and loops that
// follow from it take no vector instructions.
__device__ inline int uniform(int x) { return __shfl_sync(0xffffffffu, x, 0); }
__device__ inline uint32_t uniform(uint32_t x) { return __shfl_sync(0xffffffffu, x, 0); }

// Barriers of shared memory (mbarrier), by whose phases producers and consumers of a ring take turns.
__device__ inline void barrier_init(uint32_t barrier, int arrivals) {
  asm volatile("mbarrier.init.shared.b64 [%0], %1;\n" ::"r"(barrier), "r"(arrivals) : "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// Arrives when this thread's copies so far (copy_async) have arrived.
__device__ inline void barrier_arrive_copied(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared.b64 [%0];\n" ::"r"(barrier) : "memory");
}
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  asm volatile(
      "{\n.reg .pred done;\n"
      "again:\n"
      "mbarrier.try_wait.parity.shared.b64 done, [%0], %1;\n"
      "@!done bra again;\n}\n" ::"r"(barrier),
      "r"(parity)
      : "memory");
}

template <int REGISTERS>
__device__ inline void take_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}
template <int REGISTERS>
__device__ inline void give_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(REGISTERS));
}

// Two warpgroups take turns at the tensor cores: the products of one run while the other computes, instead of
// both waiting, then both computing. Every take is followed by a pass; group 0 starts.
constexpr int kTurnThreads = 256;
__device__ inline void pass_turn(int group) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(2 - group), "n"(kTurnThreads) : "memory");
}
__device__ inline void take_turn(int group) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(1 + group), "n"(kTurnThreads) : "memory");
}

// Keeps operands of products in flight in their registers until here.
template <int N>
__device__ inline void hold_operands(uint32_t (&a)[N][4]) {
#pragma unroll
  for (int i = 0; i < N; ++i) {
    asm volatile("" : "+r"(a[i][0]), "+r"(a[i][1]), "+r"(a[i][2]), "+r"(a[i][3])::"memory");
  }
}

}  // namespace accord::kernels::cuda::attention
