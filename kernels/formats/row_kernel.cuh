#pragma once
// One kernel skeleton for what works on whole rows: a row is held in registers by `threads` neighbouring
// threads in units of sixteen elements, made by a source (read, RMSNorm, SwiGLU) and taken by a sink (values,
// MXFP8 rows, NVFP4 per token), in one pass over memory.
//
//   unit u of a row belongs to thread u % threads, and is that thread's (u / threads)-th.
//   RMSNorm sums in sixteen-lane order (kernels/cuda/lanes.cuh), so its bits are the CPU's.
#include <bit>

#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/formats/code_values.cuh"
#include "kernels/formats/four_over_six.cuh"
#include "kernels/math/exp_log.hpp"

namespace accord::gpu {

enum class Source : int { kRead, kRmsNorm, kAddRmsNorm, kSwiglu };
constexpr bool is_norm(Source source) { return source == Source::kRmsNorm || source == Source::kAddRmsNorm; }
enum class Sink : int { kValues, kMxfp8, kNvfp4 };

template <class T>
struct RowInput {
  const T* x = nullptr;  // gate, of SwiGLU
  int64_t x_stride = 0;
  const T* up = nullptr;  // SwiGLU; the summand of kAddRmsNorm
  int64_t up_stride = 0;
  const BF16* weight = nullptr;  // RMSNorm
  float eps = 0.0F;
  float* inv_rms = nullptr;  // [rows], or null
  T* sum = nullptr;          // kAddRmsNorm: gets x + up, which is normalized; may be either
  int64_t sum_stride = 0;
};

template <class T>
struct RowOutput {
  T* y = nullptr;  // the values themselves, or null
  int64_t y_stride = 0;
  uint8_t* q = nullptr;
  uint8_t* scale = nullptr;
  float* amax = nullptr;  // NVFP4: [rows]
  int range = 448;
  bool absolute = false;  // four over six: by absolute error
  // [rows, cols], or null: the products' operand, decoded MXFP8 or NVFP4's E2M1 * E4M3 (gemm_cuda.hpp).
  BF16* operand = nullptr;
};

struct RowShape {
  int64_t rows = 0;
  int64_t cols = 0;
  int threads = 0;  // a power of two
  int shift = 0;    // its logarithm
};

constexpr int kUnit = 16;
constexpr int kRowThreads = 128;  // of a block, unless a row takes more
constexpr int kMaxRowThreads = 512;
constexpr int kMaxUnits = 5;  // a thread's
// Floats from one unit's values to the next one's in shared memory: no two of eight neighbours' vectors share
// a bank.
constexpr int kStagedUnit = kUnit + 4;

template <class T>
__device__ inline void set_values(Block16<T>& block, int half, const float (&x)[8]) {
  if constexpr (Block16<T>::kVectors == 2) {
    block.v[half] = pack<T>(x);
  } else {
#pragma unroll
    for (int i = 0; i < 2; ++i) {
      block.v[2 * half + i] = {__float_as_uint(x[4 * i]), __float_as_uint(x[4 * i + 1]),
                               __float_as_uint(x[4 * i + 2]), __float_as_uint(x[4 * i + 3])};
    }
  }
}

template <class T>
__device__ inline void store_block(T* to, const Block16<T>& block) {
#pragma unroll
  for (int i = 0; i < Block16<T>::kVectors; ++i) {
    store16(to + i * kVector<T>, block.v[i]);
  }
}

// As lane_of_squares, of a row's values in shared memory.
__device__ inline float lane_of_staged_squares(const float* staged, int units, int lane) {
  constexpr int kUnroll = 8;
  float sum = 0.0F;
  int u = 0;
  for (; u + kUnroll <= units; u += kUnroll) {
    float v[kUnroll];
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      v[j] = staged[(u + j) * kStagedUnit + lane];
    }
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      sum = __fmaf_rn(v[j], v[j], sum);
    }
  }
  for (; u < units; ++u) {
    const float v = staged[u * kStagedUnit + lane];
    sum = __fmaf_rn(v, v, sum);
  }
  return sum;
}

// y = T(weight * T(x * inv))
template <class T>
__device__ inline void normalize(Block16<T>& block, const Block16<BF16>& weight, float inv) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float x[8];
    float w[8];
    block.values(half, x);
    weight.values(half, w);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = x[i] * inv;
    }
    set_values(block, half, x);
    block.values(half, x);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      x[i] = w[i] * x[i];
    }
    set_values(block, half, x);
  }
}

