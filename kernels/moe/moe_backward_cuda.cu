// combine   ddown[r] = weight dy[t], rounded once;  dweight[t,k] = sum over H of dy[t] down[r], r the sorted
// row
//           of token t and slot k. A warp a row; its lanes' sums meet in a tree.
// dispatch  dx[t] += dx_rows[row(t,k)], k ascending.
// router    dlogits from dweights [T,K], softmax or sigmoid scores [T,E] (moe_backward.hpp). A warp a token,
//           sums over k ascending, the bits of moe_backward.cpp before the rounding to bf16.
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/moe/moe_backward_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kBlocksPerSm = 8;

constexpr int kUnits = 4;  // of a row, loaded before they are used

struct Combine {
  const float* dy;
  const BF16* down;
  int64_t down_stride;
  const int32_t* tokens;
  const int32_t* slots;
  const float* weights;
  int64_t num_slots;
  int64_t rows;
  int64_t hidden;
};

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    combine_backward_kernel(Combine args, BF16* ddown, float* dweights) {
  const int64_t r = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (r >= args.rows) {
    return;
  }
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int64_t token = args.tokens[r];
  const int64_t slot = token * args.num_slots + args.slots[r];
  const float weight = args.weights[slot];
  const float* dy = args.dy + token * args.hidden;
  const BF16* down = args.down + r * args.down_stride;
  BF16* out = ddown + r * args.hidden;
  float sum = 0.0F;
  constexpr int64_t kStep = kWarp * kWidth;
  for (int64_t first = static_cast<int64_t>(lane) * kWidth; first < args.hidden; first += kUnits * kStep) {
    float d[kUnits][kWidth];
    float x[kUnits][kWidth];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int64_t h = first + u * kStep;
      if (h >= args.hidden) {
        continue;
      }
      gpu::load_floats(dy + h, d[u]);
      if constexpr (kWidth == 1) {
        x[u][0] = to_float(down[h]);
      } else {
        gpu::unpack<BF16>(gpu::load_streaming(down + h), x[u]);
      }
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int64_t h = first + u * kStep;
      if (h >= args.hidden) {
        continue;
      }
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        sum = __fmaf_rn(d[u][j], x[u][j], sum);
        d[u][j] = d[u][j] * weight;
      }
      gpu::store_rounded(out + h, d[u]);
    }
  }
  sum = gpu::warp_sum(sum);
  if (lane == 0) {
    dweights[slot] = sum;
  }
}

constexpr int kAhead = 8;  // slots loaded before they are added

template <int kWidth>
__global__ void __launch_bounds__(kThreads)
    dispatch_backward_kernel(const float* dx_rows, int64_t hidden, const int32_t* slot_rows, int num_slots,
                             float* dx, uint32_t count, uint32_t per_row) {
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    const uint32_t t = i / per_row;
    const float* in = dx_rows + static_cast<int64_t>(i - t * per_row) * kWidth;
    const int32_t* rows = slot_rows + static_cast<int64_t>(t) * num_slots;
    float* out = dx + static_cast<int64_t>(i) * kWidth;
    float sum[kWidth];
    gpu::load_floats(out, sum);
    for (int first = 0; first < num_slots; first += kAhead) {
      float v[kAhead][kWidth];
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (first + j < num_slots) {
          gpu::load_floats(in + rows[first + j] * hidden, v[j]);
        }
      }
#pragma unroll
      for (int j = 0; j < kAhead; ++j) {
        if (first + j < num_slots) {
#pragma unroll
          for (int c = 0; c < kWidth; ++c) {
            sum[c] = sum[c] + v[j][c];
          }
        }
      }
    }
    gpu::store_rounded(out, sum);
  }
}

// A slot of a token: its expert, score and gradient, and what it adds to its expert's logit.
struct Slot {
  int32_t id;
  float score;
  float dweight;
  float term;
};

// Sums over the slots in ascending order, the same in every lane.
__device__ inline float sum_scores(const Slot* slots, int k) {
  float sum = 0.0F;
  for (int s = 0; s < k; ++s) {
    sum = sum + slots[s].score;
  }
  return sum;
}
__device__ inline float sum_products(const Slot* slots, int k) {
  float sum = 0.0F;
  for (int s = 0; s < k; ++s) {
    sum = sum + slots[s].dweight * slots[s].score;
  }
  return sum;
}

