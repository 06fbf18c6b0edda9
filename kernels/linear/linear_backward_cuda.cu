// Operands of a linear layer's backward, as bf16:
//   round_to_bf16   y = bf16(x)
//   mxfp8_columns   out = bf16(decoded Q_col(bf16(x))), x [M,K] fp32 or bf16, blocks of 32 rows of a column
// A thread holds 32 rows of a few columns, as bf16 in registers, and casts and decodes them there: x is read
// once, and no bytes of the format are written.
//
// Groups of rows start anywhere and are cut into stripes of 32 rows of their own. Stripe i of group g has
// number floor(offsets[g] / 32) + g + i: these grow from group to group, so a stripe finds its group by
// bisection and no pass counts them. Numbers in between belong to nothing.
#include "kernels/formats/quantize.cuh"
#include "kernels/linear/linear_backward_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::Element;
using gpu::kVector;

constexpr int kThreads = 128;
constexpr int kBlocksPerSm = 8;
constexpr int kBlock = 32;

template <bool kVectors>
__global__ void __launch_bounds__(kThreads) round_kernel(const float* x, int64_t count, BF16* y) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  int64_t rest = thread;
  if constexpr (kVectors) {
    constexpr int kWidth = kVector<BF16>;
    for (int64_t i = thread; i < count / kWidth; i += step) {
      float a[4];
      float b[4];
      gpu::unpack<float>(gpu::load_streaming(x + i * kWidth), a);
      gpu::unpack<float>(gpu::load_streaming(x + i * kWidth + 4), b);
      gpu::store16(y + i * kWidth, gpu::pack<BF16>({a[0], a[1], a[2], a[3], b[0], b[1], b[2], b[3]}));
    }
    rest += count / kWidth * kWidth;
  }
  for (; rest < count; rest += step) {
    y[rest] = to_bf16(x[rest]);
  }
}

// Rows [begin, end) of a stripe; none: begin == end.
struct Rows {
  int64_t begin;
  int64_t end;
};

__device__ inline Rows rows_of_stripe(int64_t stripe, const int32_t* offsets, int groups, int64_t rows) {
  Rows found{stripe * kBlock, rows};
  if (offsets != nullptr) {
    int low = 0;  // the last group whose first number is at most `stripe`
    int high = groups;
    while (high - low > 1) {
      const int middle = (low + high) / 2;
      (offsets[middle] / kBlock + middle <= stripe ? low : high) = middle;
    }
    const int64_t begin = offsets[low];
    const int64_t in_group = stripe - (begin / kBlock + low);
    if (in_group < 0) {
      return {0, 0};
    }
    found = {begin + in_group * kBlock, offsets[low + 1]};
  }
  if (found.begin >= found.end) {
    return {0, 0};
  }
  if (found.end - found.begin > kBlock) {
    found.end = found.begin + kBlock;
  }
  return found;
}

// What a code of E4M3 or E5M2 means under the exponent e, as bf16.
template <Element kElement>
__device__ inline float cast_and_decode(float x, float reciprocal, float scale) {
  return gpu::decode8<kElement>(gpu::cast8_pair<kElement>(x * reciprocal, 0.0F) & 0xffu) * scale;
}

// kCols consecutive values as pairs of bf16; fp32 is rounded.
template <class T>
__device__ inline void load_pairs(const T* p, uint32_t (&w)[kVector<T> / 2]) {
  const uint4 v = gpu::load16(p);
  if constexpr (sizeof(T) == sizeof(float)) {
    float x[4];
    gpu::unpack<float>(v, x);
    w[0] = gpu::pack_bf16(x[0], x[1]);
    w[1] = gpu::pack_bf16(x[2], x[3]);
  } else {
#pragma unroll
    for (int i = 0; i < 4; ++i) {
      w[i] = gpu::word(v, i);
    }
  }
}

template <class T, Element kElement>
__global__ void __launch_bounds__(kThreads)
    columns_kernel(const T* x, int64_t stride, int64_t rows, int64_t cols, const int32_t* offsets, int groups,
                   int64_t stripes, BF16* out) {
  constexpr int kCols = kVector<T>;
  constexpr int kWords = kCols / 2;
  const int64_t per_row = cols / kCols;
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stripe = thread / per_row;
  if (stripe >= stripes) {
    return;
  }
  const Rows at = rows_of_stripe(stripe, offsets, groups, rows);
  const int count = static_cast<int>(at.end - at.begin);
  const int64_t col = (thread - stripe * per_row) * kCols;
  const T* in = x + at.begin * stride + col;
  uint32_t v[kBlock][kWords];
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    if (r < count) {
      load_pairs(in + r * stride, v[r]);
    } else {
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        v[r][i] = 0;
      }
    }
  }
  float reciprocal[kCols];
  float scale[kCols];
