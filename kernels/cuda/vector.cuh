#pragma once
// Sixteen-byte accesses, and the exact widening and the contract's narrowing of bf16 (base/dtype.hpp).
#include <cstdint>

#include "base/dtype.hpp"
#include "device/tensor_view.hpp"

namespace accord::gpu {

// Elements of a 16-byte access.
template <class T>
inline constexpr int kVector = 16 / static_cast<int>(sizeof(T));

// A read that is not needed again: it does not displace what is.
__device__ inline uint4 load_streaming(const void* p) { return __ldcs(static_cast<const uint4*>(p)); }
__device__ inline uint4 load16(const void* p) { return *static_cast<const uint4*>(p); }
__device__ inline void store16(void* p, uint4 v) { *static_cast<uint4*>(p) = v; }

// Word i of a vector; i is a constant of an unrolled loop.
__device__ inline uint32_t word(const uint4& v, int i) {
  return i == 0 ? v.x : i == 1 ? v.y : i == 2 ? v.z : v.w;
}

__device__ inline void unpack(const uint4& v, float (&out)[4], float) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[i] = __uint_as_float(word(v, i));
  }
}
__device__ inline void unpack(const uint4& v, float (&out)[8], BF16) {
#pragma unroll
  for (int i = 0; i < 4; ++i) {
    out[2 * i] = __uint_as_float(word(v, i) << 16);
    out[2 * i + 1] = __uint_as_float(word(v, i) & 0xffff0000u);
  }
}
// The values of a 16-byte vector of T as fp32.
template <class T>
__device__ inline void unpack(const uint4& v, float (&out)[kVector<T>]) {
  unpack(v, out, T());
}

// Two values to bf16, the first in the low half: rounds like to_bf16, but every NaN becomes 0x7fff
// (arithmetic on the device does not keep the bits of a NaN either; the contract compares any NaN equal to
// any other).
__device__ inline uint32_t pack_bf16(float low, float high) {
  uint32_t bits;
  asm("cvt.rn.bf16x2.f32 %0, %1, %2;" : "=r"(bits) : "f"(high), "f"(low));
  return bits;
}

// kVector<T> values, rounded to T.
template <class T>
__device__ inline uint4 pack(const float (&x)[kVector<T>]) {
  if constexpr (sizeof(T) == sizeof(float)) {
    return {__float_as_uint(x[0]), __float_as_uint(x[1]), __float_as_uint(x[2]), __float_as_uint(x[3])};
  } else {
    return {pack_bf16(x[0], x[1]), pack_bf16(x[2], x[3]), pack_bf16(x[4], x[5]), pack_bf16(x[6], x[7])};
  }
}

// A vector, or the elements one by one where rows are not aligned.
template <class T, bool kAligned>
__device__ inline uint4 load_vector(const T* p) {
  if constexpr (kAligned) {
    return load16(p);
  } else {
    uint4 v;
    T* elements = reinterpret_cast<T*>(&v);
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      elements[i] = p[i];
    }
    return v;
  }
}

// Whether every row of a view can be read in 16-byte vectors.
inline bool is_vectorizable(const MatrixView& x) {
  const int64_t row_bytes = x.stride * size_of(x.dtype);
  return reinterpret_cast<uintptr_t>(x.data) % 16 == 0 && (x.rows <= 1 || row_bytes % 16 == 0) &&
         x.cols * size_of(x.dtype) % 16 == 0;
}

}  // namespace accord::gpu
