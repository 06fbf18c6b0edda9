// y[i] = x[i] cos - x[i+half] sin;  y[i+half] = x[i+half] cos + x[i] sin, of every head of x [T, heads * 2 *
// half]. Two products and one sum in fp32, rounded once: the CPU's bits. A thread turns kWidth pairs of one
// head.
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/overlap.cuh"
#include "kernels/cuda/vector.cuh"
#include "kernels/rope/rope_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;

struct Heads {
  int64_t rows;
  int64_t heads;
  int64_t x_head;  // elements from one head to the next
  int64_t y_head;
};

template <class T, int kWidth>
__device__ inline void load_values(const T* p, float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    x[0] = to_float(p[0]);
  } else {
    gpu::unpack<T>(gpu::load16(p), x);
  }
}

template <class T, int kWidth>
__device__ inline void store_values(T* p, const float (&x)[kWidth]) {
  if constexpr (kWidth == 1) {
    p[0] = from_float<T>(x[0]);
  } else {
    gpu::store16(p, gpu::pack<T>(x));
  }
}

// kWidth pairs: a's with b's. Everything is read before something is written.
template <class T, int kWidth>
__device__ inline void turn(const T* a_values, const T* b_values, const RopeTableView& table, int64_t at,
                            T* first_out, T* second_out) {
  float a[kWidth];
  float b[kWidth];
  load_values<T>(a_values, a);
  load_values<T>(b_values, b);
  float first[kWidth];
  float second[kWidth];
#pragma unroll
  for (int j = 0; j < kWidth; ++j) {
    const float cos = table.cos[at + j];
    const float sin = table.sin[at + j];
    first[j] = a[j] * cos - b[j] * sin;
    second[j] = b[j] * cos + a[j] * sin;
  }
  store_values<T>(first_out, first);
  store_values<T>(second_out, second);
}

template <class T, int kWidth, bool kNeighbours>
__global__ void __launch_bounds__(kThreads)
    rope_kernel(const T* x, int64_t x_stride, Heads shape, const int32_t* positions, RopeTableView table,
                T* y, int64_t y_stride, const int32_t* y_rows) {
  static_assert(!kNeighbours || kWidth == 1);
  gpu::wait_for_previous();
  gpu::allow_next();
  const int64_t half = table.half;
  const int64_t per_head = half / kWidth;
  const int64_t per_row = shape.heads * per_head;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < shape.rows * per_row;
       i += step) {
    const int64_t t = i / per_row;
    const int64_t head = (i - t * per_row) / per_head;
    const int64_t c = (i - t * per_row - head * per_head) * kWidth;
    const T* in = x + t * x_stride + head * shape.x_head;
    T* out = y + (y_rows == nullptr ? t : y_rows[t]) * y_stride + head * shape.y_head + c;
    const int64_t at = positions[t] * half + c;
    turn<T, kWidth>(in + (kNeighbours ? 2 * c : c), in + (kNeighbours ? 2 * c + 1 : c + half), table, at, out,
                    out + half);
  }
}

// A row's queries, keys and values, one after the other: of the first two a thread turns kWidth pairs, of the
// last it copies as many elements.
struct CacheRows {
  const BF16 *q, *k, *v;
  BF16 *q_out, *k_cache, *v_cache;
  int64_t q_stride, k_stride, v_stride, q_out_stride, k_cache_stride, v_cache_stride;
  int64_t rows;
  int q_heads, kv_heads;
  const int32_t *positions, *to_rows;
};

__global__ void __launch_bounds__(kThreads) cache_kernel(const CacheRows r, RopeTableView table) {
  constexpr int kWidth = gpu::kVector<BF16>;
  gpu::wait_for_previous();
  gpu::allow_next();
  const int half = static_cast<int>(table.half);
  const int per_head = half / kWidth;
  const int turned = (r.q_heads + r.kv_heads) * per_head;
  const int per_row = turned + 2 * r.kv_heads * per_head;
  const int64_t step = static_cast<int64_t>(gridDim.x) * kThreads;
  for (int64_t i = static_cast<int64_t>(blockIdx.x) * kThreads + threadIdx.x; i < r.rows * per_row;
       i += step) {
    const int64_t t = i / per_row;
    const int item = static_cast<int>(i - t * per_row);
    if (item >= turned) {
      const int c = (item - turned) * kWidth;
      gpu::store16(r.v_cache + r.to_rows[t] * r.v_cache_stride + c, gpu::load16(r.v + t * r.v_stride + c));
      continue;
    }
    const int head = item / per_head;
    const int c = (item - head * per_head) * kWidth;
    const bool query = head < r.q_heads;
    const int column = (query ? head : head - r.q_heads) * 2 * half + c;
    const BF16* in = (query ? r.q + t * r.q_stride : r.k + t * r.k_stride) + column;
    BF16* out = (query ? r.q_out + t * r.q_out_stride : r.k_cache + r.to_rows[t] * r.k_cache_stride) + column;
    turn<BF16, kWidth>(in, in + half, table, static_cast<int64_t>(r.positions[t]) * half + c, out,
                       out + half);
  }
}

