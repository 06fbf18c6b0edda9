// AdamW over fp32 masters, gradients and two moments (adamw.hpp), with the start of the export in the same
// pass: bf16(master), or MXFP8 of it, its largest magnitude, and how many values were flushed or saturated.
//   four elements a thread, 16-byte accesses; a block of MXFP8 lies in eight neighbouring lanes
//   (one element a thread and a block in a warp, where memory is not aligned)
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/adamw/adamw_element.hpp"
#include "kernels/formats/quantize.cuh"

namespace accord::kernels::cuda {
namespace {

using gpu::Element;
using gpu::kFullMask;
using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int kBlock = 32;  // of MXFP8
constexpr int kWide = 4;

enum class To { kNothing, kBf16, kMxfp8 };

struct Update {
  float* master;
  const float* gradient;
  float* exp_avg;
  float* exp_avg_sq;
  int64_t count;
  BF16* bf16;
  uint8_t* q;
  uint8_t* scale;
  ExportCounts* counts;
};

// What a thread saw.
struct Seen {
  uint32_t largest = 0;
  uint32_t flushed = 0;
  uint32_t saturated = 0;
};

template <int kWidth>
__device__ inline void load(const float* p, float (&x)[kWidth]) {
  if constexpr (kWidth == kWide) {
    gpu::unpack<float>(gpu::load_streaming(p), x);
  } else {
    x[0] = *p;
  }
}
template <int kWidth>
__device__ inline void store(float* p, const float (&x)[kWidth]) {
  if constexpr (kWidth == kWide) {
    gpu::store16(p, gpu::pack<float>(x));
  } else {
    *p = x[0];
  }
}

using Count = unsigned long long;  // NOLINT: what CUDA's 64-bit atomics take

// What the block's threads saw, into *counts.
__device__ inline void add_counts(Seen seen, ExportCounts* counts) {
  __shared__ Seen shared[kThreads / kWarp];
  seen.largest = __reduce_max_sync(kFullMask, seen.largest);
  seen.flushed = __reduce_add_sync(kFullMask, seen.flushed);
  seen.saturated = __reduce_add_sync(kFullMask, seen.saturated);
  if (threadIdx.x % kWarp == 0) {
    shared[threadIdx.x / kWarp] = seen;
  }
  __syncthreads();
  if (threadIdx.x == 0) {
    for (int i = 1; i < kThreads / kWarp; ++i) {
      seen.largest = max(seen.largest, shared[i].largest);
      seen.flushed += shared[i].flushed;
      seen.saturated += shared[i].saturated;
    }
    atomicMax(&counts->largest_bits, seen.largest);
    if (seen.flushed != 0) {
      atomicAdd(reinterpret_cast<Count*>(&counts->flushed), static_cast<Count>(seen.flushed));
    }
    if (seen.saturated != 0) {
      atomicAdd(reinterpret_cast<Count*>(&counts->saturated), static_cast<Count>(seen.saturated));
    }
  }
}

__device__ inline uint32_t magnitude_bits(float x) { return __float_as_uint(x) & 0x7fffffffu; }

// Of bf16(master): the lane's codes, and the scale from the first lane of a block.
template <bool kCount, int kWidth>
__device__ inline void export_mxfp8(const float (&w)[kWidth], const Update& u, int64_t at, bool active,
                                    Seen& seen) {
  float x[kWidth];
  float amax = 0.0F;
#pragma unroll
  for (int i = 0; i < kWidth; ++i) {
    x[i] = to_float(to_bf16(w[i]));
    amax = fmaxf(amax, fabsf(x[i]));  // ignores NaN
  }
  const uint32_t e = gpu::mxfp8_exponent<Element::kE4M3>(gpu::lane_max(amax, kBlock / kWidth));
  const float r = gpu::mxfp8_reciprocal(e);
  if (!active) {
    return;
  }
  uint32_t codes = 0;
  if constexpr (kWidth == kWide) {
    codes = gpu::cast8_four<Element::kE4M3>(x[0] * r, x[1] * r, x[2] * r, x[3] * r);
    *reinterpret_cast<uint32_t*>(u.q + at) = codes;
  } else {
    codes = gpu::cast8_pair<Element::kE4M3>(x[0] * r, 0.0F);
    u.q[at] = static_cast<uint8_t>(codes);
  }
  if constexpr (kCount) {
#pragma unroll
    for (int i = 0; i < kWidth; ++i) {
      seen.saturated += fabsf(x[i] * r) > formats::kE4M3Max ? 1U : 0U;
      seen.flushed += x[i] != 0.0F && (codes >> (8 * i) & 0x7fU) == 0 ? 1U : 0U;
    }
  }
  if (at % kBlock == 0) {
    u.scale[at / kBlock] = static_cast<uint8_t>(e);
  }
}

// All threads of a block go round equally often, as blocks of MXFP8 are exchanged between lanes.
template <To kTo, bool kCount, int kWidth>
__global__ void __launch_bounds__(kThreads) update_kernel(const Update u, const AdamwFactors factors) {
  const int64_t units = u.count / kWidth;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  Seen seen;
  for (int64_t first = static_cast<int64_t>(blockIdx.x) * kThreads; first < units; first += step) {
    const int64_t at = (first + threadIdx.x) * kWidth;
    const bool active = first + threadIdx.x < units;
    float w[kWidth] = {};
    if (active) {
      float g[kWidth];
      float m[kWidth];
      float v[kWidth];
      load(u.master + at, w);
      load(u.gradient + at, g);
      load(u.exp_avg + at, m);
      load(u.exp_avg_sq + at, v);
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        adamw_element(w[i], g[i], m[i], v[i], factors);
      }
      store(u.master + at, w);
      store(u.exp_avg + at, m);
      store(u.exp_avg_sq + at, v);
    }
    if constexpr (kTo == To::kBf16) {
      if (active) {
        if constexpr (kWidth == kWide) {
          *reinterpret_cast<uint2*>(u.bf16 + at) = {gpu::pack_bf16(w[0], w[1]), gpu::pack_bf16(w[2], w[3])};
        } else {
          u.bf16[at] = to_bf16(w[0]);
        }
      }
    }
    if constexpr (kTo == To::kMxfp8) {
      export_mxfp8<kCount>(w, u, at, active, seen);
    }
    if constexpr (kCount) {
#pragma unroll
      for (int i = 0; i < kWidth; ++i) {
        const uint32_t magnitude = magnitude_bits(w[i]);
        seen.largest = max(seen.largest, magnitude);
        seen.flushed += kernels::flushed_by_bf16(magnitude) ? 1U : 0U;
      }
    }
  }
  if constexpr (kCount) {
    add_counts(seen, u.counts);
  }
}

template <To kTo, bool kCount, int kWidth>
void launch(const Update& u, const AdamwFactors& factors, StreamHandle stream) {
  if (u.count < kWidth) {
    return;
  }
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(u.count / kWidth, kThreads), kBlocksPerSm);
  update_kernel<kTo, kCount, kWidth><<<grid, kThreads, 0, stream>>>(u, factors);
  check_launch("adamw");
}

