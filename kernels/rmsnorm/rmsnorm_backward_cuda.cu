// g = dy * weight;  dx = inv g - x inv^3 / H sum(g x);  dweight += sum over rows of dy x inv. x [R,H] bf16.
// Blocks take chunks of rows, so many that the partial sums of dweight stay small; a second kernel adds them
// up in ascending order. A row lies in the registers of the warps of a group, as do the group's sums of
// dweight.
//
// Orders, by shape alone: sum(g x) over a thread's elements, then across lanes, then warps; dweight over a
// group's rows, then groups, then chunks.
#include "kernels/cuda/lanes.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/rmsnorm/rmsnorm_backward_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::kWarp;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
constexpr int kWide = gpu::kVector<BF16>;
constexpr int kMaxUnits = 4;  // a thread's vectors of a row
constexpr int kMaxWidth = kThreads * kMaxUnits * kWide;
constexpr int64_t kMaxChunks = 256;
constexpr int64_t kMinChunkRows = kWarps;

struct Rows {
  const BF16* x;
  int64_t x_stride;
  const float* inv_rms;
  const BF16* weight;
  const float* dy;
  int64_t dx_stride;
  float* partial;  // [chunks, width]
  int64_t rows;
  int64_t chunk_rows;
  int width;
};

int64_t chunk_rows_of(int64_t rows) {
  const int64_t even = gpu::ceil_div(rows, kMaxChunks);
  return even < kMinChunkRows ? kMinChunkRows : even;
}

__device__ inline void group_barrier(int group, int threads) {
  asm volatile("bar.sync %0, %1;" ::"r"(group + 1), "r"(threads) : "memory");
}

// A copy of 16 bytes that needs no register; the thread sees it after wait_copies.
__device__ inline void copy_ahead(uint4* shared, const void* global) {
  asm volatile("cp.async.cg.shared.global [%0], [%1], 16;" ::"r"(
                   static_cast<uint32_t>(__cvta_generic_to_shared(shared))),
               "l"(global)
               : "memory");
}
__device__ inline void wait_copies() { asm volatile("cp.async.wait_all;" ::: "memory"); }

// One block a chunk; kWarps / group_warps groups, whose rows alternate.
template <class T, int kUnits, bool kAccumulate>
__global__ void __launch_bounds__(kThreads, 2) chunk_kernel(Rows args, T* dx, int group_warps) {
  __shared__ float warp_sums[2][kWarps];
  // While rows pass, a thread's vectors of dx, in halves; then each group's sums of its columns.
  __shared__ uint4 buffer[2 * kUnits * kThreads];
  auto* column_sums = reinterpret_cast<float*>(buffer);
  const int warp = static_cast<int>(threadIdx.x) / kWarp;
  const int lane = static_cast<int>(threadIdx.x) % kWarp;
  const int group = warp / group_warps;
  const int groups = kWarps / group_warps;
  const int group_threads = group_warps * kWarp;
  const int first_vector = static_cast<int>(threadIdx.x) - group * group_threads;
  const int vectors = args.width / kWide;
  const auto width = static_cast<float>(args.width);

  uint4 weight[kUnits];
  float dweight[kUnits][kWide];
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int v = first_vector + u * group_threads;
    weight[u] = v < vectors ? gpu::load16(args.weight + v * kWide) : uint4{};
#pragma unroll
    for (int j = 0; j < kWide; ++j) {
      dweight[u][j] = 0.0F;
    }
  }

  const int64_t begin = blockIdx.x * args.chunk_rows;
  const int64_t end = begin + args.chunk_rows < args.rows ? begin + args.chunk_rows : args.rows;
  int parity = 0;
  for (int64_t r = begin + group; r < end; r += groups, parity ^= 1) {
    uint4 x[kUnits];
    float dy[kUnits][kWide];
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      const int v = first_vector + u * group_threads;
      if (v < vectors) {
        x[u] = gpu::load16(args.x + r * args.x_stride + v * kWide);
        gpu::load_floats(args.dy + r * args.width + v * kWide, dy[u]);
        if constexpr (kAccumulate) {
#pragma unroll
          for (int half = 0; half < 2; ++half) {
            copy_ahead(&buffer[(2 * u + half) * kThreads + threadIdx.x],
                       dx + r * args.dx_stride + v * kWide + half * (kWide / 2));
          }
        }
      } else {
        x[u] = uint4{};
#pragma unroll
        for (int j = 0; j < kWide; ++j) {
          dy[u][j] = 0.0F;
        }
      }
    }
    const float inv = args.inv_rms[r];
    float sum = 0.0F;
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      float a[kWide];
      float w[kWide];
      gpu::unpack<BF16>(x[u], a);
      gpu::unpack<BF16>(weight[u], w);
      float unit = 0.0F;
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        unit = __fmaf_rn(dy[u][j] * w[j], a[j], unit);
      }
      sum = sum + unit;
    }
    sum = gpu::warp_sum(sum);
    if (group_warps > 1) {
      // A warp writes to the same place again only after the next row's barrier, when all have read it.
      if (lane == 0) {
        warp_sums[parity][warp] = sum;
      }
      group_barrier(group, group_threads);
      sum = 0.0F;
      for (int i = 0; i < group_warps; ++i) {
        sum = sum + warp_sums[parity][group * group_warps + i];
      }
    }
    const float slope = sum * inv * inv * inv / width;
    if constexpr (kAccumulate) {
      wait_copies();
    }
