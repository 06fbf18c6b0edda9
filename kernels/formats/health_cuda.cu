// Counts over x [M,K] of what its quantization did (health.hpp): NaN, scaled values beyond the largest
// element, nonzero values whose code is zero, and max |x|. Each block counts a share of the elements; one
// more block adds the shares up in order.
#include "kernels/formats/health_cuda.hpp"
#include "kernels/formats/quantize.cuh"

namespace accord::formats::cuda {
namespace {

using gpu::kFullMask;
using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 4;

// How one element was scaled.
struct Mxfp8Rule {
  const uint8_t* scale;
  bool columns;
  bool e4m3;

  __device__ void scaled(int64_t row, int64_t col, int64_t cols, float value, float& y, bool& over,
                         bool& zero) const {
    const uint32_t e = columns ? scale[row / 32 * cols + col] : scale[(row * cols + col) / 32];
    y = value * gpu::mxfp8_reciprocal(e);
    over = fabsf(y) > (e4m3 ? kE4M3Max : kE5M2Max);
    const uint32_t code =
        e4m3 ? gpu::cast8_pair<Element::kE4M3>(y, 0.0F) : gpu::cast8_pair<Element::kE5M2>(y, 0.0F);
    zero = (code & 0x7fu) == 0;
  }
};

struct Nvfp4Rule {
  const uint8_t* scale;
  const float* amax;
  bool per_row;
  int range;

  __device__ void scaled(int64_t row, int64_t col, int64_t cols, float value, float& y, bool& over,
                         bool& zero) const {
    const OuterScale outer = make_outer_scale(amax[per_row ? row : 0], range);
    const float s = gpu::decode8<Element::kE4M3>(scale[(row * cols + col) / 16]);
    y = value * clamp_finite(1.0F / (s * outer.inverse));
    over = fabsf(y) > kE2M1Max;
    zero = (gpu::round_e2m1(y).bits & 0x7u) == 0;
  }
};

__device__ inline int64_t block_sum(int64_t v, int64_t* shared) {
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    v += __shfl_xor_sync(kFullMask, v, offset);
  }
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = v;
  }
  __syncthreads();
  int64_t sum = 0;
  for (int i = 0; i < kThreads / kWarp; ++i) {
    sum += shared[i];
  }
  __syncthreads();
  return sum;
}

// The block's record of what its threads have.
__device__ inline QuantHealth block_total(const QuantHealth& mine) {
  __shared__ int64_t shared[kThreads / kWarp];
  __shared__ float shared_amax[kThreads / kWarp];
  QuantHealth total;
  total.elements = block_sum(mine.elements, shared);
  total.saturated = block_sum(mine.saturated, shared);
  total.flushed = block_sum(mine.flushed, shared);
  total.nan = block_sum(mine.nan, shared);
  const float m = gpu::lane_max(mine.amax, kWarp);
  if (threadIdx.x % kWarp == 0) {
    shared_amax[threadIdx.x / kWarp] = m;
  }
  __syncthreads();
  for (int i = 0; i < kThreads / kWarp; ++i) {
    total.amax = fmaxf(total.amax, shared_amax[i]);
  }
  return total;
}

template <class T, class Rule>
__global__ void __launch_bounds__(kThreads)
    count_kernel(const T* x, int64_t stride, int64_t rows, int64_t cols, Rule rule, QuantHealth* shares) {
  QuantHealth mine;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < rows * cols; i += step) {
    const int64_t row = i / cols;
    const int64_t col = i - row * cols;
    const float value = to_float(x[row * stride + col]);
    float y = 0.0F;
    bool over = false;
    bool zero = false;
    rule.scaled(row, col, cols, value, y, over, zero);
    mine.elements += 1;
    mine.saturated += over ? 1 : 0;
    mine.flushed += value != 0.0F && zero ? 1 : 0;
    mine.nan += value != value ? 1 : 0;
    mine.amax = fmaxf(mine.amax, fabsf(value));
  }
  const QuantHealth total = block_total(mine);
  if (threadIdx.x == 0) {
    shares[blockIdx.x] = total;
  }
}

__global__ void __launch_bounds__(kThreads)
    add_kernel(const QuantHealth* shares, int count, QuantHealth* result) {
  QuantHealth mine;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    mine.elements += shares[i].elements;
    mine.saturated += shares[i].saturated;
    mine.flushed += shares[i].flushed;
    mine.nan += shares[i].nan;
    mine.amax = fmaxf(mine.amax, shares[i].amax);
  }
  const QuantHealth total = block_total(mine);
  if (threadIdx.x == 0) {
    result[0] = total;
  }
}

template <class Rule>
void measure(MatrixView x, const Rule& rule, QuantHealth* result, QuantHealth* scratch, StreamHandle stream) {
  require(x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32,
          "x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32");
  unsigned grid = gpu::strided_grid(gpu::ceil_div(x.rows * x.cols, kThreads), kBlocksPerSm);
  grid = grid < kHealthScratch ? grid : static_cast<unsigned>(kHealthScratch);
  if (grid != 0) {
    if (x.dtype == Dtype::kBF16) {
      count_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const BF16*>(x.data), x.stride, x.rows, x.cols,
                                                  rule, scratch);
    } else {
      count_kernel<<<grid, kThreads, 0, stream>>>(static_cast<const float*>(x.data), x.stride, x.rows, x.cols,
                                                  rule, scratch);
    }
  }
  add_kernel<<<1, kThreads, 0, stream>>>(scratch, static_cast<int>(grid), result);
  check_launch("measure");
}

}  // namespace

void measure_mxfp8_rows(MatrixView x, const uint8_t* scale, Element element, QuantHealth* result,
                        QuantHealth* scratch, StreamHandle stream) {
  measure(x, Mxfp8Rule{scale, false, element == Element::kE4M3}, result, scratch, stream);
}

void measure_mxfp8_cols(MatrixView x, const uint8_t* scale, Element element, QuantHealth* result,
                        QuantHealth* scratch, StreamHandle stream) {
  measure(x, Mxfp8Rule{scale, true, element == Element::kE4M3}, result, scratch, stream);
}

void measure_nvfp4(MatrixView x, const Nvfp4Options& options, const uint8_t* scale, const float* amax,
                   QuantHealth* result, QuantHealth* scratch, StreamHandle stream) {
  measure(x, Nvfp4Rule{scale, amax, options.scope == Nvfp4Scope::kToken, options.range}, result, scratch,
          stream);
}

}  // namespace accord::formats::cuda
