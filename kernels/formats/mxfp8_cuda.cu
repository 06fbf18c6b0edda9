// MXFP8 (mxfp8.hpp): x [M,K] fp32 or bf16 -> q [M,K] bytes, and scales [M,K/32] (rows) or [M/32,K] (columns).
//
//   rows     A block of 32 lies in G = 2 * sizeof(T) neighbouring lanes, 16 bytes each. A warp takes eight
//   vectors
//            a lane, consecutive in memory, so that eight loads are in flight.
//   columns  A thread holds 32 rows of a few columns in registers: 32 loads in flight, one read.
//   both     The same tile, of four columns: eight neighbouring threads hold a row's block.
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/formats/code_values.cuh"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/quantize.cuh"
#include "kernels/formats/row_kernel.cuh"

namespace accord::formats::cuda {
namespace {

using gpu::kFullMask;
using gpu::kVector;
using gpu::kWarp;

constexpr int kBlock = 32;
constexpr int kThreads = 128;
constexpr int kWarps = kThreads / kWarp;
constexpr int kRowUnroll = 8;

template <class T>
constexpr int kLanes = kBlock / kVector<T>;  // G

// The codes of one vector, and what they stand for under the scale 2^(e-127) where `operand` is not null.
template <class T, Element kElement>
__device__ inline void cast_store(const uint4& v, uint32_t e, uint8_t* q, BF16* operand = nullptr) {
  const float r = gpu::mxfp8_reciprocal(e);
  float x[kVector<T>];
  gpu::unpack<T>(v, x);
#pragma unroll
  for (int i = 0; i < kVector<T>; ++i) {
    x[i] = x[i] * r;
  }
  constexpr bool kE5M2 = kElement == Element::kE5M2;
  const uint32_t low = gpu::cast8_four<kElement>(x[0], x[1], x[2], x[3]);
  if constexpr (kVector<T> == 8) {
    const uint32_t high = gpu::cast8_four<kElement>(x[4], x[5], x[6], x[7]);
    *reinterpret_cast<uint2*>(q) = {low, high};
    if (operand != nullptr) {
      const uint2 a = gpu::mxfp8_operand<kE5M2>(low, e);
      const uint2 b = gpu::mxfp8_operand<kE5M2>(high, e);
      gpu::store16(operand, {a.x, a.y, b.x, b.y});
    }
  } else {
    *reinterpret_cast<uint32_t*>(q) = low;
    if (operand != nullptr) {
      *reinterpret_cast<uint2*>(operand) = gpu::mxfp8_operand<kE5M2>(low, e);
    }
  }
}

template <class T>
__device__ inline float amax_of_vector(const uint4& v) {
  const uint4 one[1] = {v};
  return gpu::amax_of(one, T());
}

// `length` elements a row, a multiple of 32; outputs are contiguous.
template <class T, Element kElement, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    rows_kernel(const T* x, int64_t stride, int64_t rows, int64_t length, uint8_t* q, uint8_t* scale,
                BF16* operand) {
  constexpr int kStep = kWarp * kVector<T>;  // elements of one vector a lane
  constexpr int kChunk = kRowUnroll * kStep;
  constexpr int kBlocksPerStep = kStep / kBlock;
  gpu::wait_for_previous();
  gpu::allow_next();
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t chunks = gpu::ceil_div(length, kChunk);
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= rows * chunks) {
    return;
  }
  const int64_t row = rows == 1 ? 0 : i / chunks;
  const int64_t begin = (i - row * chunks) * kChunk;
  const T* in = x + row * stride;
  uint4 v[kRowUnroll];
#pragma unroll
  for (int j = 0; j < kRowUnroll; ++j) {
    const int64_t at = begin + j * kStep + lane * kVector<T>;
    v[j] = at < length ? gpu::load_vector<T, kAligned>(in + at) : uint4{0, 0, 0, 0};
  }
  uint32_t exponents[kRowUnroll / 4] = {};  // one byte a vector
#pragma unroll
  for (int j = 0; j < kRowUnroll; ++j) {
    const uint32_t e = gpu::mxfp8_exponent<kElement>(gpu::lane_max(amax_of_vector<T>(v[j]), kLanes<T>));
    exponents[j / 4] |= e << (8 * (j % 4));
    const int64_t at = begin + j * kStep + lane * kVector<T>;
    if (at < length) {
      cast_store<T, kElement>(v[j], e, q + row * length + at,
                              operand == nullptr ? nullptr : operand + row * length + at);
    }
  }
  // Lane l stores the scale of block l of each four vectors.
#pragma unroll
  for (int j = 0; j < kRowUnroll / 4; ++j) {
    const uint32_t word = __shfl_sync(kFullMask, exponents[j], lane % kBlocksPerStep * kLanes<T>);
    const int64_t block = begin / kBlock + j * 4 * kBlocksPerStep + lane;
    if (lane < 4 * kBlocksPerStep && block < length / kBlock) {
      scale[row * (length / kBlock) + block] = static_cast<uint8_t>(word >> (8 * (lane / kBlocksPerStep)));
    }
  }
}

// kCols consecutive elements, in registers as they lie in memory: 8 or 16 bytes.
template <class T, int kCols>
struct Piece {
  static constexpr int kWords = kCols * static_cast<int>(sizeof(T)) / 4;
  uint32_t w[kWords];

