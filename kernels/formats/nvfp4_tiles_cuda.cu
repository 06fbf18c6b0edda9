// NVFP4 in 16x16 tiles (nvfp4.hpp), one A: a thread holds 16 bytes of each of eight rows, four or eight
// threads a tile. Four over six: where the sums of the contract are needed, a warp works on a tile.
#include "kernels/cuda/overlap.cuh"
#include "kernels/formats/four_over_six.cuh"
#include "kernels/formats/nvfp4_scope.cuh"

namespace accord::formats::cuda {
namespace {

using gpu::Block16;
using gpu::kFullMask;
using gpu::kVector;

constexpr int kSquareThreads = 64;
constexpr int kTileRows = 8;  // in one thread
constexpr int kBlock = 16;

// The codes of one vector.
template <class T>
__device__ inline uint32_t cast_vector(const uint4& v, float multiplier) {
  float x[kVector<T>];
  gpu::unpack<T>(v, x);
  if constexpr (kVector<T> == 8) {
    return gpu::cast_e2m1(x, multiplier);
  } else {
    const float padded[8] = {x[0], x[1], x[2], x[3], 0.0F, 0.0F, 0.0F, 0.0F};
    return gpu::cast_e2m1(padded, multiplier);
  }
}

// The winning scale's codes of one tile by the sums of the contract: a lane has a row under one candidate,
// and then eight elements of a row. All lanes of the warp call it, with the same arguments.
template <class T>
__device__ inline void tile_by_sums(const T* x, int64_t stride, float tile_amax, const OuterScale& outer,
                                    bool absolute, uint8_t* q, uint8_t* scale, int64_t cols) {
  const int r = gpu::this_lane() % kBlock;
  const T* row = x + r * stride;
  const gpu::BlockScale candidate = gpu::candidate_scale(tile_amax, outer);
  float error = 0.0F;
#pragma unroll 1
  for (int i = 0; i < kBlock; ++i) {
    const float value = to_float(row[i]);
    const float rounded = gpu::round_e2m1(value * candidate.multiplier).value;
    error = error + gpu::error_of(rounded, value, candidate.value, outer, absolute);
  }
#pragma unroll
  for (int w = kBlock / 2; w > 0; w /= 2) {
    error = error + __shfl_down_sync(kFullMask, error, w, kBlock);
  }
  const int winner = gpu::winner_of(error);
  const float multiplier = __shfl_sync(kFullMask, candidate.multiplier, winner);
  const uint32_t code = __shfl_sync(kFullMask, candidate.code, winner);
  const int half = gpu::this_lane() / kBlock;
  float values[8];
#pragma unroll
  for (int i = 0; i < 8; ++i) {
    values[i] = to_float(row[half * 8 + i]);
  }
  *reinterpret_cast<uint32_t*>(q + r * (cols / 2) + half * 4) = gpu::cast_e2m1(values, multiplier);
  if (half == 0) {
    scale[r * (cols / kBlock)] = static_cast<uint8_t>(code);
  }
}

// The signs of a vector's codes, among other bits.
template <class T>
__device__ inline uint32_t vector_signs(const uint4& v) {
  if constexpr (kVector<T> == 8) {
    return gpu::signs_of(v);
  } else {
    const float padded[8] = {__uint_as_float(v.x), __uint_as_float(v.y), __uint_as_float(v.z),
                             __uint_as_float(v.w)};
    return gpu::e2m1_signs(padded);
  }
}

template <int kRows>
struct TileCodes {
  uint32_t six[kRows];
  uint32_t four[kRows];
  uint32_t signs[kRows];  // among other bits
  float error6;
  float error4;
};
template <class T, bool kAbsolute, bool kNudged, int kRows>
__device__ inline void try_tile(const uint4 (&v)[kRows], const gpu::ShortCandidates& c, TileCodes<kRows>& t) {
  gpu::TriedEight tried;
  tried.error6 = 0.0F;
  tried.error4 = 0.0F;
#pragma unroll
  for (int r = 0; r < kRows; ++r) {
    if constexpr (kVector<T> == 8) {
      gpu::try_both<kAbsolute, kNudged>(v[r], c, tried);
    } else {
      float x[kVector<T>];
      gpu::unpack<T>(v[r], x);
      gpu::try_both<kAbsolute, kNudged>(x, c, tried);
    }
    t.six[r] = gpu::codes_of(tried.six);
    t.four[r] = gpu::codes_of(tried.four);
    t.signs[r] = vector_signs<T>(v[r]);
  }
  t.error6 = tried.error6;
  t.error4 = tried.error4;
#pragma unroll
  for (int offset = kBlock / kVector<T> * kBlock / kRows / 2; offset > 0; offset /= 2) {
    t.error6 = t.error6 + __shfl_xor_sync(kFullMask, t.error6, offset);
    t.error4 = t.error4 + __shfl_xor_sync(kFullMask, t.error4, offset);
  }
}

// What a thread has of 16x16 tiles: 16 bytes of each of kRows rows.
template <class T, int kRows>
struct TilePart {
  static constexpr int kAcross = kBlock / kVector<T>;        // threads of a row of a tile
  static constexpr int kLanes = kAcross * (kBlock / kRows);  // of a tile

