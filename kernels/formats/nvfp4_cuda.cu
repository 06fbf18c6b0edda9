// NVFP4 (nvfp4.hpp): x [M,K] fp32 or bf16 -> q [M,K/2], scale [M,K/16], amax [1] or [M].
//
//   token    A row stays in registers from its amax to its bytes (nvfp4_rows_cuda.cu): one pass. Rows too
//   long
//            or not aligned take an amax pass first.
//   tensor   A grid of partial maxima, which every block of the quantizer reduces again for itself: a maximum
//            has no order. A thread holds blocks of 16, so that scale and multiplier are computed once a
//            block.
//   16x16    A thread holds the sixteen rows of one 16-byte column group, two or four neighbours a tile. Four
//            over six: where the sums of the contract are needed, a row's error goes from neighbour to
//            neighbour, ascending, and the last adds the rows up in their tree.
//
// The passes overlap: blocks of the second load their first values while the first one ends.
#include "kernels/cuda/overlap.cuh"
#include "kernels/formats/four_over_six.cuh"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/formats/nvfp4_rows.hpp"

namespace accord::formats::cuda {
namespace {

using gpu::Block16;
using gpu::kFullMask;
using gpu::kVector;
using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kSquareThreads = 64;
constexpr int kBlock = 16;
constexpr int kUnroll = 4;
// Blocks a thread works on at a time. Under four over six it computes one while the other is on its way.
template <bool kFourOverSix>
constexpr int kFlatUnroll = kFourOverSix ? 2 : 4;
constexpr int kAmaxBlocksPerSm = 6;
template <class T, bool kFourOverSix>
constexpr int kFlatResident = !kFourOverSix    ? 2
                              : sizeof(T) == 2 ? 4
                                               : 3;
template <class T, bool kFourOverSix>
constexpr int kFlatBlocksPerSm = kFourOverSix ? kFlatResident<T, true> : 8;

// Every thread of the block gets the largest m.
template <int kThreads>
__device__ inline float block_max(float m) {
  __shared__ float shared[kThreads / kWarp];
  m = gpu::lane_max(m, kWarp);
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = m;
  }
  __syncthreads();
#pragma unroll
  for (int i = 0; i < kThreads / kWarp; ++i) {
    m = fmaxf(m, shared[i]);
  }
  __syncthreads();
  return m;
}

template <int kThreads>
__device__ inline float max_of(const float* values, int count) {
  float m = 0.0F;
  for (int i = static_cast<int>(threadIdx.x); i < count; i += kThreads) {
    m = fmaxf(m, values[i]);
  }
  return block_max<kThreads>(m);
}

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

// Where the outer scale comes from.
struct Scope {
  const float* maxima;  // its largest is A; or [rows], one A a row
  int count;            // 0: one a row
  float* amax;          // gets A
  int range;
  bool absolute;
  bool after_amax;  // this call's amax pass has just read x, which so is complete
};

// 1x16 blocks in any order. `per_row` blocks in each of `rows`.
template <class T, bool kFourOverSix, bool kAligned>
__global__ void __launch_bounds__(kThreads, kFlatResident<T, kFourOverSix>)
    flat_kernel(const T* x, int64_t stride, int64_t rows, int64_t per_row, Scope scope, uint8_t* q,
                uint8_t* scale) {
  constexpr int kUnroll = kFlatUnroll<kFourOverSix>;
  constexpr int64_t kChunk = kUnroll * kThreads;
  const int64_t total = rows * per_row;
  Block16<T> block[kUnroll];
  const int64_t step = gridDim.x * kChunk;
  const auto load = [&](int64_t begin, int j) {
    const int64_t i = begin + j * kThreads + threadIdx.x;
    if (i < total) {
      const T* p = x + i * kBlock;
      if (rows != 1) {
        const int64_t row = i / per_row;
        p = x + row * stride + (i - row * per_row) * kBlock;
      }
      block[j] = gpu::load_block<T, kAligned>(p);
    }
  };
  const auto load_all = [&](int64_t begin) {
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      load(begin, j);
    }
  };
  // From the end, which the amax pass has just brought into the cache.
  int64_t begin = (gpu::ceil_div(total, kChunk) - 1 - blockIdx.x) * kChunk;
  if (!scope.after_amax) {
    gpu::wait_for_previous();
  }
  load_all(begin);           // in flight while the outer scale is made
  gpu::wait_for_previous();  // a second time it does not wait
  gpu::allow_next();
  OuterScale outer{};
  if (scope.count != 0) {
    const float amax = max_of<kThreads>(scope.maxima, scope.count);
    outer = make_outer_scale(amax, scope.range);
    if (blockIdx.x == 0 && threadIdx.x == 0) {
      scope.amax[0] = amax;
    }
  }
  const auto store = [&](const Block16<T>& b, int64_t i) {
    if (i < total) {
      if (scope.count == 0) {
        outer = make_outer_scale(scope.maxima[i / per_row], scope.range);
      }
      const gpu::QuantizedBlock result =
          gpu::quantize_block<T, kFourOverSix>(b, b.amax(), outer, scope.absolute);
      *reinterpret_cast<uint2*>(q + i * (kBlock / 2)) = result.q;
      scale[i] = static_cast<uint8_t>(result.scale);
    }
  };
  for (; begin >= 0; begin -= step) {
#pragma unroll
    for (int j = 0; j < kUnroll; ++j) {
      store(block[j], begin + j * kThreads + threadIdx.x);
      if (kFourOverSix && begin >= step) {
        load(begin - step, j);
      }
    }
    if (!kFourOverSix && begin >= step) {
      load_all(begin - step);
    }
  }
}

