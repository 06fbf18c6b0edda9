// MXFP8 (mxfp8.hpp): x [M,K] fp32 or bf16 -> q [M,K] bytes, and scales [M,K/32] (rows) or [M/32,K] (columns).
//
//   rows     A block of 32 lies in G = 2 * sizeof(T) neighbouring lanes, 16 bytes each. A warp takes four vectors
//            a lane, consecutive in memory, so that four loads are in flight.
//   columns  A thread holds 32 rows of one 16-byte column group in registers: 32 loads in flight, one read.
//   both     The same tile: G neighbouring threads hold a row's block.
#include <cassert>

#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/quantize.cuh"

namespace accord::formats::cuda {
namespace {

using gpu::kFullMask;
using gpu::kVector;
using gpu::kWarp;

constexpr int kBlock = 32;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRowUnroll = 4;

template <class T>
constexpr int kLanes = kBlock / kVector<T>;  // G

// A vector, or the elements one by one where rows are not aligned.
template <class T, bool kAligned>
__device__ inline uint4 load_vector(const T* p) {
  if constexpr (kAligned) {
    return gpu::load16(p);
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

// The codes of one vector.
template <class T, Element kElement>
__device__ inline void cast_store(const uint4& v, const float (&r)[kVector<T>], uint8_t* q) {
  float x[kVector<T>];
  gpu::unpack<T>(v, x);
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) {
    x[i] = x[i] * r[i];
  }
  if constexpr (kVector<T> == 8) {
    *reinterpret_cast<uint2*>(q) = {gpu::cast8_four<kElement>(x[0], x[1], x[2], x[3]),
                                    gpu::cast8_four<kElement>(x[4], x[5], x[6], x[7])};
  } else {
    *reinterpret_cast<uint32_t*>(q) = gpu::cast8_four<kElement>(x[0], x[1], x[2], x[3]);
  }
}

template <class T, Element kElement>
__device__ inline void cast_store(const uint4& v, float r, uint8_t* q) {
  float factors[kVector<T>];
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) {
    factors[i] = r;
  }
  cast_store<T, kElement>(v, factors, q);
}

template <class T>
__device__ inline float amax_of_vector(const uint4& v) {
  const uint4 one[1] = {v};
  return gpu::amax_of(one, T());
}

// `length` elements a row, a multiple of 32; outputs are contiguous.
template <class T, Element kElement, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const T* x, int64_t stride, int64_t rows, int64_t length, uint8_t* q, uint8_t* scale) {
  constexpr int kStep = kWarp * kVector<T>;  // elements of one vector a lane
  constexpr int kChunk = kRowUnroll * kStep;
  constexpr int kBlocksPerStep = kStep / kBlock;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunks = gpu::ceil_div(length, kChunk);
  const int64_t num_warps = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; i < rows * chunks; i += num_warps) {
    const int64_t row = rows == 1 ? 0 : i / chunks;
    const int64_t begin = (i - row * chunks) * kChunk;
    const T* in = x + row * stride;
    uint4 v[kRowUnroll];
#pragma unroll
    for (int j = 0; j < kRowUnroll; ++j) {
      const int64_t at = begin + j * kStep + lane * kVector<T>;
      v[j] = at < length ? load_vector<T, kAligned>(in + at) : uint4{0, 0, 0, 0};
    }
    uint32_t exponents = 0;  // one byte a vector
#pragma unroll
    for (int j = 0; j < kRowUnroll; ++j) {
      const uint32_t e = gpu::mxfp8_exponent<kElement>(gpu::lane_max(amax_of_vector<T>(v[j]), kLanes<T>));
      exponents |= e << (8 * j);
      const int64_t at = begin + j * kStep + lane * kVector<T>;
      if (at < length) {
        cast_store<T, kElement>(v[j], gpu::mxfp8_reciprocal(e), q + row * length + at);
      }
    }
    // Lane l stores the scale of block l of the chunk.
    const uint32_t word = __shfl_sync(kFullMask, exponents, lane % kBlocksPerStep * kLanes<T>);
    const int64_t block = begin / kBlock + lane;
    if (lane < kRowUnroll * kBlocksPerStep && block < length / kBlock) {
      scale[row * (length / kBlock) + block] = static_cast<uint8_t>(word >> (8 * (lane / kBlocksPerStep)));
    }
  }
}