  __device__ static Piece load(const T* p) {
    Piece piece;
    if constexpr (kWords == 4) {
      const uint4 v = gpu::load16(p);
      piece.w[0] = v.x;
      piece.w[1] = v.y;
      piece.w[2] = v.z;
      piece.w[3] = v.w;
    } else {
      const uint2 v = *reinterpret_cast<const uint2*>(p);
      piece.w[0] = v.x;
      piece.w[1] = v.y;
    }
    return piece;
  }
  __device__ float value(int i) const {
    if constexpr (sizeof(T) == sizeof(float)) {
      return __uint_as_float(w[i]);
    } else {
      return __uint_as_float(i % 2 == 0 ? w[i / 2] << 16 : w[i / 2] & 0xffff0000u);
    }
  }
  __device__ float amax() const {
    float m = 0.0F;
    if constexpr (sizeof(T) == sizeof(float)) {
#pragma unroll
      for (int i = 0; i < kCols; ++i) {
        m = fmaxf(m, fabsf(value(i)));
      }
      return m;
    } else {
      uint32_t pair = 0;
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        pair = gpu::max_abs_bf16x2(pair, w[i]);
      }
      return fmaxf(gpu::magnitude_low(pair), gpu::magnitude_high(pair));
    }
  }
  // The codes of the values times their factors.
  template <Element kElement>
  __device__ void cast(const float (&r)[kCols], uint8_t* q) const {
    uint32_t codes[kCols / 4];
#pragma unroll
    for (int i = 0; i < kCols / 4; ++i) {
      codes[i] = gpu::cast8_four<kElement>(value(4 * i) * r[4 * i], value(4 * i + 1) * r[4 * i + 1],
                                           value(4 * i + 2) * r[4 * i + 2], value(4 * i + 3) * r[4 * i + 3]);
    }
    if constexpr (kCols == 8) {
      *reinterpret_cast<uint2*>(q) = {codes[0], codes[1]};
    } else {
      *reinterpret_cast<uint32_t*>(q) = codes[0];
    }
  }
};

// The amax of two rows' blocks, in all of their lanes. Of bf16, the rows share the words that are exchanged.
template <class T, int kCols>
__device__ inline void amax_of_rows(const Piece<T, kCols>& a, const Piece<T, kCols>& b, uint32_t lanes,
                                    float (&amax)[2]) {
  constexpr int kLanesOfRow = kBlock / kCols;
  if constexpr (sizeof(T) == sizeof(float)) {
    amax[0] = gpu::lane_max(a.amax(), kLanesOfRow, lanes);
    amax[1] = gpu::lane_max(b.amax(), kLanesOfRow, lanes);
  } else {
    uint32_t pair_a = 0;
    uint32_t pair_b = 0;
#pragma unroll
    for (int i = 0; i < Piece<T, kCols>::kWords; ++i) {
      pair_a = gpu::max_abs_bf16x2(pair_a, a.w[i]);
      pair_b = gpu::max_abs_bf16x2(pair_b, b.w[i]);
    }
    uint32_t both =
        gpu::max_abs_bf16x2(__byte_perm(pair_a, pair_b, 0x5410), __byte_perm(pair_a, pair_b, 0x7632));
#pragma unroll
    for (int offset = kLanesOfRow / 2; offset > 0; offset /= 2) {
      both = gpu::max_abs_bf16x2(both, __shfl_xor_sync(lanes, both, offset));
    }
    amax[0] = gpu::magnitude_low(both);
    amax[1] = gpu::magnitude_high(both);
  }
}