#pragma unroll
  for (int i = 0; i < kWords; ++i) {
    uint32_t m = 0;
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
      m = gpu::max_abs_bf16x2(m, v[r][i]);
    }
#pragma unroll
    for (int j = 0; j < 2; ++j) {
      const uint32_t e =
          gpu::mxfp8_exponent<kElement>(j == 0 ? gpu::magnitude_low(m) : gpu::magnitude_high(m));
      reciprocal[2 * i + j] = gpu::mxfp8_reciprocal(e);
      scale[2 * i + j] = formats::decode_e8m0(e);
    }
  }
  BF16* to = out + at.begin * cols + col;
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    if (r < count) {
      uint32_t w[kWords];
#pragma unroll
      for (int i = 0; i < kWords; ++i) {
        const float low =
            cast_and_decode<kElement>(__uint_as_float(v[r][i] << 16), reciprocal[2 * i], scale[2 * i]);
        const float high = cast_and_decode<kElement>(__uint_as_float(v[r][i] & 0xffff0000u),
                                                     reciprocal[2 * i + 1], scale[2 * i + 1]);
        w[i] = gpu::pack_bf16(low, high);
      }
      if constexpr (kWords == 4) {
        gpu::store16(to + r * cols, {w[0], w[1], w[2], w[3]});
      } else {
        *reinterpret_cast<uint2*>(to + r * cols) = {w[0], w[1]};
      }
    }
  }
}

// Columns of any alignment, one a thread.
template <class T, Element kElement>
__global__ void __launch_bounds__(kThreads)
    column_kernel(const T* x, int64_t stride, int64_t rows, int64_t cols, const int32_t* offsets, int groups,
                  int64_t stripes, BF16* out) {
  const int64_t thread = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  const int64_t stripe = thread / cols;
  if (stripe >= stripes) {
    return;
  }
  const Rows at = rows_of_stripe(stripe, offsets, groups, rows);
  const int64_t col = thread - stripe * cols;
  const auto value = [&](int64_t r) { return to_float(to_bf16(to_float(x[r * stride + col]))); };
  float amax = 0.0F;
  for (int64_t r = at.begin; r < at.end; ++r) {
    amax = fmaxf(amax, fabsf(value(r)));  // ignores NaN
  }
  const uint32_t e = gpu::mxfp8_exponent<kElement>(amax);
  const float reciprocal = gpu::mxfp8_reciprocal(e);
  const float scale = formats::decode_e8m0(e);
  for (int64_t r = at.begin; r < at.end; ++r) {
    out[r * cols + col] = to_bf16(cast_and_decode<kElement>(value(r), reciprocal, scale));
  }
}

template <class T, Element kElement>
void columns(MatrixView x, const int32_t* offsets, int32_t groups, BF16* out, StreamHandle stream) {
  const int64_t stripes = groups == 0 ? gpu::ceil_div(x.rows, kBlock) : x.rows / kBlock + groups;
  const bool vector = gpu::is_vectorizable(x) && reinterpret_cast<uintptr_t>(out) % 16 == 0;
  const int64_t threads = stripes * (vector ? x.cols / kVector<T> : x.cols);
  const auto kernel = vector ? columns_kernel<T, kElement> : column_kernel<T, kElement>;
  kernel<<<static_cast<unsigned>(gpu::ceil_div(threads, kThreads)), kThreads, 0, stream>>>(
      static_cast<const T*>(x.data), x.stride, x.rows, x.cols, groups == 0 ? nullptr : offsets, groups,
      stripes, out);
  check_launch("mxfp8_columns");
}

}  // namespace

void round_to_bf16(const float* x, int64_t count, BF16* y, StreamHandle stream) {
  if (count == 0) {
    return;
  }
  const bool vectors = (reinterpret_cast<uintptr_t>(x) | reinterpret_cast<uintptr_t>(y)) % 16 == 0;
  const unsigned grid =
      gpu::strided_grid(gpu::ceil_div(count, kThreads * (vectors ? kVector<BF16> : 1)), 2 * kBlocksPerSm);
  const auto kernel = vectors ? round_kernel<true> : round_kernel<false>;
  kernel<<<grid, kThreads, 0, stream>>>(x, count, y);
  check_launch("round_to_bf16");
}

void mxfp8_columns(MatrixView x, const int32_t* offsets, int32_t groups, formats::Element element, BF16* out,
                   StreamHandle stream) {
  require(x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32,
          "x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  const bool e4m3 = element == Element::kE4M3;
  if (x.dtype == Dtype::kBF16) {
    e4m3 ? columns<BF16, Element::kE4M3>(x, offsets, groups, out, stream)
         : columns<BF16, Element::kE5M2>(x, offsets, groups, out, stream);
  } else {
    e4m3 ? columns<float, Element::kE4M3>(x, offsets, groups, out, stream)
         : columns<float, Element::kE5M2>(x, offsets, groups, out, stream);
  }
}

}  // namespace accord::kernels::cuda
