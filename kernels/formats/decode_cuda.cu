// Decoders (decode.hpp): q and scales -> out [M,K] fp32 or bf16.
//   MXFP8   E4M3 or E5M2(q) * 2^(e-127)
//   NVFP4   fl( E2M1(q) * fl( fl(E4M3(s) * A) * fl(1/(6*range)) ) ), or E2M1(q) * E4M3(s)
// A thread decodes sixteen consecutive elements.
#include "kernels/formats/decode_cuda.hpp"
#include "kernels/formats/quantize.cuh"

namespace accord::formats::cuda {
namespace {

using gpu::kVector;

constexpr int kThreads = 256;
constexpr int kRun = 16;
constexpr int kBlocksPerSm = 8;

template <class T>
__device__ inline void store_run(const float (&x)[kRun], T* out, bool vector) {
#pragma unroll
  for (int i = 0; i < kRun; i += kVector<T>) {
    float part[kVector<T>];
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      part[j] = x[i + j];
    }
    if (vector) {
      gpu::store16(out + i, gpu::pack<T>(part));
    } else {
#pragma unroll
      for (int j = 0; j < kVector<T>; ++j) {
        out[i + j] = from_float<T>(part[j]);
      }
    }
  }
}

template <Element kElement>
__device__ inline void decode_bytes(const uint8_t* q, float (&x)[kRun]) {
  const uint4 v = gpu::load16(q);
#pragma unroll
  for (int i = 0; i < kRun; ++i) {
    x[i] = gpu::decode8<kElement>((gpu::word(v, i / 4) >> (8 * (i % 4))) & 0xffu);
  }
}

// kColumns: one scale an element, from the row of scales of its stripe. Rows of q have q_cols elements.
template <class T, Element kElement, bool kColumns>
__global__ void __launch_bounds__(kThreads)
    mxfp8_kernel(const uint8_t* q, const uint8_t* scale, int64_t rows, int64_t cols, int64_t q_cols, T* out,
                 int64_t stride, bool vector) {
  const int64_t per_row = cols / kRun;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * per_row; i += step) {
    const int64_t row = i / per_row;
    const int64_t col = (i - row * per_row) * kRun;
    float x[kRun];
    decode_bytes<kElement>(q + row * q_cols + col, x);
    if constexpr (kColumns) {
      const uint8_t* s = scale + row / 32 * cols + col;
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        x[j] = x[j] * decode_e8m0(s[j]);
      }
    } else {
      const float s = decode_e8m0(scale[(row * q_cols + col) / 32]);
#pragma unroll
      for (int j = 0; j < kRun; ++j) {
        x[j] = x[j] * s;
      }
    }
    store_run(x, out + row * stride + col, vector);
  }
}

// Columns of any length, one element a thread.
template <class T, Element kElement>
__global__ void __launch_bounds__(kThreads)
    mxfp8_column_kernel(const uint8_t* q, const uint8_t* scale, int64_t rows, int64_t cols, T* out,
                        int64_t stride) {
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * cols; i += step) {
    const int64_t row = i / cols;
    const int64_t col = i - row * cols;
    out[row * stride + col] =
        from_float<T>(gpu::decode8<kElement>(q[i]) * decode_e8m0(scale[row / 32 * cols + col]));
  }
}

// amax null: products without the outer scale.
template <class T>
__global__ void __launch_bounds__(kThreads)
    nvfp4_kernel(const uint8_t* q, const uint8_t* scale, const float* amax, bool per_row_amax, float divisor,
                 int64_t rows, int64_t cols, int64_t q_cols, T* out, int64_t stride, bool vector) {
  const int64_t per_row = cols / kRun;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const float inverse = 1.0F / divisor;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * per_row; i += step) {
    const int64_t row = i / per_row;
    const int64_t col = (i - row * per_row) * kRun;
    const int64_t run = (row * q_cols + col) / kRun;
    const uint2 codes = *reinterpret_cast<const uint2*>(q + run * (kRun / 2));
    float s = gpu::decode8<Element::kE4M3>(scale[run]);
    if (amax != nullptr) {
      s = (s * amax[per_row_amax ? row : 0]) * inverse;
    }
    float x[kRun];
#pragma unroll
    for (int j = 0; j < kRun; ++j) {
      x[j] = decode_e2m1((j < 8 ? codes.x : codes.y) >> (4 * (j % 8))) * s;
    }
    store_run(x, out + row * stride + col, vector);
  }
}

unsigned grid_of(int64_t threads) {
  return gpu::strided_grid(gpu::ceil_div(threads, kThreads), kBlocksPerSm);
}