// x + delta, rounded.
template <class T>
__device__ inline void add_block(Block16<T>& x, const Block16<T>& delta) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float a[8];
    float b[8];
    x.values(half, a);
    delta.values(half, b);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      a[i] = a[i] + b[i];
    }
    set_values(x, half, a);
  }
}

// gate / (1 + exp(-gate)) * up
__device__ inline float silu_times(float gate, float up) {
  return gate / (1.0F + kernels::exp_scalar(-gate)) * up;
}

template <class T>
__device__ inline void multiply_gate(Block16<T>& gate, const Block16<T>& up) {
#pragma unroll
  for (int half = 0; half < 2; ++half) {
    float g[8];
    float u[8];
    gate.values(half, g);
    up.values(half, u);
#pragma unroll
    for (int i = 0; i < 8; ++i) {
      g[i] = silu_times(g[i], u[i]);
    }
    set_values(gate, half, g);
  }
}

// The largest of `m` over a row's threads. Every thread of the block calls it.
__device__ inline float row_max(float m, int threads, float* shared) {
#pragma unroll
  for (int offset = kWarp / 2; offset > 0; offset /= 2) {
    if (offset < threads) {
      m = fmaxf(m, __shfl_xor_sync(kFullMask, m, offset));
    }
  }
  if (threads > kWarp) {
    const int warp = static_cast<int>(threadIdx.x) / kWarp;
    if (threadIdx.x % kWarp == 0) {
      shared[warp] = m;
    }
    __syncthreads();
    const int warps = threads / kWarp;
    const int first = warp / warps * warps;
    for (int i = 0; i < warps; ++i) {
      m = fmaxf(m, shared[first + i]);
    }
  }
  return m;
}

// Blocks of kMaxRowThreads that should fit on a multiprocessor: up to four units of bf16 leave room for two.
template <class T, int kUnits>
constexpr int row_blocks = sizeof(Block16<T>) * kUnits <= 4 * sizeof(Block16<BF16>) ? 2 : 1;