__global__ void __launch_bounds__(kThreads)
    router_backward_kernel(RouterRule rule, const float* scores, const int32_t* ids, const float* dweights,
                           int64_t tokens, BF16* dlogits) {
  extern __shared__ Slot shared[];
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int experts = static_cast<int>(rule.experts);
  const int k = static_cast<int>(rule.k);
  const int64_t token = static_cast<int64_t>(blockIdx.x) * kWarps + warp;
  if (token >= tokens) {
    return;
  }
  const float* in = scores + token * experts;
  Slot* slots = shared + static_cast<int64_t>(warp) * k;
  for (int s = lane; s < k; s += kWarp) {
    const int32_t id = ids[token * k + s];
    slots[s] = {id, in[id], dweights[token * k + s], 0.0F};
  }
  __syncwarp();
  const bool softmax = rule.scoring == RouterScoring::kSoftmax;
  const float sum = sum_scores(slots, k);
  const float inner = sum_products(slots, k);
  const float divisor = rule.normalize ? softmax ? sum : sum + kRouterEpsilon : 1.0F;
  const float shift = rule.normalize ? inner / divisor : 0.0F;
  const float scale = 1.0F / divisor;
  for (int s = lane; s < k; s += kWarp) {
    const float p = slots[s].score;
    const float above = slots[s].dweight - shift;
    slots[s].term = softmax ? p * (above * scale) : rule.factor * above / divisor * (p * (1.0F - p));
  }
  __syncwarp();
  float mean = 0.0F;
  if (softmax) {
    for (int s = 0; s < k; ++s) {
      mean = mean + slots[s].term;
    }
  }
  for (int e = lane; e < experts; e += kWarp) {
    float value = softmax ? -in[e] * mean : 0.0F;
    for (int s = 0; s < k; ++s) {
      if (slots[s].id == e) {
        value = softmax ? value + slots[s].term : slots[s].term;
      }
    }
    dlogits[token * experts + e] = from_float<BF16>(value);
  }
}

}  // namespace

void moe_combine_backward(const float* dy, int64_t hidden, MatrixView down, const int32_t* tokens,
                          const int32_t* slots, const float* weights, int64_t num_slots, BF16* ddown,
                          float* dweights, StreamHandle stream) {
  require(down.dtype == Dtype::kBF16 && down.cols == hidden, "down is bf16 [R, hidden]");
  if (down.rows == 0) {
    return;
  }
  const Combine args{
      dy,    static_cast<const BF16*>(down.data), down.stride, tokens, slots, weights, num_slots, down.rows,
      hidden};
  const bool vector = gpu::is_vectorizable(down) && gpu::is_aligned16(dy) && gpu::is_aligned16(ddown);
  const auto grid = static_cast<unsigned>(gpu::ceil_div(down.rows, kWarps));
  if (vector) {
    combine_backward_kernel<gpu::kVector<BF16>><<<grid, kThreads, 0, stream>>>(args, ddown, dweights);
  } else {
    combine_backward_kernel<1><<<grid, kThreads, 0, stream>>>(args, ddown, dweights);
  }
  check_launch("moe_combine_backward");
}

void moe_dispatch_backward(const float* dx_rows, int64_t hidden, const int32_t* slot_rows, int64_t num_slots,
                           int64_t tokens, float* dx, StreamHandle stream) {
  if (tokens == 0 || hidden == 0 || num_slots == 0) {
    return;
  }
  constexpr int kWide = gpu::kVector<float>;
  const bool vector = hidden % kWide == 0 && gpu::is_aligned16(dx_rows) && gpu::is_aligned16(dx);
  const int64_t per_row = hidden / (vector ? kWide : 1);
  const int64_t count = tokens * per_row;
  require(count < INT64_C(1) << 31, "vectors of a launch < 2^31");
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(count, kThreads), kBlocksPerSm);
  const auto run = [&](auto kernel) {
    kernel<<<grid, kThreads, 0, stream>>>(dx_rows, hidden, slot_rows, static_cast<int>(num_slots), dx,
                                          static_cast<uint32_t>(count), static_cast<uint32_t>(per_row));
  };
  vector ? run(dispatch_backward_kernel<kWide>) : run(dispatch_backward_kernel<1>);
  check_launch("moe_dispatch_backward");
}

void router_backward(const RouterRule& rule, const float* scores, const int32_t* ids, const float* dweights,
                     int64_t tokens, BF16* dlogits, StreamHandle stream) {
  require(rule.k <= rule.experts && rule.k <= 256, "rule.k <= rule.experts && rule.k <= 256");
  if (tokens == 0) {
    return;
  }
  const auto bytes = static_cast<size_t>(kWarps * rule.k) * sizeof(Slot);
  const auto grid = static_cast<unsigned>(gpu::ceil_div(tokens, kWarps));
  router_backward_kernel<<<grid, kThreads, bytes, stream>>>(rule, scores, ids, dweights, tokens, dlogits);
  check_launch("router_backward");
}

}  // namespace accord::kernels::cuda