// The codes of one vector, without a branch on its length.
template <class T>
__device__ inline void cast_vector(const uint4& v, float multiplier, uint8_t* q) {
  float x[kVector<T>];
  gpu::unpack<T>(v, x);
  if constexpr (kVector<T> == 8) {
    *reinterpret_cast<uint32_t*>(q) = gpu::cast_e2m1(x, multiplier);
  } else {
    const float padded[8] = {x[0], x[1], x[2], x[3], 0.0F, 0.0F, 0.0F, 0.0F};
    *reinterpret_cast<uint16_t*>(q) = static_cast<uint16_t>(gpu::cast_e2m1(padded, multiplier));
  }
}

// Where a thread's part of a tile lies.
template <class T>
struct TilePart {
  const T* x;
  int64_t stride;
  bool active;
};

// Adds e[r] for r = 0, 8, 4, 12, 2, ... as the tree of the contract does, which adds rows by halves.
struct RowTree {
  float left[4];
  float total = 0.0F;
  __device__ void add(int i, float e) {
#pragma unroll
    for (int level = 0; level < 4; ++level) {
      if ((i >> level) % 2 == 0) {
        left[level] = e;
        return;
      }
      e = left[level] + e;
    }
    total = e;
  }
};

// A tile's error under one candidate by the sums of the contract, in all of its lanes. All lanes of the warp
// call it.
template <class T, bool kFast, bool kAligned>
__device__ inline float tile_error(const TilePart<T>& part, float scale, float multiplier,
                                   const OuterScale& outer, bool absolute) {
  constexpr int kLanes = kBlock / kVector<T>;
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const float inverse = 1.0F / outer.divisor;
  RowTree tree;
#pragma unroll 1
  for (int i = 0; i < kBlock; ++i) {
    const int r = static_cast<int>(__brev(static_cast<unsigned>(i)) >> 28);
    const uint4 v = part.active ? gpu::load_vector<T, kAligned>(part.x + r * part.stride) : uint4{0, 0, 0, 0};
    float x[kVector<T>];
    float errors[kVector<T>];
    gpu::unpack<T>(v, x);
#pragma unroll
    for (int j = 0; j < kVector<T>; ++j) {
      const float rounded = gpu::round_e2m1(x[j] * multiplier).value;
      errors[j] = gpu::error_of<kFast>(rounded, x[j], scale, outer, inverse, absolute);
    }
    float sum = 0.0F;
#pragma unroll
    for (int turn = 0; turn < kLanes; ++turn) {
      const float before = turn == 0 ? 0.0F : __shfl_up_sync(kFullMask, sum, 1, kLanes);
      if (turn == 0 || lane == turn) {
        sum = before;
#pragma unroll
        for (int j = 0; j < kVector<T>; ++j) {
          sum = sum + errors[j];
        }
      }
    }
    tree.add(i, sum);
  }
  return __shfl_sync(kFullMask, tree.total, kLanes - 1, kLanes);
}

// The winning scale of a tile by the sums of the contract. All lanes of the warp call it.
template <class T, bool kAligned>
__device__ inline gpu::BlockScale choose_by_sums(const TilePart<T>& part, float tile_amax,
                                                 const OuterScale& outer, bool absolute) {
  const gpu::Candidates c = gpu::candidate_scales(tile_amax, outer);
  float six = 0.0F;
  float error = 0.0F;
#pragma unroll 1
  for (int turn = 0; turn < 2; ++turn) {
    six = error;
    const float scale = turn == 0 ? c.six.value : c.four.value;
    const float multiplier = turn == 0 ? c.six.multiplier : c.four.multiplier;
    error = gpu::divides_fast(outer.amax)
                ? tile_error<T, true, kAligned>(part, scale, multiplier, outer, absolute)
                : tile_error<T, false, kAligned>(part, scale, multiplier, outer, absolute);
  }
  return error < six ? c.four : c.six;
}

