#pragma once
// Barriers in shared memory between the warps that fill stages and those that use them (Hopper). Device code
// only; addresses are the 32-bit ones of shared memory.
#include <cuda_runtime.h>

#include <cstdint>

namespace accord::gpu {

// `count` arrivals end a phase. Then fence_barriers() and __syncthreads() before the first use.
__device__ inline void barrier_init(uint32_t barrier, uint32_t count) {
  asm volatile("mbarrier.init.shared::cta.b64 [%0], %1;\n" ::"r"(barrier), "r"(count) : "memory");
}
__device__ inline void fence_barriers() {
  asm volatile("fence.mbarrier_init.release.cluster;\n" ::: "memory");
}
__device__ inline void barrier_arrive(uint32_t barrier) {
  asm volatile("mbarrier.arrive.shared::cta.b64 _, [%0];\n" ::"r"(barrier) : "memory");
}
// This thread's arrival, once its asynchronous copies so far are complete.
__device__ inline void barrier_arrive_copies(uint32_t barrier) {
  asm volatile("cp.async.mbarrier.arrive.noinc.shared::cta.b64 [%0];\n" ::"r"(barrier) : "memory");
}
// Until the phase of this parity is over: 0 the first, 1 the second, and so on.
__device__ inline void barrier_wait(uint32_t barrier, uint32_t parity) {
  uint32_t done = 0;
  while (done == 0) {
    asm volatile(
        "{\n.reg .pred p;\n"
        "mbarrier.try_wait.parity.shared::cta.b64 p, [%1], %2;\n"
        "selp.u32 %0, 1, 0, p;\n}\n"
        : "=r"(done)
        : "r"(barrier), "r"(parity)
        : "memory");
  }
}

// Hardware barriers 1 to 15 among `threads` threads of the block.
__device__ inline void sync_threads(int barrier, int threads) {
  asm volatile("bar.sync %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}
__device__ inline void arrive_threads(int barrier, int threads) {
  asm volatile("bar.arrive %0, %1;\n" ::"r"(barrier), "r"(threads) : "memory");
}

// Registers per thread of this warpgroup from here on.
template <int COUNT>
__device__ inline void more_registers() {
  asm volatile("setmaxnreg.inc.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}
template <int COUNT>
__device__ inline void fewer_registers() {
  asm volatile("setmaxnreg.dec.sync.aligned.u32 %0;\n" ::"n"(COUNT));
}

}  // namespace accord::gpu
