// NVFP4 (nvfp4.hpp): x [M,K] fp32 or bf16 -> q [M,K/2], scale [M,K/16], amax [1] or [M].
//
//   token    A row stays in registers from its amax to its bytes (nvfp4_rows_cuda.cu): one pass. Rows that
//            are too long or not aligned take an amax pass first.
//   tensor   A grid of partial maxima, which every block of the quantizer reduces again for itself: a maximum
//            has no order. A thread holds blocks of 16, so that scale and multiplier are computed once a
//            block.
//   16x16    nvfp4_tiles_cuda.cu.
//
// The passes overlap: blocks of the second load their first values while the first one ends.
#include <type_traits>

#include "kernels/cuda/overlap.cuh"
#include "kernels/formats/four_over_six.cuh"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/formats/nvfp4_rows.hpp"
#include "kernels/formats/nvfp4_scope.cuh"

namespace accord::formats::cuda {
namespace {

using gpu::Block16;
using gpu::kVector;
using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kBlock = 16;
constexpr int kUnroll = 4;
// Blocks of 16 a thread works on at a time. Under four over six it computes one of two while the other is on
// its way.
template <class T, bool kFourOverSix>
constexpr int kFlatUnroll = kFourOverSix && sizeof(T) == 4 ? 1 : 2;
constexpr int kAmaxBlocksPerSm = 6;
constexpr int kFlatResident = 4;
// Without four over six a grid of all blocks ends more evenly than a loop.
template <bool kFourOverSix>
constexpr int kFlatBlocksPerSm = kFourOverSix ? kFlatResident : 1 << 20;

// partials[block], of `length` elements in each of `rows`.
template <class T, bool kAligned>
__global__ void __launch_bounds__(kThreads)
    amax_kernel(const T* x, int64_t stride, int64_t rows, int64_t length, float* partials) {
  constexpr int kWidth = kAligned ? kVector<T> : 1;
  const int64_t per_row = length / kWidth;
  const int64_t total = rows * per_row;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  const auto address = [&](int64_t i) {
    const int64_t row = rows == 1 ? 0 : i / per_row;
    return x + row * stride + (i - row * per_row) * kWidth;
  };
  gpu::wait_for_previous();
  gpu::allow_next();
  float m = 0.0F;
  int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x;
  if constexpr (kAligned) {
    for (; i + (kUnroll - 1) * step < total; i += kUnroll * step) {
      uint4 v[kUnroll];
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        v[j] = gpu::load16(address(i + j * step));
      }
      m = fmaxf(m, gpu::amax_of(v, T()));
    }
    for (; i < total; i += step) {
      const uint4 v[1] = {gpu::load16(address(i))};
      m = fmaxf(m, gpu::amax_of(v, T()));
    }
  } else {
    for (; i < total; i += step) {
      m = fmaxf(m, fabsf(to_float(*address(i))));
    }
  }
  m = block_max<kThreads>(m);
  if (threadIdx.x == 0) {
    partials[blockIdx.x] = m;
  }
}

__global__ void __launch_bounds__(kThreads)
    finish_amax_kernel(const float* partials, int count, float* result, bool accumulate) {
  const float m = max_of<kThreads>(partials, count);
  if (threadIdx.x == 0) {
    result[0] = accumulate ? fmaxf(m, result[0]) : m;
  }
}

// amax[row], one block a row.
template <class T>
__global__ void __launch_bounds__(kThreads)
    row_amax_kernel(const T* x, int64_t stride, int64_t cols, float* amax) {
  gpu::wait_for_previous();
  gpu::allow_next();
  const T* row = x + static_cast<int64_t>(blockIdx.x) * stride;
  float m = 0.0F;
  for (int64_t i = threadIdx.x; i < cols; i += kThreads) {
    m = fmaxf(m, fabsf(to_float(row[i])));
  }
  m = block_max<kThreads>(m);
  if (threadIdx.x == 0) {
    amax[blockIdx.x] = m;
  }
}

// 1x16 blocks in any order. `per_row` blocks in each of `rows`. kWhole: one A, one row, aligned, fewer than
// 2^31 blocks.
template <class T, bool kFourOverSix, bool kAligned, bool kWhole>
__global__ void __launch_bounds__(kThreads, kFlatResident)
    flat_kernel(const T* x, int64_t stride, int64_t rows, int64_t per_row, Scope scope, uint8_t* q,
                uint8_t* scale) {
  using Index = std::conditional_t<kWhole, int32_t, int64_t>;
  constexpr int kUnroll = kFlatUnroll<T, kFourOverSix>;
  constexpr Index kChunk = kUnroll * kThreads;
  const Index total = static_cast<Index>(kWhole ? per_row : rows * per_row);
  Block16<T> block[kUnroll];
  const Index step = static_cast<Index>(gridDim.x) * kChunk;
  const auto load = [&](Index begin, int j) {
    const Index i = begin + j * kThreads + static_cast<int>(threadIdx.x);
    if (i < total) {
      const T* p = x + static_cast<int64_t>(i) * kBlock;
      if (!kWhole && rows != 1) {
        const int64_t row = i / per_row;
        p = x + row * stride + (i - row * per_row) * kBlock;
      }
      block[j] = gpu::load_block<T, kAligned>(p);
    }
  };
  const auto load_all = [&](Index begin) {
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      load(begin, j);
    }
  };
  // From the end, which the amax pass has just brought into the cache.
  Index begin =
      (static_cast<Index>(gpu::ceil_div(total, kChunk)) - 1 - static_cast<Index>(blockIdx.x)) * kChunk;
  if (!scope.after_amax) {
    gpu::wait_for_previous();
  }
  load_all(begin);           // in flight while the outer scale is made
  gpu::wait_for_previous();  // a second time it does not wait
  gpu::allow_next();
  OuterScale outer{};
  if (kWhole || scope.count != 0) {
    const float amax = max_of<kThreads>(scope.maxima, scope.count);
    outer = make_outer_scale(amax, scope.range);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      scope.amax[0] = amax;
    }
  }
  gpu::BlockScope<kFourOverSix> its(outer, true);
  constexpr bool kTable = kWhole && sizeof(T) == 2;
  const auto run = [&]<gpu::Way kWay>() {
    const auto store = [&](const Block16<T>& b, Index i) {
      const bool inside = i < total;
      if (!kWhole && scope.count == 0) {
        its = gpu::BlockScope<kFourOverSix>(
            make_outer_scale(inside ? scope.maxima[i / per_row] : 1.0F, scope.range), false);
      }
      const gpu::QuantizedBlock result = gpu::quantize_block<T, kWay, kTable>(b, b.amax(), its, inside);
      if (inside) {
        *reinterpret_cast<uint2*>(q + static_cast<int64_t>(i) * (kBlock / 2)) = result.q;
        scale[i] = static_cast<uint8_t>(result.scale);
      }
    };
    for (; begin >= 0; begin -= step) {
#pragma unroll
      for (int j = 0; j < kUnroll; ++j) {
        store(block[j], begin + j * kThreads + static_cast<int>(threadIdx.x));
        if (kFourOverSix && begin >= step) {
          load(begin - step, j);
        }
      }
      if (!kFourOverSix && begin >= step) {
        load_all(begin - step);
      }
    }
  };
  gpu::with_way<T, kFourOverSix, kTable>(its, scope.absolute, run);
}