// Both candidates' codes of a thread's part of a tile, and their errors.
struct TileCodes {
  uint32_t six[kBlock];
  uint32_t four[kBlock];
  uint32_t signs[kBlock];
  float error6;
  float error4;
};
template <class T, bool kAbsolute>
__device__ inline void try_tile(const uint4 (&v)[kBlock], const gpu::ShortCandidates& c, TileCodes& t) {
  t.error6 = 0.0F;
  t.error4 = 0.0F;
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    float x[kVector<T>];
    gpu::unpack<T>(v[r], x);
    t.six[r] = gpu::try_short<kAbsolute>(x, c.multiplier6, t.error6);
    t.four[r] = gpu::try_short<kAbsolute>(x, c.multiplier4, t.error4);
    if constexpr (kVector<T> == 8) {
      t.signs[r] = gpu::signs_of(v[r]);
    } else {
      const float padded[8] = {x[0], x[1], x[2], x[3]};
      t.signs[r] = gpu::e2m1_signs(padded);
    }
  }
#pragma unroll
  for (int offset = kBlock / kVector<T> / 2; offset > 0; offset /= 2) {
    t.error6 = t.error6 + __shfl_xor_sync(kFullMask, t.error6, offset);
    t.error4 = t.error4 + __shfl_xor_sync(kFullMask, t.error4, offset);
  }
}

// 16x16 tiles, one column group a thread. cols / kVector<T> groups are a multiple of a tile's lanes.
template <class T, bool kFourOverSix, bool kAligned>
__global__ void __launch_bounds__(kSquareThreads, kFourOverSix ? 8 : 10)
    square_kernel(const T* x, int64_t stride, int64_t rows, int64_t cols, Scope scope, uint8_t* q,
                  uint8_t* scale) {
  constexpr int kLanes = kBlock / kVector<T>;
  const int64_t groups = cols / kVector<T>;
  // From the end, which the amax pass has just brought into the cache.
  const int64_t thread = static_cast<int64_t>(gridDim.x - 1 - blockIdx.x) * kSquareThreads + threadIdx.x;
  const bool active = thread < rows / kBlock * groups;
  const int64_t row = active ? thread / groups * kBlock : 0;
  const int64_t col = active ? thread % groups * kVector<T> : 0;
  const T* first = x + row * stride + col;
  if (!scope.after_amax) {
    gpu::wait_for_previous();
  }
  uint4 v[kBlock];
#pragma unroll
  for (int r = 0; r < kBlock; ++r) {
    v[r] = active ? gpu::load_vector<T, kAligned>(first + r * stride) : uint4{0, 0, 0, 0};
  }
  gpu::wait_for_previous();  // a second time it does not wait
  gpu::allow_next();
  const float amax = max_of<kSquareThreads>(scope.maxima, scope.count);
  const OuterScale outer = make_outer_scale(amax, scope.range);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    scope.amax[0] = amax;
  }
  const float tile_amax = gpu::lane_max(gpu::amax_of(v, T()), kLanes);
  uint8_t* q_row = q + static_cast<uint64_t>(row * cols + col) / 2;
  uint8_t* scale_row = scale + static_cast<uint64_t>(row * cols + col) / kBlock;
  const uint64_t q_step = static_cast<uint64_t>(cols) / 2;
  const uint64_t scale_step = static_cast<uint64_t>(cols) / kBlock;
  const bool first_lane = threadIdx.x % kLanes == 0;
  if constexpr (!kFourOverSix) {
    const gpu::BlockScale s = gpu::nvfp4_block_scale(tile_amax * outer.t, outer);
    if (!active) {
      return;
    }
#pragma unroll
    for (int r = 0; r < kBlock; ++r) {
      cast_vector<T>(v[r], s.multiplier, q_row);
      if (first_lane) {
        *scale_row = static_cast<uint8_t>(s.code);
      }
      q_row += q_step;
      scale_row += scale_step;
    }
  } else {
    const gpu::ShortCandidates c = gpu::short_candidates(tile_amax, gpu::short_scope(outer));
    TileCodes codes;
    scope.absolute ? try_tile<T, true>(v, c, codes) : try_tile<T, false>(v, c, codes);
    const Choice choice = choose<kBlock * kBlock>(codes.error6, codes.error4, c.six, c.four, scope.absolute);
    const bool sure = c.ordinary && choice.sure;
    if (active && sure) {
      uint8_t* q_at = q_row;
      uint8_t* scale_at = scale_row;
      const auto code = static_cast<uint8_t>(c.code(choice.four));
#pragma unroll
      for (int r = 0; r < kBlock; ++r) {
        const uint32_t word =
            (choice.four ? codes.four[r] : codes.six[r]) | (codes.signs[r] & gpu::kSignBits);
        if constexpr (kVector<T> == 8) {
          *reinterpret_cast<uint32_t*>(q_at) = word;
        } else {
          *reinterpret_cast<uint16_t*>(q_at) = static_cast<uint16_t>(word);
        }
        if (first_lane) {
          *scale_at = code;
        }
        q_at += q_step;
        scale_at += scale_step;
      }
    }
    const bool by_sums = active && !sure;
    if (__any_sync(kFullMask, by_sums)) {
      const gpu::BlockScale s =
          choose_by_sums<T, kAligned>({first, stride, active}, tile_amax, outer, scope.absolute);
#pragma unroll 1
      for (int r = 0; by_sums && r < kBlock; ++r) {
        cast_vector<T>(gpu::load_vector<T, kAligned>(first + r * stride), s.multiplier, q_row);
        if (first_lane) {
          *scale_row = static_cast<uint8_t>(s.code);
        }
        q_row += q_step;
        scale_row += scale_step;
      }
    }
  }
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
    gpu::launch_overlapped(amax_kernel<T, true>, grid, kThreads, stream, data, x.stride, rows, cols, scratch);
  } else {
    gpu::launch_overlapped(amax_kernel<T, false>, grid, kThreads, stream, data, x.stride, rows, cols,
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
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(rows * per_row, kFlatUnroll<kFourOverSix> * kThreads),
                                          kFlatBlocksPerSm<T, kFourOverSix>);
  if (gpu::is_vectorizable(x)) {
    gpu::launch_overlapped(flat_kernel<T, kFourOverSix, true>, grid, kThreads, stream, data, x.stride, rows,
                           per_row, scope, out.q, out.scale);
  } else {
    gpu::launch_overlapped(flat_kernel<T, kFourOverSix, false>, grid, kThreads, stream, data, x.stride, rows,
                           per_row, scope, out.q, out.scale);
  }
  check_launch("quantize_nvfp4");
}