// 32 rows of kCols columns a thread. Threads run along a stripe's column groups, then along the stripes.
template <class T, Element kElement, bool kRows, int kCols>
__global__ void __launch_bounds__(kThreads)
    tile_kernel(const T* x, int64_t stride, int64_t stripes, int64_t cols, uint8_t* row_q, uint8_t* row_scale,
                uint8_t* col_q, uint8_t* col_scale) {
  constexpr int kLanesOfRow = kBlock / kCols;
  const int64_t groups = cols / kCols;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const bool active = thread < stripes * groups;
  const uint32_t lanes =
      __ballot_sync(kFullMask, active);  // with kRows, whole blocks of a row: groups divides
  if (!active) {
    return;
  }
  const int64_t stripe = thread / groups;
  const int64_t group = thread - stripe * groups;
  const int64_t row = stripe * kBlock;
  const int64_t col = group * kCols;
  const T* in = x + row * stride + col;
  Piece<T, kCols> v[kBlock];
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    v[r] = Piece<T, kCols>::load(in);
    in += stride;
  }

  // |x| of a column as the bits of its type order like numbers; both halves of a word at once for bf16.
  float amax[kCols];
#pragma unroll
  for (int w = 0; w < Piece<T, kCols>::kWords; ++w) {
    if constexpr (sizeof(T) == sizeof(float)) {
      amax[w] = 0.0F;
#pragma unroll
      for (int r = 0; r < kBlock; ++r) {
        amax[w] = fmaxf(amax[w], fabsf(v[r].value(w)));
      }
    } else {
      uint32_t m = 0;
#pragma unroll
      for (int r = 0; r < kBlock; ++r) {
        m = gpu::max_abs_bf16x2(m, v[r].w[w]);
      }
      amax[2 * w] = gpu::magnitude_low(m);
      amax[2 * w + 1] = gpu::magnitude_high(m);
    }
  }

  float factors[kCols];
  uint32_t words[kCols / 4] = {};
#pragma unroll
  for (int i = 0; i < kCols; ++i) {
    const uint32_t e = gpu::mxfp8_exponent<kElement>(amax[i]);
    factors[i] = gpu::mxfp8_reciprocal(e);
    words[i / 4] |= e << (8 * (i % 4));
  }
  uint8_t* scales = col_scale + stripe * cols + col;
  if constexpr (kCols == 8) {
    *reinterpret_cast<uint2*>(scales) = {words[0], words[1]};
  } else {
    *reinterpret_cast<uint32_t*>(scales) = words[0];
  }
  const int64_t first = row * cols + col;
  uint8_t* out = col_q + first;
  uint8_t* row_out = kRows ? row_q + first : nullptr;
  uint8_t* row_scales = kRows ? row_scale + first / kBlock : nullptr;