// 32 rows of one column group a thread. Threads run along a stripe's groups, then along the stripes.
template <class T, Element kElement, bool kRows>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(const T* x, int64_t stride, int64_t stripes, int64_t cols, uint8_t* row_q, uint8_t* row_scale,
                uint8_t* col_q, uint8_t* col_scale) {
  const int64_t groups = cols / kVector<T>;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  // With kRows, groups is a multiple of kLanes<T>: the lanes of a row's block end together.
  const bool active = thread < stripes * groups;
  const int64_t stripe = active ? thread / groups : 0;
  const int64_t group = active ? thread - stripe * groups : 0;
  const int64_t row = stripe * kBlock;
  const int64_t col = group * kVector<T>;
  const T* in = x + row * stride + col;
  uint4 v[kBlock];
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    v[r] = active ? gpu::load16(in + r * stride) : uint4{0, 0, 0, 0};
  }

  float amax[kVector<T>];
  if constexpr (sizeof(T) == sizeof(float)) {
#pragma unroll
    for (int i = 0; i < kVector<T>; ++i) {
      amax[i] = 0.0F;
#pragma unroll
      for (int r = 0; r < kBlock; ++r) {
        amax[i] = fmaxf(amax[i], fabsf(__uint_as_float(gpu::word(v[r], i))));
      }
    }
  } else {
#pragma unroll
    for (int w = 0; w < 4; ++w) {
      uint32_t m = 0;
#pragma unroll
      for (int r = 0; r < kBlock; ++r) {
        m = gpu::max_abs_bf16x2(m, gpu::word(v[r], w));
      }
      amax[2 * w] = __uint_as_float(m << 16);
      amax[2 * w + 1] = __uint_as_float(m & 0xffff0000u);
    }
  }

  float factors[kVector<T>];
  uint32_t words[2] = {0, 0};
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) {
    const uint32_t e = gpu::mxfp8_exponent<kElement>(fmaxf(amax[i], 0.0F));
    factors[i] = gpu::mxfp8_reciprocal(e);
    words[i / 4] |= e << (8 * (i % 4));
  }
  if (active) {
    uint8_t* out = col_scale + stripe * cols + col;
    if constexpr (kVector<T> == 8) {
      *reinterpret_cast<uint2*>(out) = {words[0], words[1]};
    } else {
      *reinterpret_cast<uint32_t*>(out) = words[0];
    }
  }
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    const int64_t at = (row + r) * cols + col;
    if (active) {
      cast_store<T, kElement>(v[r], factors, col_q + at);
    }
    if constexpr (kRows) {
      const uint32_t e = gpu::mxfp8_exponent<kElement>(gpu::lane_max(amax_of_vector<T>(v[r]), kLanes<T>));
      if (active) {
        cast_store<T, kElement>(v[r], gpu::mxfp8_reciprocal(e), row_q + at);
        if (group % kLanes<T> == 0) {
          row_scale[at / kBlock] = static_cast<uint8_t>(e);
        }
      }
    }
  }
}

// Columns of any alignment, one a thread.
template <class T, Element kElement>
__global__ void __launch_bounds__(kThreads)
    column_kernel(const T* x, int64_t stride, int64_t stripes, int64_t cols, uint8_t* q, uint8_t* scale) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if (thread >= stripes * cols) {
    return;
  }
  const int64_t stripe = thread / cols;
  const int64_t col = thread - stripe * cols;
  const T* in = x + stripe * kBlock * stride + col;
  float amax = 0.0F;
  for (int r = 0; r < kBlock; ++r) {
    amax = fmaxf(amax, fabsf(to_float(in[r * stride])));
  }
  const uint32_t e = gpu::mxfp8_exponent<kElement>(amax);
  const float factor = gpu::mxfp8_reciprocal(e);
  scale[thread] = static_cast<uint8_t>(e);
  for (int r = 0; r < kBlock; ++r) {
    q[(stripe * kBlock + r) * cols + col] =
        static_cast<uint8_t>(gpu::cast8_pair<kElement>(to_float(in[r * stride]) * factor, 0.0F));
  }
}

