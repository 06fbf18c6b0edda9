#pragma once
// Runs of N neighbouring values: fp32 in, fp32 or bf16 (one rounding) out, in the widest accesses that N
// allows; N is 1 or a multiple of 4.
#include <cstdint>

#include "kernels/cuda/vector.cuh"

namespace accord::gpu {

inline bool is_aligned16(const void* p) { return reinterpret_cast<uintptr_t>(p) % 16 == 0; }

// p is aligned to 16 bytes unless N = 1.
template <int N>
__device__ inline void load_floats(const float* p, float (&x)[N]) {
  if constexpr (N == 1) {
    x[0] = p[0];
  } else {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      const uint4 v = load16(p + 4 * i);
#pragma unroll
      for (int j = 0; j < 4; ++j) {
        x[4 * i + j] = __uint_as_float(word(v, j));
      }
    }
  }
}

// p is aligned to 16 bytes, or to 8 where four bf16 take no more.
template <class T, int N>
__device__ inline void store_rounded(T* p, const float (&x)[N]) {
  if constexpr (N == 1) {
    p[0] = from_float<T>(x[0]);
  } else if constexpr (sizeof(T) == sizeof(float)) {
    static_assert(N % 4 == 0);
#pragma unroll
    for (int i = 0; i < N / 4; ++i) {
      store16(p + 4 * i, {__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
                          __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3])});
    }
  } else if constexpr (N == 4) {
    *reinterpret_cast<uint2*>(p) = {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3])};
  } else {
    static_assert(N % 8 == 0);
#pragma unroll
    for (int i = 0; i < N; i += 8) {
      store16(p + i, {pack_bf16(x[i], x[i + 1]), pack_bf16(x[i + 2], x[i + 3]), pack_bf16(x[i + 4], x[i + 5]),
                      pack_bf16(x[i + 6], x[i + 7])});
    }
  }
}

}  // namespace accord::gpu