// The same behind the norms of heads. Sixteen threads own a head: thread j has elements j, j + 16, ..., which
// are both its lane of the norm's sum and whole pairs.
template <int kEach>
__global__ void __launch_bounds__(kThreads)
    normed_cache_kernel(const CacheRows r, const HeadNorms norms, RopeTableView table) {
  constexpr int kLanes = gpu::kSumLanes;
  constexpr int kPairs = kEach / 2;
  constexpr int kDim = kEach * kLanes;
  constexpr int64_t kAtOnce = kThreads / kLanes;
  gpu::wait_for_previous();
  gpu::allow_next();
  const int lane = static_cast<int>(threadIdx.x) % kLanes;
  const int per_row = r.q_heads + 2 * r.kv_heads;
  const int64_t total = r.rows * per_row;
  // Both halves of a warp stay together: beyond the end, the last head again, which is not stored.
  for (int64_t begin = blockIdx.x * kAtOnce; begin < total; begin += gridDim.x * kAtOnce) {
    const int64_t mine = begin + threadIdx.x / kLanes;
    const bool active = mine < total;
    const int64_t i = active ? mine : total - 1;
    const int64_t t = i / per_row;
    const int head = static_cast<int>(i - t * per_row);
    const bool query = head < r.q_heads;
    const bool key = !query && head < r.q_heads + r.kv_heads;
    const int its_head = query ? head : key ? head - r.q_heads : head - r.q_heads - r.kv_heads;
    const BF16* in = query ? r.q + t * r.q_stride : key ? r.k + t * r.k_stride : r.v + t * r.v_stride;
    const int64_t to_row = query ? t : r.to_rows[t];
    BF16* out = query ? r.q_out + to_row * r.q_out_stride
                : key ? r.k_cache + to_row * r.k_cache_stride
                      : r.v_cache + to_row * r.v_cache_stride;
    in += its_head * kDim + lane;
    out += its_head * kDim + lane;
    BF16 raw[kEach];
    float x[kEach];
    float sum = 0.0F;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      raw[j] = in[j * kLanes];
      x[j] = to_float(raw[j]);
    }
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      sum = __fmaf_rn(x[j], x[j], sum);
    }
    sum = gpu::fold_lanes_shuffled(sum);
    if (!active) {
      continue;
    }
    if (!query && !key) {
#pragma unroll
      for (int j = 0; j < kEach; ++j) {
        out[j * kLanes] = raw[j];
      }
      continue;
    }
    const float inv = 1.0F / sqrtf(sum / static_cast<float>(kDim) + norms.eps);
    float* const inv_rms = query ? norms.inv_rms_q : norms.inv_rms_k;
    if (inv_rms != nullptr && lane == 0) {
      inv_rms[t * (query ? r.q_heads : r.kv_heads) + its_head] = inv;
    }
    const BF16* const weight = (query ? norms.q : norms.k) + lane;
#pragma unroll
    for (int j = 0; j < kEach; ++j) {
      const BF16 rounded = from_float<BF16>(x[j] * inv);
      x[j] = to_float(from_float<BF16>(to_float(weight[j * kLanes]) * to_float(rounded)));
    }
    const int64_t at = static_cast<int64_t>(r.positions[t]) * (kDim / 2) + lane;
#pragma unroll
    for (int j = 0; j < kPairs; ++j) {
      const float cos = table.cos[at + j * kLanes];
      const float sin = table.sin[at + j * kLanes];
      const float a = x[j];
      const float b = x[j + kPairs];
      out[j * kLanes] = from_float<BF16>(a * cos - b * sin);
      out[(j + kPairs) * kLanes] = from_float<BF16>(b * cos + a * sin);
    }
  }
}

template <class T>
void launch(MatrixView x, const Heads& shape, bool neighbours, const int32_t* positions,
            const RopeTableView& table, MatrixView y, const int32_t* y_rows, StreamHandle stream) {
  constexpr int kWidth = gpu::kVector<T>;
  const auto aligned = [](const MatrixView& m, int64_t head) {
    constexpr int64_t kBytes = 16;
    const int64_t element = size_of(m.dtype);
    return reinterpret_cast<uintptr_t>(m.data) % kBytes == 0 && m.stride * element % kBytes == 0 &&
           head * element % kBytes == 0;
  };
  const bool vector =
      !neighbours && table.half % kWidth == 0 && aligned(x, shape.x_head) && aligned(y, shape.y_head);
  const int64_t pairs = shape.rows * shape.heads * table.half;
  const unsigned grid =
      gpu::strided_grid(gpu::ceil_div(pairs, kThreads * (vector ? kWidth : 1)), kBlocksPerSm);
  const auto run = [&](auto kernel) {
    gpu::launch_overlapped(kernel, grid, kThreads, 0, stream, static_cast<const T*>(x.data), x.stride, shape,
                           positions, table, static_cast<T*>(y.data), y.stride, y_rows);
  };
  if (neighbours) {
    run(rope_kernel<T, 1, true>);
  } else {
    vector ? run(rope_kernel<T, kWidth, false>) : run(rope_kernel<T, 1, false>);
  }
  check_launch("apply_rope");
}

}  // namespace