  uint4 v[kRows];
  int64_t tile_row;
  int64_t tile_col;
  bool active;

  __device__ static int lane() { return static_cast<int>(threadIdx.x) % kLanes; }
  __device__ int64_t row() const { return tile_row + lane() / kAcross * kRows; }
  __device__ int64_t col() const { return tile_col + lane() % kAcross * kVector<T>; }

  // Of the tile this thread has in a block's share. Tiles are fewer than 2^31, a row of x than 2^32 elements.
  template <bool kAligned>
  __device__ void load(const T* x, int64_t stride, int64_t rows, int64_t cols, int share) {
    const auto per_row = static_cast<uint32_t>(cols / kBlock);
    const uint32_t tile = static_cast<uint32_t>(share) * (kSquareThreads / kLanes) +
                          static_cast<uint32_t>(threadIdx.x) / kLanes;
    active = tile < static_cast<uint32_t>(rows / kBlock) * per_row;
    const uint32_t down = active ? tile / per_row : 0;
    tile_row = static_cast<int64_t>(down) * kBlock;
    tile_col = static_cast<int64_t>(active ? tile - down * per_row : 0) * kBlock;
    const T* first = x + row() * stride + col();
    const auto step = static_cast<uint32_t>(stride);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      v[r] = gpu::load_vector<T, kAligned>(first + r * static_cast<uint64_t>(step));
    }
  }