#pragma unroll
    for (int u = 0; u < kUnits; ++u) {
      // Computes dy * w again below: kept for the whole row it would not fit into registers.
      asm volatile("" : "+r"(weight[u].x), "+r"(weight[u].y), "+r"(weight[u].z), "+r"(weight[u].w));
      const int v = first_vector + u * group_threads;
      float a[kWide];
      float w[kWide];
      gpu::unpack<BF16>(x[u], a);
      gpu::unpack<BF16>(weight[u], w);
      float value[kWide];
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        dweight[u][j] = __fmaf_rn(dy[u][j], a[j] * inv, dweight[u][j]);
        value[j] = inv * (dy[u][j] * w[j]) - a[j] * slope;
      }
      if (v >= vectors) {
        continue;
      }
      if constexpr (kAccumulate) {
#pragma unroll
        for (int half = 0; half < 2; ++half) {
          const uint4 before = buffer[(2 * u + half) * kThreads + threadIdx.x];
#pragma unroll
          for (int j = 0; j < kWide / 2; ++j) {
            float& total = value[half * (kWide / 2) + j];
            total = __uint_as_float(gpu::word(before, j)) + total;
          }
        }
      }
      gpu::store_rounded(dx + r * args.dx_stride + v * kWide, value);
    }
  }

  __syncthreads();  // the buffer changes its use
  // [groups][kUnits * group_threads] vectors; those past the width are zeros.
  const int group_vectors = kUnits * group_threads;
#pragma unroll
  for (int u = 0; u < kUnits; ++u) {
    const int v = group * group_vectors + first_vector + u * group_threads;
    gpu::store_rounded(column_sums + v * kWide, dweight[u]);
  }
  __syncthreads();
  float* partial = args.partial + static_cast<int64_t>(blockIdx.x) * args.width;
  for (int v = static_cast<int>(threadIdx.x); v < vectors; v += kThreads) {
    float total[kWide];
    gpu::load_floats(column_sums + v * kWide, total);
    for (int g = 1; g < groups; ++g) {
      float sums[kWide];
      gpu::load_floats(column_sums + (g * group_vectors + v) * kWide, sums);
#pragma unroll
      for (int j = 0; j < kWide; ++j) {
        total[j] = total[j] + sums[j];
      }
    }
    gpu::store_rounded(partial + v * kWide, total);
  }
}

// Rows of any width and alignment, one block a chunk; a thread's columns are its own.
template <class T>
__global__ void __launch_bounds__(kThreads) any_chunk_kernel(Rows args, T* dx, bool accumulate) {
  __shared__ float warp_sums[kWarps];
  const int64_t begin = blockIdx.x * args.chunk_rows;
  const int64_t end = begin + args.chunk_rows < args.rows ? begin + args.chunk_rows : args.rows;
  float* partial = args.partial + static_cast<int64_t>(blockIdx.x) * args.width;
  for (int64_t r = begin; r < end; ++r) {
    const BF16* x = args.x + r * args.x_stride;
    const float* dy = args.dy + r * args.width;
    T* out = dx + r * args.dx_stride;
    float sum = 0.0F;
    for (int h = static_cast<int>(threadIdx.x); h < args.width; h += kThreads) {
      sum = __fmaf_rn(dy[h] * to_float(args.weight[h]), to_float(x[h]), sum);
    }
    sum = gpu::warp_sum(sum);
    if (threadIdx.x % kWarp == 0) {
      warp_sums[threadIdx.x / kWarp] = sum;
    }
    __syncthreads();
    sum = 0.0F;
    for (int i = 0; i < kWarps; ++i) {
      sum = sum + warp_sums[i];
    }
    __syncthreads();
    const float inv = args.inv_rms[r];
    const float slope = sum * inv * inv * inv / static_cast<float>(args.width);
    for (int h = static_cast<int>(threadIdx.x); h < args.width; h += kThreads) {
      const float a = to_float(x[h]);
      const float d = dy[h];
      partial[h] = __fmaf_rn(d, a * inv, r == begin ? 0.0F : partial[h]);
      const float value = inv * (d * to_float(args.weight[h])) - a * slope;
      out[h] = from_float<T>(accumulate ? to_float(out[h]) + value : value);
    }
  }
}