template <class T, bool kFourOverSix>
void launch_square(MatrixView x, const Scope& scope, const Nvfp4Output& out, StreamHandle stream) {
  const auto* data = static_cast<const T*>(x.data);
  const auto grid =
      static_cast<unsigned>(gpu::ceil_div(x.rows / kBlock * (x.cols / kVector<T>), kSquareThreads));
  if (gpu::is_vectorizable(x)) {
    gpu::launch_overlapped(square_kernel<T, kFourOverSix, true>, grid, kSquareThreads, stream, data, x.stride,
                           x.rows, x.cols, scope, out.q, out.scale);
  } else {
    gpu::launch_overlapped(square_kernel<T, kFourOverSix, false>, grid, kSquareThreads, stream, data,
                           x.stride, x.rows, x.cols, scope, out.q, out.scale);
  }
  check_launch("quantize_nvfp4");
}

template <class T, bool kFourOverSix>
void quantize(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out, const float* shared_amax,
              float* scratch, StreamHandle stream) {
  Scope scope{shared_amax, 1, out.amax, options.range, options.four_over_six == FourOverSix::kMae, false};
  if (options.scope == Nvfp4Scope::kToken) {
    if (fits_registers(x.cols) && gpu::is_vectorizable(x)) {
      quantize_rows<T, kFourOverSix>(x, out, scope.range, scope.absolute, stream);
      return;
    }
    row_amax_kernel<T><<<static_cast<unsigned>(x.rows), kThreads, 0, stream>>>(static_cast<const T*>(x.data),
                                                                               x.stride, x.cols, out.amax);
    check_launch("amax");
    scope.maxima = out.amax;
    scope.count = 0;
  } else if (shared_amax == nullptr) {
    scope.maxima = scratch;
    scope.count = launch_amax<T>(x, scratch, stream);
    scope.after_amax = true;
  }
  options.layout == Nvfp4Layout::k16x16 ? launch_square<T, kFourOverSix>(x, scope, out, stream)
                                        : launch_flat<T, kFourOverSix>(x, scope, out, stream);
}

}  // namespace

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
                    const float* shared_amax, float* scratch, StreamHandle stream) {
  require(x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32,
          "x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32");
  require(x.cols % kBlock == 0 && (options.layout == Nvfp4Layout::k1x16 || x.rows % kBlock == 0),
          "x.cols % kBlock == 0 && (options.layout == Nvfp4Layout::k1x16 || x.rows % kBlock == 0)");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  const bool four_over_six = options.four_over_six != FourOverSix::kNone;
  if (x.dtype == Dtype::kBF16) {
    four_over_six ? quantize<BF16, true>(x, options, out, shared_amax, scratch, stream)
                  : quantize<BF16, false>(x, options, out, shared_amax, scratch, stream);
  } else {
    four_over_six ? quantize<float, true>(x, options, out, shared_amax, scratch, stream)
                  : quantize<float, false>(x, options, out, shared_amax, scratch, stream);
  }
}

}  // namespace accord::formats::cuda