struct Extent {
  int64_t rows;
  int64_t cols;
};
// Contiguous rows form one long row.
Extent extent_of(const MatrixView& x) {
  const bool contiguous = x.stride == x.cols || x.rows == 1;
  return contiguous ? Extent{1, x.rows * x.cols} : Extent{x.rows, x.cols};
}

// Launches the partial maxima; returns how many there are.
template <class T>
int launch_amax(MatrixView x, float* scratch, StreamHandle stream) {
  const auto [rows, cols] = extent_of(x);
  const auto* data = static_cast<const T*>(x.data);
  const bool aligned = gpu::is_vectorizable(x);
  const int64_t work = gpu::ceil_div(rows * cols, kThreads * (aligned ? kUnroll * kVector<T> : 1));
  unsigned grid = gpu::strided_grid(work, kAmaxBlocksPerSm);
  grid = grid < kAmaxScratch ? grid : static_cast<unsigned>(kAmaxScratch);
  if (aligned) {
    gpu::launch_overlapped(amax_kernel<T, true>, grid, kThreads, 0, stream, data, x.stride, rows, cols,
                           scratch);
  } else {
    gpu::launch_overlapped(amax_kernel<T, false>, grid, kThreads, 0, stream, data, x.stride, rows, cols,
                           scratch);
  }
  check_launch("amax");
  return static_cast<int>(grid);
}