template <class T, Source kSource, Sink kSink, int kUnits, bool kFourOverSix>
__global__ void __launch_bounds__(kMaxRowThreads, row_blocks<T, kUnits>)
    row_kernel(RowInput<T> in, RowOutput<T> out, RowShape shape) {
  __shared__ float shared[kRowThreads / 4 * kSumLanes];  // sums of a block's rows, or a maximum a warp
  wait_for_previous();
  allow_next();
  const int threads = shape.threads;
  const int group = static_cast<int>(threadIdx.x) >> shape.shift;
  const int t = static_cast<int>(threadIdx.x) & (threads - 1);
  const int64_t row =
      static_cast<int64_t>(blockIdx.x) * (static_cast<int>(blockDim.x) >> shape.shift) + group;
  const bool active = row < shape.rows;
  const int units = static_cast<int>(shape.cols / kUnit);
  [[maybe_unused]] const T* x = in.x + (active ? row : 0) * in.x_stride;

  // Beyond the row, the last unit again: it changes no maximum and is not stored.
  const auto unit_at = [&](int j) { return min(j * threads + t, units - 1); };
  Block16<T> block[kUnits];
#pragma unroll
  for (int j = 0; j < kUnits; ++j) {
    block[j] = load_block<T, true>(x + unit_at(j) * kUnit);
  }

  if constexpr (kSource == Source::kAddRmsNorm) {
    const T* delta = in.up + (active ? row : 0) * in.up_stride;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      add_block(block[j], load_block<T, true>(delta + unit_at(j) * kUnit));
    }
    if (active) {
      T* const sum = in.sum + row * in.sum_stride;
#pragma unroll
      for (int j = 0; j < kUnits; ++j) {
        const int u = j * threads + t;
        if (u < units) {
          store_block(sum + u * kUnit, block[j]);
        }
      }
      x = sum;
    }
  }
  if constexpr (is_norm(kSource)) {
    if constexpr (kUnits == 1) {
      extern __shared__ float staged[];  // a row's units
      float* const mine = staged + group * units * kStagedUnit;
      if (t < units) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float v[8];
          block[0].values(half, v);
#pragma unroll
          for (int i = 0; i < 8; i += 4) {
            *reinterpret_cast<float4*>(mine + t * kStagedUnit + half * 8 + i) = {v[i], v[i + 1], v[i + 2],
                                                                                 v[i + 3]};
          }
        }
      }
      __syncthreads();
      for (int lane = t; lane < kSumLanes; lane += threads) {
        shared[group * kSumLanes + lane] = lane_of_staged_squares(mine, units, lane);
      }
    } else {
      if constexpr (kSource == Source::kAddRmsNorm) {
        __syncthreads();  // the block's rows of the sum are written
      }
      for (int lane = t; lane < kSumLanes; lane += threads) {
        shared[group * kSumLanes + lane] = lane_of_squares(x, shape.cols, lane);
      }
    }
    __syncthreads();
    const float sum = fold_lanes(shared + group * kSumLanes);
    const float inv = 1.0F / sqrtf(sum / static_cast<float>(shape.cols) + in.eps);
    if (in.inv_rms != nullptr && active && t == 0) {
      in.inv_rms[row] = inv;
    }
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      normalize(block[j], load_block<BF16, true>(in.weight + unit_at(j) * kUnit), inv);
    }
    __syncthreads();  // `shared` is free again
  }
  if constexpr (kSource == Source::kSwiglu) {
    const T* up = in.up + (active ? row : 0) * in.up_stride;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      multiply_gate(block[j], load_block<T, true>(up + unit_at(j) * kUnit));
    }
  }
  if (kSource != Source::kRead && out.y != nullptr && active) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int u = j * threads + t;
      if (u < units) {
        store_block(out.y + row * out.y_stride + u * kUnit, block[j]);
      }
    }
  }

  if constexpr (kSink == Sink::kMxfp8) {
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      const int u = j * threads + t;
      // Two units are one block of 32; threads is even, so they lie in neighbouring threads.
      const float amax = lane_max(block[j].amax(), 2);
      const uint32_t e = mxfp8_exponent<Element::kE4M3>(amax);
      const float r = mxfp8_reciprocal(e);
      if (active && u < units) {
        uint32_t words[4];
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          float v[8];
          block[j].values(half, v);
#pragma unroll
          for (int i = 0; i < 8; ++i) {
            v[i] = v[i] * r;
          }
          words[2 * half] = cast8_four<Element::kE4M3>(v[0], v[1], v[2], v[3]);
          words[2 * half + 1] = cast8_four<Element::kE4M3>(v[4], v[5], v[6], v[7]);
        }
        store16(out.q + row * shape.cols + u * kUnit, {words[0], words[1], words[2], words[3]});
        if (out.operand != nullptr) {
          BF16* const operand = out.operand + row * shape.cols + u * kUnit;
#pragma unroll
          for (int i = 0; i < 4; i += 2) {
            const uint2 low = mxfp8_operand<false>(words[i], e);
            const uint2 high = mxfp8_operand<false>(words[i + 1], e);
            store16(operand + i * 4, {low.x, low.y, high.x, high.y});
          }
        }
        if (t % 2 == 0) {
          out.scale[row * (units / 2) + u / 2] = static_cast<uint8_t>(e);
        }
      }
    }
  }
  if constexpr (kSink == Sink::kNvfp4) {
    float block_amax[kUnits];
    float amax = 0.0F;
#pragma unroll
    for (int j = 0; j < kUnits; ++j) {
      block_amax[j] = block[j].amax();
      amax = fmaxf(amax, block_amax[j]);
    }
    amax = row_max(amax, threads, shared);
    const BlockScope<kFourOverSix> scope(formats::make_outer_scale(amax, out.range), threads >= kWarp);
    if (active && t == 0) {
      out.amax[row] = amax;
    }
    // Made rows are few, or their kernels bound by other work: less code for them.
    constexpr bool kTable = sizeof(T) == 2 && kSource == Source::kRead;
    const auto run = [&]<Way kWay>() {
      const auto store = [&](const Block16<T>& b, float b_amax, int u) {
        const bool inside = active && u < units;
        const QuantizedBlock result = quantize_block<T, kWay, kTable>(b, b_amax, scope, inside);
        if (inside) {
          *reinterpret_cast<uint2*>(out.q + (row * units + u) * (kUnit / 2)) = result.q;
          out.scale[row * units + u] = static_cast<uint8_t>(result.scale);
          if (out.operand != nullptr) {
            const float value = decode8<Element::kE4M3>(result.scale);
            BF16* const operand = out.operand + (row * units + u) * kUnit;
            store16(operand, nvfp4_operand(result.q.x, value));
            store16(operand + 8, nvfp4_operand(result.q.y, value));
          }
        }
      };
      if constexpr (kFourOverSix && kTable) {
        // Trying two scales is much code: in a loop it stays in the instruction cache, and the row in the
        // data cache. (fp32 waits for memory more than for instructions.)
#pragma unroll 1
        for (int j = 0; j < kUnits; ++j) {
          store(load_block<T, true>(x + unit_at(j) * kUnit), block_amax[0], j * threads + t);
#pragma unroll
          for (int i = 1; i < kUnits; ++i) {
            block_amax[i - 1] = block_amax[i];
          }
        }
      } else {
#pragma unroll
        for (int j = 0; j < kUnits; ++j) {
          store(block[j], block_amax[j], j * threads + t);
        }
      }
    };
    with_way<T, kFourOverSix, kTable>(scope, out.absolute, run);
  }
}

