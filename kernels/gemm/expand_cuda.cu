// Quantized operands as BF16, elementwise (gemm_cuda.hpp; docs/contract.md, sections 2 and 3):
//   MXFP8   q * 2^(e-127), exact in BF16 for e - 127 in [-117, 119]; below, rounded to nearest even
//   NVFP4   q * s, always exact; or bf16(fl(q * fl(fl(s * A) * fl(1/(6R)))))
// Eight values per thread.
#include "kernels/cuda/overlap.cuh"
#include "kernels/formats/code_values.cuh"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/mma.cuh"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
__device__ void store8(uint16_t* to, const float (&x)[8]) {
  const uint4 packed{bf16_pair(x[0], x[1]), bf16_pair(x[2], x[3]), bf16_pair(x[4], x[5]),
                     bf16_pair(x[6], x[7])};
  *reinterpret_cast<uint4*>(to) = packed;
}

__global__ void mxfp8_kernel(const uint8_t* q, const uint8_t* scales, int64_t rows, int64_t cols,
                             bool column_wise, bool e5m2, uint16_t* out, int64_t ldo) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t per_row = cols / 8;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * per_row) return;
  const int64_t row = i / per_row;
  const int64_t col = i % per_row * 8;
  const auto codes = *reinterpret_cast<const uint2*>(q + row * cols + col);
  float x[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) {
    const uint32_t code = ((j < 4 ? codes.x : codes.y) >> (j % 4 * 8)) & 0xffu;
    const uint32_t scale =
        column_wise ? scales[row / 32 * cols + col + j] : scales[row * (cols / 32) + col / 32];
    x[j] = (e5m2 ? gpu::e5m2_value(code) : gpu::e4m3_value(code)) * gpu::e8m0_value(scale);
  }
  store8(out + row * ldo + col, x);
}

__global__ void nvfp4_kernel(const uint8_t* q, const uint8_t* scales, const float* outer, bool outer_per_row,
                             float inverse, int64_t rows, int64_t cols, uint16_t* out, int64_t ldo) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t per_row = cols / 8;
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= rows * per_row) return;
  const int64_t row = i / per_row;
  const int64_t col = i % per_row * 8;
  const uint32_t codes = *reinterpret_cast<const uint32_t*>(q + row * (cols / 2) + col / 2);
  float scale = gpu::e4m3_value(scales[row * (cols / 16) + col / 16]);
  if (outer != nullptr) scale = (scale * outer[outer_per_row ? row : 0]) * inverse;
  float x[8];
#pragma unroll
  for (int j = 0; j < 8; ++j) x[j] = gpu::e2m1_value((codes >> (4 * j)) & 15u) * scale;
  store8(out + row * ldo + col, x);
}

// One warp's lane per scale; every writer of a flag bit writes the same value.
__global__ void range_kernel(const uint8_t* q, const uint8_t* scales, int64_t blocks, int32_t* flag) {
  const int64_t i = int64_t{blockIdx.x} * kThreads + threadIdx.x;
  if (i >= blocks) return;
  const auto* codes = reinterpret_cast<const uint4*>(q + i * 32);
  bool zero = true;
  bool nan = scales[i] == 255;
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    const uint4 v = codes[half];
#pragma unroll
    for (int i4 = 0; i4 < 4; ++i4) {
      const uint32_t magnitude = (i4 == 0 ? v.x : i4 == 1 ? v.y : i4 == 2 ? v.z : v.w) & 0x7f7f7f7fu;
      zero = zero && magnitude == 0;
      nan = nan || ((magnitude + 0x01010101u) & 0x80808080u) != 0;
    }
  }
  const int exponent = static_cast<int>(scales[i]) - 127;
  const bool outside = !zero && (exponent < -117 || exponent > 119);
  if (outside || nan) atomicOr(flag, (outside ? 1 : 0) | (nan ? 2 : 0));  // a status, not a result
}

unsigned blocks_for(int64_t count) { return static_cast<unsigned>((count + kThreads - 1) / kThreads); }

}  // namespace

void expand_mxfp8(const uint8_t* q, const uint8_t* scales, int64_t rows, int64_t cols, bool column_wise,
                  bool e5m2, BF16* out, int64_t ldo, StreamHandle stream) {
  require(cols % 8 == 0 && ldo % 8 == 0 && (column_wise ? rows : cols) % 32 == 0,
          "cols % 8 == 0 && ldo % 8 == 0 && (column_wise ? rows : cols) % 32 == 0");
  if (rows == 0 || cols == 0) return;
  gpu::launch_overlapped(mxfp8_kernel, blocks_for(rows * (cols / 8)), kThreads, 0, stream, q, scales, rows,
                         cols, column_wise, e5m2, reinterpret_cast<uint16_t*>(out), ldo);
  check_launch("expand_mxfp8");
}

void expand_nvfp4(const uint8_t* q, const uint8_t* scales, const float* outer, bool outer_per_row,
                  int32_t range, int64_t rows, int64_t cols, BF16* out, int64_t ldo, StreamHandle stream) {
  require(cols % 16 == 0 && ldo % 8 == 0, "cols % 16 == 0 && ldo % 8 == 0");
  if (rows == 0 || cols == 0) return;
  const float inverse = 1.0F / static_cast<float>(6 * range);
  gpu::launch_overlapped(nvfp4_kernel, blocks_for(rows * (cols / 8)), kThreads, 0, stream, q, scales, outer,
                         outer_per_row, inverse, rows, cols, reinterpret_cast<uint16_t*>(out), ldo);
  check_launch("expand_nvfp4");
}

void check_mxfp8_range(const uint8_t* q, const uint8_t* scales, int64_t rows, int64_t cols, int32_t* flag,
                       StreamHandle stream) {
  require(cols % 32 == 0, "cols % 32 == 0");
  const int64_t blocks = rows * (cols / 32);
  if (blocks == 0) return;
  range_kernel<<<blocks_for(blocks), kThreads, 0, stream>>>(q, scales, blocks, flag);
  check_launch("check_mxfp8_range");
}

}  // namespace accord::kernels::cuda