template <class T, bool kFourOverSix>
void launch_flat(MatrixView x, const Scope& scope, const Nvfp4Output& out, StreamHandle stream) {
  // One A a row needs the rows.
  const auto [rows, cols] = scope.count != 0 ? extent_of(x) : Extent{x.rows, x.cols};
  const int64_t per_row = cols / kBlock;
  const auto* data = static_cast<const T*>(x.data);
  const unsigned grid = gpu::strided_grid(
      gpu::ceil_div(rows * per_row, kFlatUnroll<T, kFourOverSix> * kThreads), kFlatBlocksPerSm<kFourOverSix>);
  const auto launch = [&](auto kernel) {
    gpu::launch_overlapped(kernel, grid, kThreads, 0, stream, data, x.stride, rows, per_row, scope, out.q,
                           out.scale);
  };
  const bool whole = rows == 1 && scope.count != 0 && per_row < INT32_MAX / 2;
  if (!gpu::is_vectorizable(x)) {
    launch(flat_kernel<T, kFourOverSix, false, false>);
  } else if (whole) {
    launch(flat_kernel<T, kFourOverSix, true, true>);
  } else {
    launch(flat_kernel<T, kFourOverSix, true, false>);
  }
  check_launch("quantize_nvfp4");
}

template <class T, bool kFourOverSix>
void quantize(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out, const float* shared_amax,
              float* scratch, BF16* operand, StreamHandle stream) {
  require(operand == nullptr || (options.scope == Nvfp4Scope::kToken && fuses_operand(x)),
          "operand == nullptr || (options.scope == Nvfp4Scope::kToken && fuses_operand(x))");
  Scope scope{shared_amax, 1, out.amax, options.range, options.four_over_six == FourOverSix::kMae, false};
  if (options.scope == Nvfp4Scope::kToken) {
    if (fuses_operand(x)) {
      quantize_rows<T, kFourOverSix>(x, out, scope.range, scope.absolute, operand, stream);
      return;
    }
    gpu::launch_overlapped(row_amax_kernel<T>, static_cast<unsigned>(x.rows), kThreads, 0, stream,
                           static_cast<const T*>(x.data), x.stride, x.cols, out.amax);
    check_launch("amax");
    scope.maxima = out.amax;
    scope.count = 0;
  } else if (shared_amax == nullptr) {
    scope.maxima = scratch;
    scope.count = launch_amax<T>(x, scratch, stream);
    scope.after_amax = true;
  }
  options.layout == Nvfp4Layout::k16x16 ? quantize_tiles<T, kFourOverSix>(x, scope, out, stream)
                                        : launch_flat<T, kFourOverSix>(x, scope, out, stream);
}

}  // namespace

bool fuses_operand(MatrixView x) { return fits_registers(x.cols) && gpu::is_vectorizable(x); }

void amax(MatrixView x, float* result, bool accumulate, float* scratch, StreamHandle stream) {
  int count = 0;
  if (x.rows != 0 && x.cols != 0) {
    count = x.dtype == Dtype::kBF16 ? launch_amax<BF16>(x, scratch, stream)
                                    : launch_amax<float>(x, scratch, stream);
  }
  finish_amax_kernel<<<1, kThreads, 0, stream>>>(scratch, count, result, accumulate);
  check_launch("amax");
}

void quantize_nvfp4(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out,
                    const float* shared_amax, float* scratch, StreamHandle stream, BF16* operand) {
  require(x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32,
          "x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32");
  require(x.cols % kBlock == 0 && (options.layout == Nvfp4Layout::k1x16 || x.rows % kBlock == 0),
          "x.cols % kBlock == 0 && (options.layout == Nvfp4Layout::k1x16 || x.rows % kBlock == 0)");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  const bool four_over_six = options.four_over_six != FourOverSix::kNone;
  if (x.dtype == Dtype::kBF16) {
    four_over_six ? quantize<BF16, true>(x, options, out, shared_amax, scratch, operand, stream)
                  : quantize<BF16, false>(x, options, out, shared_amax, scratch, operand, stream);
  } else {
    four_over_six ? quantize<float, true>(x, options, out, shared_amax, scratch, operand, stream)
                  : quantize<float, false>(x, options, out, shared_amax, scratch, operand, stream);
  }
}

}  // namespace accord::formats::cuda
