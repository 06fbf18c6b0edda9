// dx[i] = a cos + b sin;  dx[i+half] = b cos - a sin, a = dy[i], b = dy[i+half], of every head of dy [T,
// heads]: two products and one sum in fp32, the CPU's bits. A thread turns kWidth pairs of one head, or of
// all heads that share their columns of dx, whose results it adds up in ascending order.
#include "kernels/cuda/launch.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/rope/rope_backward_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kThreads = 256;
constexpr int kBlocksPerSm = 8;
constexpr int kWide = 4;

struct Turn {
  const float* dy;
  int64_t dy_row;   // elements from one row to the next
  int64_t dy_head;  // and from one head
  int64_t dx_row;
  int64_t dx_head;
  uint32_t rows;
  uint32_t heads;
  uint32_t shared;  // heads of dy to one of dx
};

template <class T, int kWidth, bool kNeighbours>
__global__ void __launch_bounds__(kThreads)
    rope_backward_kernel(Turn turn, const int32_t* positions, RopeTableView table, T* dx) {
  const auto half = static_cast<uint32_t>(table.half);
  const uint32_t per_head = half / kWidth;
  const uint32_t per_row = turn.heads * per_head;
  const uint32_t count = turn.rows * per_row;
  for (uint32_t i = blockIdx.x * kThreads + threadIdx.x; i < count; i += gridDim.x * kThreads) {
    const uint32_t t = i / per_row;
    const uint32_t head = (i - t * per_row) / per_head;
    const uint32_t c = (i - t * per_row - head * per_head) * kWidth;
    const float* in = turn.dy + t * turn.dy_row + head * turn.dy_head + c;
    const int64_t at = static_cast<int64_t>(positions[t]) * half + c;
    float cos[kWidth];
    float sin[kWidth];
    gpu::load_floats(table.cos + at, cos);
    gpu::load_floats(table.sin + at, sin);
    float first[kWidth];
    float second[kWidth];
    for (uint32_t h = 0; h < turn.shared; ++h, in += turn.dy_head) {
      float a[kWidth];
      float b[kWidth];
      gpu::load_floats(in, a);
      gpu::load_floats(in + half, b);
#pragma unroll
      for (int j = 0; j < kWidth; ++j) {
        const float x = a[j] * cos[j] + b[j] * sin[j];
        const float y = b[j] * cos[j] - a[j] * sin[j];
        first[j] = h == 0 ? x : first[j] + x;
        second[j] = h == 0 ? y : second[j] + y;
      }
    }
    T* out = dx + t * turn.dx_row + head * turn.dx_head;
    if constexpr (kNeighbours) {
      if constexpr (kWidth == 1) {
        out[2 * c] = from_float<T>(first[0]);
        out[2 * c + 1] = from_float<T>(second[0]);
      } else {
        float pairs[2 * kWidth];
#pragma unroll
        for (int j = 0; j < kWidth; ++j) {
          pairs[2 * j] = first[j];
          pairs[2 * j + 1] = second[j];
        }
        gpu::store_rounded(out + 2 * c, pairs);
      }
    } else {
      gpu::store_rounded(out + c, first);
      gpu::store_rounded(out + c + half, second);
    }
  }
}

template <class T, bool kNeighbours>
void launch(const Turn& turn, const int32_t* positions, const RopeTableView& table, T* dx,
            StreamHandle stream) {
  // Accesses of 16 bytes, but for four bf16.
  const int64_t unit = kNeighbours && sizeof(T) == sizeof(BF16) ? 2 * kWide : kWide;
  const bool vector = table.half % kWide == 0 && turn.dy_row % kWide == 0 && turn.dy_head % kWide == 0 &&
                      turn.dx_row % unit == 0 && turn.dx_head % unit == 0 && gpu::is_aligned16(turn.dy) &&
                      gpu::is_aligned16(table.cos) && gpu::is_aligned16(table.sin) && gpu::is_aligned16(dx);
  const int64_t count = static_cast<int64_t>(turn.rows) * turn.heads * table.half / (vector ? kWide : 1);
  require(count < INT64_C(1) << 31, "pairs of a turn < 2^31");
  const unsigned grid = gpu::strided_grid(gpu::ceil_div(count, kThreads), kBlocksPerSm);
  if (vector) {
    rope_backward_kernel<T, kWide, kNeighbours><<<grid, kThreads, 0, stream>>>(turn, positions, table, dx);
  } else {
    rope_backward_kernel<T, 1, kNeighbours><<<grid, kThreads, 0, stream>>>(turn, positions, table, dx);
  }
  check_launch("rope_backward");
}

void turn_back(const Turn& turn, bool neighbours, const int32_t* positions, const RopeTableView& table,
               MatrixView dx, int64_t offset, StreamHandle stream) {
  if (turn.rows == 0 || turn.heads == 0 || turn.shared == 0 || table.half == 0) {
    return;
  }
  if (dx.dtype == Dtype::kBF16) {
    auto* out = static_cast<BF16*>(dx.data) + offset;
    neighbours ? launch<BF16, true>(turn, positions, table, out, stream)
               : launch<BF16, false>(turn, positions, table, out, stream);
  } else {
    require(dx.dtype == Dtype::kF32, "dx.dtype is bf16 or fp32");
    auto* out = static_cast<float*>(dx.data) + offset;
    neighbours ? launch<float, true>(turn, positions, table, out, stream)
               : launch<float, false>(turn, positions, table, out, stream);
  }
}

}  // namespace

void rope_backward(const float* dy, int64_t rows, int64_t width, const int32_t* positions,
                   const RopeTableView& table, MatrixView dx, StreamHandle stream) {
  const int64_t dim = 2 * table.half;
  if (rows == 0 || width == 0) {
    return;
  }
  require(dim > 0 && width % dim == 0 && dx.rows == rows && dx.cols == width,
          "dim > 0 && width % dim == 0 && dx.rows == rows && dx.cols == width");
  const Turn turn{
      dy, width, dim, dx.stride, dim, static_cast<uint32_t>(rows), static_cast<uint32_t>(width / dim), 1};
  turn_back(turn, false, positions, table, dx, 0, stream);
}

void rope_heads_backward(const RopeHeadsBackward& args, int64_t rows, const int32_t* positions,
                         const RopeTableView& table, StreamHandle stream) {
  require(args.dx.rows == rows, "args.dx.rows == rows");
  const RopeHeadsLayout& layout = args.layout;
  const auto heads = static_cast<uint32_t>(layout.heads);
  const bool shared = layout.x_stride == 0;
  const Turn turn{args.dy + args.y_offset, args.y_width,      layout.y_stride,
                  args.dx.stride,          layout.x_stride,   static_cast<uint32_t>(rows),
                  shared ? 1 : heads,      shared ? heads : 1};
  turn_back(turn, layout.neighbours, positions, table, args.dx, args.x_offset, stream);
}

}  // namespace accord::kernels::cuda