constexpr int kColumns = 32;  // of a block
constexpr int kParts = 16;

__global__ void __launch_bounds__(kColumns* kParts)
    add_chunks_kernel(const float* partial, int chunks, int width, float* dweight) {
  __shared__ float sums[kParts][kColumns];
  const int column = static_cast<int>(blockIdx.x) * kColumns + static_cast<int>(threadIdx.x) % kColumns;
  const int part = static_cast<int>(threadIdx.x) / kColumns;
  float sum = 0.0F;
  if (column < width) {
#pragma unroll 8
    for (int c = part; c < chunks; c += kParts) {
      sum = sum + partial[static_cast<int64_t>(c) * width + column];
    }
  }
  sums[part][threadIdx.x % kColumns] = sum;
  __syncthreads();
  if (part == 0 && column < width) {
    for (int i = 1; i < kParts; ++i) {
      sum = sum + sums[i][threadIdx.x];
    }
    dweight[column] = dweight[column] + sum;
  }
}

template <class T, bool kAccumulate>
void launch_chunks(const Rows& args, T* dx, unsigned chunks, StreamHandle stream) {
  const int vectors = args.width / kWide;
  int group_warps = 1;
  while (group_warps * kWarp * kMaxUnits < vectors) {
    group_warps *= 2;
  }
  const auto run = [&](auto kernel) { kernel<<<chunks, kThreads, 0, stream>>>(args, dx, group_warps); };
  switch (gpu::ceil_div(vectors, group_warps * kWarp)) {
    case 1:
      return run(chunk_kernel<T, 1, kAccumulate>);
    case 2:
      return run(chunk_kernel<T, 2, kAccumulate>);
    case 3:
      return run(chunk_kernel<T, 3, kAccumulate>);
    default:
      return run(chunk_kernel<T, kMaxUnits, kAccumulate>);
  }
}

}  // namespace

int64_t rmsnorm_backward_scratch(int64_t rows, int64_t width) {
  return gpu::ceil_div(rows, chunk_rows_of(rows)) * width;
}

void rmsnorm_backward(MatrixView x, const float* inv_rms, const BF16* weight, const float* dy, MatrixView dx,
                      bool accumulate, float* dweight, float* scratch, StreamHandle stream) {
  require(x.dtype == Dtype::kBF16 && x.rows == dx.rows && x.cols == dx.cols && x.cols < INT64_C(1) << 30,
          "x is bf16 and dx of its shape");
  require(dx.dtype == Dtype::kF32 || (dx.dtype == Dtype::kBF16 && !accumulate),
          "dx is fp32, or bf16 and not accumulated");
  if (x.rows == 0 || x.cols == 0) {
    return;
  }
  const int64_t chunk_rows = chunk_rows_of(x.rows);
  const auto chunks = static_cast<unsigned>(gpu::ceil_div(x.rows, chunk_rows));
  const Rows args{
      static_cast<const BF16*>(x.data), x.stride, inv_rms, weight, dy, dx.stride, scratch, x.rows, chunk_rows,
      static_cast<int>(x.cols)};
  const bool wide = x.cols <= kMaxWidth && gpu::is_vectorizable(x) && gpu::is_vectorizable(dx) &&
                    gpu::is_aligned16(weight) && gpu::is_aligned16(dy) && gpu::is_aligned16(scratch);
  if (dx.dtype == Dtype::kBF16) {
    auto* out = static_cast<BF16*>(dx.data);
    if (wide) {
      launch_chunks<BF16, false>(args, out, chunks, stream);
    } else {
      any_chunk_kernel<<<chunks, kThreads, 0, stream>>>(args, out, false);
    }
  } else {
    auto* out = static_cast<float*>(dx.data);
    if (!wide) {
      any_chunk_kernel<<<chunks, kThreads, 0, stream>>>(args, out, accumulate);
    } else if (accumulate) {
      launch_chunks<float, true>(args, out, chunks, stream);
    } else {
      launch_chunks<float, false>(args, out, chunks, stream);
    }
  }
  check_launch("rmsnorm_backward");
  const auto blocks = static_cast<unsigned>(gpu::ceil_div(args.width, kColumns));
  add_chunks_kernel<<<blocks, kColumns * kParts, 0, stream>>>(scratch, static_cast<int>(chunks), args.width,
                                                              dweight);
  check_launch("rmsnorm_backward: dweight");
}

}  // namespace accord::kernels::cuda