template <class T, Element kElement, bool kColumns>
void launch_mxfp8(const uint8_t* q, const uint8_t* scale, MatrixView out, int64_t q_cols,
                  StreamHandle stream) {
  auto* data = static_cast<T*>(out.data);
  if (kColumns && (out.cols % kRun != 0 || reinterpret_cast<uintptr_t>(q) % 16 != 0)) {
    mxfp8_column_kernel<T, kElement><<<grid_of(out.rows * out.cols), kThreads, 0, stream>>>(
        q, scale, out.rows, out.cols, data, out.stride);
  } else {
    mxfp8_kernel<T, kElement, kColumns><<<grid_of(out.rows * out.cols / kRun), kThreads, 0, stream>>>(
        q, scale, out.rows, out.cols, q_cols, data, out.stride, gpu::is_vectorizable(out));
  }
  check_launch("dequantize_mxfp8");
}

template <bool kColumns>
void dequantize_mxfp8(const uint8_t* q, const uint8_t* scale, Element element, MatrixView out, int64_t q_cols,
                      StreamHandle stream) {
  if (out.rows == 0 || out.cols == 0) {
    return;
  }
  require(out.dtype == Dtype::kF32 || out.dtype == Dtype::kBF16,
          "out.dtype == Dtype::kF32 || out.dtype == Dtype::kBF16");
  if (out.dtype == Dtype::kF32) {
    element == Element::kE4M3 ? launch_mxfp8<float, Element::kE4M3, kColumns>(q, scale, out, q_cols, stream)
                              : launch_mxfp8<float, Element::kE5M2, kColumns>(q, scale, out, q_cols, stream);
  } else {
    element == Element::kE4M3 ? launch_mxfp8<BF16, Element::kE4M3, kColumns>(q, scale, out, q_cols, stream)
                              : launch_mxfp8<BF16, Element::kE5M2, kColumns>(q, scale, out, q_cols, stream);
  }
}

void launch_nvfp4(const uint8_t* q, const uint8_t* scale, const float* amax, bool per_row_amax, int range,
                  MatrixView out, int64_t q_cols, StreamHandle stream) {
  if (out.rows == 0 || out.cols == 0) {
    return;
  }
  require(out.dtype == Dtype::kF32 || out.dtype == Dtype::kBF16,
          "out.dtype == Dtype::kF32 || out.dtype == Dtype::kBF16");
  const auto divisor = static_cast<float>(6 * range);
  const unsigned grid = grid_of(out.rows * out.cols / kRun);
  const bool vector = gpu::is_vectorizable(out);
  if (out.dtype == Dtype::kF32) {
    nvfp4_kernel<<<grid, kThreads, 0, stream>>>(q, scale, amax, per_row_amax, divisor, out.rows, out.cols,
                                                q_cols, static_cast<float*>(out.data), out.stride, vector);
  } else {
    nvfp4_kernel<<<grid, kThreads, 0, stream>>>(q, scale, amax, per_row_amax, divisor, out.rows, out.cols,
                                                q_cols, static_cast<BF16*>(out.data), out.stride, vector);
  }
  check_launch("dequantize_nvfp4");
}

// Checks the part and moves q and scale to its first column.
int64_t enter(const ColumnPart& part, const MatrixView& out, int64_t block, int64_t per_byte,
              const uint8_t*& q, const uint8_t*& scale) {
  require(out.cols % block == 0, "out.cols % block == 0");
  if (part.cols == 0) {
    return out.cols;
  }
  require(part.cols % block == 0 && part.first % block == 0 && part.first + out.cols <= part.cols,
          "columns of the matrix, in whole blocks");
  q += part.first / per_byte;
  scale += part.first / block;
  return part.cols;
}

}  // namespace

void dequantize_mxfp8_rows(const uint8_t* q, const uint8_t* scale, Element element, MatrixView out,
                           StreamHandle stream, ColumnPart part) {
  const int64_t q_cols = enter(part, out, 32, 1, q, scale);
  dequantize_mxfp8<false>(q, scale, element, out, q_cols, stream);
}

void dequantize_mxfp8_cols(const uint8_t* q, const uint8_t* scale, Element element, MatrixView out,
                           StreamHandle stream) {
  require(out.rows % 32 == 0, "out.rows % 32 == 0");
  dequantize_mxfp8<true>(q, scale, element, out, out.cols, stream);
}

void dequantize_nvfp4(const uint8_t* q, const uint8_t* scale, const float* amax, Nvfp4Scope scope, int range,
                      MatrixView out, StreamHandle stream, ColumnPart part) {
  const int64_t q_cols = enter(part, out, kRun, 2, q, scale);
  launch_nvfp4(q, scale, amax, scope == Nvfp4Scope::kToken, range, out, q_cols, stream);
}

void dequantize_nvfp4_products(const uint8_t* q, const uint8_t* scale, MatrixView out, StreamHandle stream) {
  require(out.cols % kRun == 0, "out.cols % kRun == 0");
  launch_nvfp4(q, scale, nullptr, false, 448, out, out.cols, stream);
}

}  // namespace accord::formats::cuda