// How a row is split over threads: few enough that each has several units in flight, with little left idle.
// threads 0: the row is too long for registers.
struct RowSplit {
  int threads = 0;
  int units = 0;
};
inline RowSplit split_long_row(int64_t cols) {
  const int64_t units = cols / kUnit;
  RowSplit best;
  double best_use = 0.0;
  for (int threads = 8; threads <= kMaxRowThreads; threads *= 2) {
    const int64_t each = ceil_div(units, threads);
    // Two units are 64 bytes of bf16: fewer leave too little in flight.
    if (each > kMaxUnits || (each < 2 && best.threads != 0)) {
      continue;
    }
    const double use = static_cast<double>(units) / static_cast<double>(each * threads);
    if (use > best_use * 1.05) {  // more threads must be worth it
      best_use = use;
      best = {threads, static_cast<int>(each)};
    }
  }
  return best;
}

// Few rows end soonest with a unit a thread, however many of the threads are idle.
inline RowSplit split_row(int64_t rows, int64_t cols) {
  constexpr int64_t kFewBlocks = 4;  // of a multiprocessor
  const auto units = static_cast<uint64_t>(cols / kUnit);
  const auto threads = static_cast<int64_t>(std::bit_ceil(units < 8 ? 8 : units));
  const bool few = rows * threads <= kFewBlocks * kRowThreads * num_multiprocessors();
  return few && threads <= kMaxRowThreads ? RowSplit{static_cast<int>(threads), 1} : split_long_row(cols);
}

// Whether rows of this length fit into registers. Every pointer and row must also be aligned to 16 bytes.
inline bool fits_rows(int64_t cols) { return cols % kUnit == 0 && split_long_row(cols).threads != 0; }

// Launches the kernel; the caller has checked that the rows fit.
template <class T, Source kSource, Sink kSink, bool kFourOverSix>
void launch_rows(const RowInput<T>& in, const RowOutput<T>& out, int64_t rows, int64_t cols,
                 StreamHandle stream) {
  const RowSplit split = split_row(rows, cols);
  const int block = split.threads > kRowThreads ? split.threads : kRowThreads;
  const RowShape shape{rows, cols, split.threads, std::countr_zero(static_cast<unsigned>(split.threads))};
  const auto grid = static_cast<unsigned>(ceil_div(rows, block / split.threads));
  const auto of_units = [&]<int kUnits>() {
    const auto rows_of_block = static_cast<size_t>(block / split.threads);
    const size_t staged =
        is_norm(kSource) && kUnits == 1
            ? rows_of_block * static_cast<size_t>(cols / kUnit) * kStagedUnit * sizeof(float)
            : 0;
    launch_overlapped(row_kernel<T, kSource, kSink, kUnits, kFourOverSix>, grid, block, staged, stream, in,
                      out, shape);
  };
  switch (split.units) {
    case 1:
      return of_units.template operator()<1>();
    case 2:
      return of_units.template operator()<2>();
    case 3:
      return of_units.template operator()<3>();
    case 4:
      return of_units.template operator()<4>();
    default:
      return of_units.template operator()<kMaxUnits>();
  }
}

}  // namespace accord::gpu