constexpr int kRowBlocksPerSm = 12;

template <class T, Element kElement>
void rows_of(MatrixView x, uint8_t* q, uint8_t* scale, StreamHandle stream) {
  constexpr int64_t kChunk = kRowUnroll * kWarp * kVector<T>;
  // Blocks of contiguous rows form one long row.
  const bool contiguous = x.stride == x.cols || x.rows == 1;
  const int64_t rows = contiguous ? 1 : x.rows;
  const int64_t length = contiguous ? x.rows * x.cols : x.cols;
  const unsigned grid =
      gpu::strided_grid(gpu::ceil_div(rows * gpu::ceil_div(length, kChunk), kWarps), kRowBlocksPerSm);
  const auto* data = static_cast<const T*>(x.data);
  if (gpu::is_vectorizable(x)) {
    rows_kernel<T, kElement, true><<<grid, kThreads, 0, stream>>>(data, x.stride, rows, length, q, scale);
  } else {
    rows_kernel<T, kElement, false><<<grid, kThreads, 0, stream>>>(data, x.stride, rows, length, q, scale);
  }
  check_launch("quantize_mxfp8_rows");
}

template <class T, Element kElement, bool kRows>
void tiles_of(MatrixView x, uint8_t* row_q, uint8_t* row_scale, uint8_t* col_q, uint8_t* col_scale,
              StreamHandle stream) {
  const int64_t stripes = x.rows / kBlock;
  const auto* data = static_cast<const T*>(x.data);
  const auto blocks_of = [&](int64_t threads) { return static_cast<unsigned>(gpu::ceil_div(threads, kThreads)); };
  if (gpu::is_vectorizable(x) && x.cols % kVector<T> == 0) {
    tile_kernel<T, kElement, kRows><<<blocks_of(stripes * (x.cols / kVector<T>)), kThreads, 0, stream>>>(
        data, x.stride, stripes, x.cols, row_q, row_scale, col_q, col_scale);
  } else {
    column_kernel<T, kElement>
        <<<blocks_of(stripes * x.cols), kThreads, 0, stream>>>(data, x.stride, stripes, x.cols, col_q, col_scale);
    if constexpr (kRows) {
      rows_of<T, kElement>(x, row_q, row_scale, stream);
    }
  }
  check_launch("quantize_mxfp8_cols");
}

// Calls f.template operator()<T, element>().
template <class F>
void dispatch(Dtype dtype, Element element, F f) {
  assert(dtype == Dtype::kBF16 || dtype == Dtype::kF32);
  if (dtype == Dtype::kBF16) {
    element == Element::kE4M3 ? f.template operator()<BF16, Element::kE4M3>()
                              : f.template operator()<BF16, Element::kE5M2>();
  } else {
    element == Element::kE4M3 ? f.template operator()<float, Element::kE4M3>()
                              : f.template operator()<float, Element::kE5M2>();
  }
}

}  // namespace

void quantize_mxfp8_rows(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream) {
  assert(x.cols % kBlock == 0);
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  dispatch(x.dtype, element, [&]<class T, Element kElement>() { rows_of<T, kElement>(x, q, scale, stream); });
}

void quantize_mxfp8_cols(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream) {
  assert(x.rows % kBlock == 0);
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  dispatch(x.dtype, element, [&]<class T, Element kElement>() {
    tiles_of<T, kElement, false>(x, nullptr, nullptr, q, scale, stream);
  });
}

void quantize_mxfp8_both(MatrixView x, uint8_t* row_q, uint8_t* row_scale, uint8_t* col_q, uint8_t* col_scale,
                         Element element, StreamHandle stream) {
  assert(x.rows % kBlock == 0 && x.cols % kBlock == 0);
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  dispatch(x.dtype, element, [&]<class T, Element kElement>() {
    tiles_of<T, kElement, true>(x, row_q, row_scale, col_q, col_scale, stream);
  });
}

}  // namespace accord::formats::cuda