#pragma unroll
  for (int r = 0; r < kBlock; r += 2) {
    v[r].template cast<kElement>(factors, out);
    v[r + 1].template cast<kElement>(factors, out + cols);
    out += 2 * cols;
    if constexpr (kRows) {
      float row_amax[2];
      amax_of_rows(v[r], v[r + 1], lanes, row_amax);
#pragma unroll
      for (int i = 0; i < 2; ++i) {
        const uint32_t e = gpu::mxfp8_exponent<kElement>(row_amax[i]);
        const float factor = gpu::mxfp8_reciprocal(e);
        float same[kCols];
#pragma unroll
        for (int c = 0; c < kCols; ++c) {
          same[c] = factor;
        }
        v[r + i].template cast<kElement>(same, row_out);
        if (threadIdx.x % kLanesOfRow == 0) {
          *row_scales = static_cast<uint8_t>(e);
        }
        row_out += cols;
        row_scales += cols / kBlock;
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

template <class T, Element kElement>
void rows_of(MatrixView x, uint8_t* q, uint8_t* scale, BF16* operand, StreamHandle stream) {
  constexpr int64_t kChunk = kRowUnroll * kWarp * kVector<T>;
  // Blocks of contiguous rows form one long row.
  const bool contiguous = x.stride == x.cols || x.rows == 1;
  const int64_t rows = contiguous ? 1 : x.rows;
  const int64_t length = contiguous ? x.rows * x.cols : x.cols;
  const auto grid = static_cast<unsigned>(gpu::ceil_div(rows * gpu::ceil_div(length, kChunk), kWarps));
  const auto* data = static_cast<const T*>(x.data);
  if constexpr (sizeof(T) == 2 && kElement == Element::kE4M3) {
    // Few rows end sooner where each thread takes less.
    const bool few = static_cast<int64_t>(grid) < num_multiprocessors();
    if (few && gpu::is_vectorizable(x) && gpu::fits_rows(x.cols) && gpu::is_aligned16(q)) {
      gpu::RowInput<T> in;
      in.x = data;
      in.x_stride = x.stride;
      const gpu::RowOutput<T> out{nullptr, 0, q, scale, nullptr, 0, false, operand};
      gpu::launch_rows<T, gpu::Source::kRead, gpu::Sink::kMxfp8, false>(in, out, x.rows, x.cols, stream);
      check_launch("quantize_mxfp8_rows");
      return;
    }
  }
  if (gpu::is_vectorizable(x)) {
    gpu::launch_overlapped(rows_kernel<T, kElement, true>, grid, kThreads, 0, stream, data, x.stride, rows,
                           length, q, scale, operand);
  } else {
    gpu::launch_overlapped(rows_kernel<T, kElement, false>, grid, kThreads, 0, stream, data, x.stride, rows,
                           length, q, scale, operand);
  }
  check_launch("quantize_mxfp8_rows");
}

template <class T, Element kElement, bool kRows>
void tiles_of(MatrixView x, uint8_t* row_q, uint8_t* row_scale, uint8_t* col_q, uint8_t* col_scale,
              StreamHandle stream) {
  const int64_t stripes = x.rows / kBlock;
  const auto* data = static_cast<const T*>(x.data);
  const auto blocks_of = [&](int64_t threads) {
    return static_cast<unsigned>(gpu::ceil_div(threads, kThreads));
  };
  // With both copies to make, fewer columns a thread leave registers for more threads.
  constexpr int kCols = kRows ? 4 : kVector<T>;
  if (gpu::is_vectorizable(x)) {
    tile_kernel<T, kElement, kRows, kCols><<<blocks_of(stripes * (x.cols / kCols)), kThreads, 0, stream>>>(
        data, x.stride, stripes, x.cols, row_q, row_scale, col_q, col_scale);
  } else {
    column_kernel<T, kElement><<<blocks_of(stripes * x.cols), kThreads, 0, stream>>>(
        data, x.stride, stripes, x.cols, col_q, col_scale);
    if constexpr (kRows) {
      rows_of<T, kElement>(x, row_q, row_scale, nullptr, stream);
    }
  }
  check_launch("quantize_mxfp8_cols");
}

// Calls f.template operator()<T, element>().
template <class F>
void dispatch(Dtype dtype, Element element, F f) {
  require(dtype == Dtype::kBF16 || dtype == Dtype::kF32, "dtype == Dtype::kBF16 || dtype == Dtype::kF32");
  if (dtype == Dtype::kBF16) {
    element == Element::kE4M3 ? f.template operator()<BF16, Element::kE4M3>()
                              : f.template operator()<BF16, Element::kE5M2>();
  } else {
    element == Element::kE4M3 ? f.template operator()<float, Element::kE4M3>()
                              : f.template operator()<float, Element::kE5M2>();
  }
}

}  // namespace

void quantize_mxfp8_rows(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream,
                         BF16* operand) {
  require(x.cols % kBlock == 0, "x.cols % kBlock == 0");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  dispatch(x.dtype, element,
           [&]<class T, Element kElement>() { rows_of<T, kElement>(x, q, scale, operand, stream); });
}

void quantize_mxfp8_cols(MatrixView x, uint8_t* q, uint8_t* scale, Element element, StreamHandle stream) {
  require(x.rows % kBlock == 0, "x.rows % kBlock == 0");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  dispatch(x.dtype, element, [&]<class T, Element kElement>() {
    tiles_of<T, kElement, false>(x, nullptr, nullptr, q, scale, stream);
  });
}

void quantize_mxfp8_both(MatrixView x, uint8_t* row_q, uint8_t* row_scale, uint8_t* col_q, uint8_t* col_scale,
                         Element element, StreamHandle stream) {
  require(x.rows % kBlock == 0 && x.cols % kBlock == 0, "x.rows % kBlock == 0 && x.cols % kBlock == 0");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  dispatch(x.dtype, element, [&]<class T, Element kElement>() {
    tiles_of<T, kElement, true>(x, row_q, row_scale, col_q, col_scale, stream);
  });
}

}  // namespace accord::formats::cuda