  // `codes(r)` are those of this thread's part of a row.
  template <class Codes>
  __device__ void store(uint8_t* q, uint8_t* scale, int64_t cols, uint32_t code, const Codes& codes) const {
    uint8_t* q_first = q + static_cast<uint64_t>(row() * cols + col()) / 2;
    const auto q_step = static_cast<uint32_t>(cols / 2);
#pragma unroll
    for (int r = 0; r < kRows; ++r) {
      uint8_t* q_row = q_first + r * static_cast<uint64_t>(q_step);
      if constexpr (kVector<T> == 8) {
        *reinterpret_cast<uint32_t*>(q_row) = codes(r);
      } else {
        *reinterpret_cast<uint16_t*>(q_row) = static_cast<uint16_t>(codes(r));
      }
    }
    // The threads of a row share its scales out.
    const auto scale_step = static_cast<uint32_t>(cols / kBlock);
    uint8_t* scale_first =
        scale + static_cast<uint64_t>((row() + lane() % kAcross) * scale_step + tile_col / kBlock);
#pragma unroll
    for (int r = 0; r < kRows; r += kAcross) {
      scale_first[r * static_cast<uint64_t>(scale_step)] = static_cast<uint8_t>(code);
    }
  }
};

// 16x16 tiles.
template <class T, bool kFourOverSix, bool kAligned>
__global__ void __launch_bounds__(kSquareThreads, kFourOverSix ? 10 : 16)
    square_kernel(const T* x, int64_t stride, int64_t rows, int64_t cols, Scope scope, uint8_t* q,
                  uint8_t* scale) {
  using Part = TilePart<T, kTileRows>;
  constexpr int kRows = kTileRows;
  // From the end, which the amax pass has just brought into the cache.
  const auto share = static_cast<int>(gridDim.x - 1 - blockIdx.x);
  if (!scope.after_amax) {
    gpu::wait_for_previous();
  }
  Part part;
  part.template load<kAligned>(x, stride, rows, cols, share);
  gpu::wait_for_previous();  // a second time it does not wait
  gpu::allow_next();
  const float amax = max_of<kSquareThreads>(scope.maxima, scope.count);
  const gpu::BlockScope<kFourOverSix> its(make_outer_scale(amax, scope.range), true);
  if (blockIdx.x == 0 && threadIdx.x == 0) {
    scope.amax[0] = amax;
  }
  const auto run = [&]<gpu::Way kWay>() {
    const float tile_amax = gpu::lane_max(gpu::amax_of(part.v, T()), Part::kLanes);
    if constexpr (kWay == gpu::Way::kPlain) {
      const gpu::BlockScale s = gpu::nvfp4_block_scale(tile_amax * its.outer.t, its.outer);
      if (part.active) {
        part.store(q, scale, cols, s.code, [&](int r) { return cast_vector<T>(part.v[r], s.multiplier); });
      }
    } else {
      constexpr bool kNudged = gpu::is_nudged(kWay);
      constexpr bool kAbsolute = gpu::is_absolute(kWay);
      const gpu::ShortCandidates c = gpu::short_candidates<sizeof(T) == 2>(tile_amax, its.brief);
      TileCodes<kRows> codes;
      try_tile<T, kAbsolute, kNudged>(part.v, c, codes);
      const Choice choice = gpu::choose<kBlock * kBlock, kAbsolute>(c, codes.error6, codes.error4);
      const bool sure = c.ordinary && choice.sure;
      if (part.active && sure) {
        part.store(q, scale, cols, c.code(choice.four), [&](int r) {
          return (choice.four ? codes.four[r] : codes.six[r]) | (codes.signs[r] & gpu::kSignBits);
        });
      }
      uint32_t pending = __ballot_sync(kFullMask, part.active && !sure && Part::lane() == 0);
      for (; pending != 0; pending &= pending - 1) {
        const int from = __ffs(static_cast<int>(pending)) - 1;
        const int64_t row = __shfl_sync(kFullMask, part.tile_row, from);
        const int64_t col = __shfl_sync(kFullMask, part.tile_col, from);
        const int64_t at = row * cols + col;
        tile_by_sums<T>(x + row * stride + col, stride, __shfl_sync(kFullMask, tile_amax, from), its.outer,
                        kAbsolute, q + at / 2, scale + at / kBlock, cols);
      }
    }
  };
  gpu::with_way<T, kFourOverSix, sizeof(T) == 2>(its, scope.absolute, run);
}

}  // namespace

template <class T, bool kFourOverSix>
void quantize_tiles(MatrixView x, const Scope& scope, const Nvfp4Output& out, StreamHandle stream) {
  const auto* data = static_cast<const T*>(x.data);
  require(x.stride < int64_t{1} << 32 && x.rows * x.cols / (kBlock * kBlock) < int64_t{1} << 31,
          "x.stride < 2^32 && tiles < 2^31");
  const auto grid =
      static_cast<unsigned>(gpu::ceil_div(x.rows / kTileRows * (x.cols / kVector<T>), kSquareThreads));
  const auto launch = [&](auto kernel) {
    gpu::launch_overlapped(kernel, grid, kSquareThreads, 0, stream, data, x.stride, x.rows, x.cols, scope,
                           out.q, out.scale);
  };
  if (gpu::is_vectorizable(x)) {
    launch(square_kernel<T, kFourOverSix, true>);
  } else {
    launch(square_kernel<T, kFourOverSix, false>);
  }
  check_launch("quantize_nvfp4");
}

template void quantize_tiles<float, false>(MatrixView, const Scope&, const Nvfp4Output&, StreamHandle);
template void quantize_tiles<float, true>(MatrixView, const Scope&, const Nvfp4Output&, StreamHandle);
template void quantize_tiles<BF16, false>(MatrixView, const Scope&, const Nvfp4Output&, StreamHandle);
template void quantize_tiles<BF16, true>(MatrixView, const Scope&, const Nvfp4Output&, StreamHandle);

}  // namespace accord::formats::cuda