void apply_rope(MatrixView x, const int32_t* positions, const RopeTableView& table, MatrixView y,
                const int32_t* y_rows, StreamHandle stream) {
  const int64_t dim = 2 * table.half;
  require(x.cols == y.cols && x.cols % dim == 0, "x.cols == y.cols && x.cols % dim == 0");
  apply_rope_heads(x, {x.cols / dim, dim, dim, false}, positions, table, y, y_rows, stream);
}

void apply_rope_heads(MatrixView x, const RopeHeadsLayout& layout, const int32_t* positions,
                      const RopeTableView& table, MatrixView y, const int32_t* y_rows, StreamHandle stream) {
  require(x.dtype == y.dtype, "x.dtype == y.dtype");
  if (x.rows == 0 || layout.heads == 0 || table.half == 0) {
    return;
  }
  const Heads shape{x.rows, layout.heads, layout.x_stride, layout.y_stride};
  x.dtype == Dtype::kBF16 ? launch<BF16>(x, shape, layout.neighbours, positions, table, y, y_rows, stream)
                          : launch<float>(x, shape, layout.neighbours, positions, table, y, y_rows, stream);
}

bool normalizes_heads(int64_t head_dim) { return head_dim == 32 || head_dim == 64 || head_dim == 128; }

void rope_to_cache(const RopeToCache& args, const RopeTableView& table, StreamHandle stream) {
  const int64_t dim = 2 * table.half;
  const MatrixView all[] = {args.q, args.k, args.v, args.q_out, args.k_cache, args.v_cache};
  bool vector = table.half % gpu::kVector<BF16> == 0;
  for (const MatrixView& x : all) {
    require(x.dtype == Dtype::kBF16 && x.cols % dim == 0, "x.dtype == Dtype::kBF16 && x.cols % dim == 0");
    vector = vector && gpu::is_vectorizable(x);
  }
  require(args.q.cols == args.q_out.cols && args.k.cols == args.k_cache.cols &&
              args.v.cols == args.v_cache.cols && args.k.cols == args.v.cols,
          "q and q_out, and k, v and the caches' rows of one width");
  if (args.q.rows == 0) {
    return;
  }
  if (!vector && args.norms.q == nullptr) {
    apply_rope(args.q, args.positions, table, args.q_out, nullptr, stream);
    apply_rope(args.k, args.positions, table, args.k_cache, args.to_rows, stream);
    scatter_rows(args.v, args.to_rows, args.v_cache, stream);
    return;
  }
  const auto data = [](const MatrixView& x) { return static_cast<BF16*>(x.data); };
  const CacheRows rows{data(args.q),
                       data(args.k),
                       data(args.v),
                       data(args.q_out),
                       data(args.k_cache),
                       data(args.v_cache),
                       args.q.stride,
                       args.k.stride,
                       args.v.stride,
                       args.q_out.stride,
                       args.k_cache.stride,
                       args.v_cache.stride,
                       args.q.rows,
                       static_cast<int>(args.q.cols / dim),
                       static_cast<int>(args.k.cols / dim),
                       args.positions,
                       args.to_rows};
  if (args.norms.q != nullptr) {
    require(normalizes_heads(dim) && args.norms.k != nullptr, "heads that normalizes_heads() takes");
    const int64_t heads = args.q.rows * (args.q.cols + args.k.cols + args.v.cols) / dim;
    const unsigned grid = gpu::strided_grid(gpu::ceil_div(heads, kThreads / gpu::kSumLanes), kBlocksPerSm);
    const auto run = [&](auto kernel) {
      gpu::launch_overlapped(kernel, grid, kThreads, 0, stream, rows, args.norms, table);
    };
    dim == 32   ? run(normed_cache_kernel<2>)
    : dim == 64 ? run(normed_cache_kernel<4>)
                : run(normed_cache_kernel<8>);
    check_launch("rope_to_cache");
    return;
  }
  const int64_t work = args.q.rows * (args.q.cols / 2 + args.k.cols / 2 + args.v.cols) / gpu::kVector<BF16>;
  gpu::launch_overlapped(cache_kernel, gpu::strided_grid(gpu::ceil_div(work, kThreads), kBlocksPerSm),
                         kThreads, 0, stream, rows, table);
  check_launch("rope_to_cache");
}

}  // namespace accord::kernels::cuda