// What does not fill a thread's four elements comes last; MXFP8 has nothing of it.
template <To kTo, bool kCount>
void update(const Update& u, const AdamwFactors& factors, StreamHandle stream) {
  const auto address = [](const void* p) { return reinterpret_cast<uintptr_t>(p); };
  const bool aligned =
      (address(u.master) | address(u.gradient) | address(u.exp_avg) | address(u.exp_avg_sq)) % 16 == 0 &&
      address(u.bf16) % 8 == 0 && address(u.q) % 4 == 0;
  if (!aligned) {
    launch<kTo, kCount, 1>(u, factors, stream);
    return;
  }
  launch<kTo, kCount, kWide>(u, factors, stream);
  if constexpr (kTo != To::kMxfp8) {
    const int64_t done = u.count / kWide * kWide;
    Update rest = u;
    rest.master += done;
    rest.gradient += done;
    rest.exp_avg += done;
    rest.exp_avg_sq += done;
    rest.count -= done;
    if constexpr (kTo == To::kBf16) {
      rest.bf16 += done;
    }
    launch<kTo, kCount, 1>(rest, factors, stream);
  }
}

}  // namespace

void adamw(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, int64_t count,
           const AdamwFactors& factors, StreamHandle stream) {
  update<To::kNothing, false>(
      {master, gradient, exp_avg, exp_avg_sq, count, nullptr, nullptr, nullptr, nullptr}, factors, stream);
}

void adamw_export(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq,
                  const AdamwExport& exported, const AdamwFactors& factors, StreamHandle stream) {
  const AdamwExport& e = exported;
  const bool mxfp8 = e.mxfp8 != nullptr;
  require(!(mxfp8 && e.bf16 != nullptr), "one of bf16 and mxfp8");
  require(!mxfp8 || (e.mxfp8_scales != nullptr && e.cols % kBlock == 0),
          "mxfp8_scales != nullptr && cols % 32 == 0");
  const Update u{master, gradient, exp_avg,        exp_avg_sq, e.rows * e.cols,
                 e.bf16, e.mxfp8,  e.mxfp8_scales, e.counts};
  const auto to = [&]<To kTo>() {
    e.counts == nullptr ? update<kTo, false>(u, factors, stream) : update<kTo, true>(u, factors, stream);
  };
  if (mxfp8) {
    to.template operator()<To::kMxfp8>();
  } else if (e.bf16 != nullptr) {
    to.template operator()<To::kBf16>();
  } else {
    to.template operator()<To::kNothing>();
  }
}

}  // namespace accord::kernels::cuda
