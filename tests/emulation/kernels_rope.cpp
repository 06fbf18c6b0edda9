// Rotary embedding and its backward (rope_cuda.hpp, rope_backward_cuda.hpp), with the CPU's operations: two
// products, one sum, in fp32, rounded once.
#include <algorithm>
#include <vector>

#include "kernels/copy/copy_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rope/rope_backward_cuda.hpp"
#include "kernels/rope/rope_cuda.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

// Positions and the part of the table that they need.
struct Angles {
  Angles(const Launch& launch, const int32_t* positions, int64_t rows, const RopeTableView& table)
      : half(table.half), positions_(launch.at(positions, rows)) {
    const auto [least, largest] = std::minmax_element(positions_, positions_ + rows);
    launch.needs(*least >= 0, "positions from 0 on");
    cos_ = launch.at(table.cos, (int64_t{*largest} + 1) * half);
    sin_ = launch.at(table.sin, (int64_t{*largest} + 1) * half);
  }
  const float* cos(int64_t row) const { return cos_ + positions_[row] * half; }
  const float* sin(int64_t row) const { return sin_ + positions_[row] * half; }

  int64_t half;

 private:
  const int32_t* positions_;
  const float* cos_;
  const float* sin_;
};

template <class T>
void rotate(const T* x, const float* cos, const float* sin, int64_t half, bool neighbours, T* y) {
  for (int64_t i = 0; i < half; ++i) {
    const float a = to_float(x[neighbours ? 2 * i : i]);
    const float b = to_float(x[neighbours ? 2 * i + 1 : half + i]);
    y[i] = from_float<T>(a * cos[i] - b * sin[i]);
    y[half + i] = from_float<T>(b * cos[i] + a * sin[i]);
  }
}

// A view of `rows` rows of which the rotary columns of `heads` heads are used.
MatrixView rotary_view(const Launch& launch, MatrixView x, int64_t rows, int64_t heads, int64_t head_stride,
                       int64_t dim) {
  x.cols = (heads - 1) * head_stride + dim;
  return launch.at(x, rows);
}

template <class T>
void rotate_rows(const Launch& launch, const MatrixView& x, const RopeHeadsLayout& layout,
                 const Angles& angles, const MatrixView& y, const int32_t* y_rows) {
  const MatrixView in = rotary_view(launch, x, x.rows, layout.heads, layout.x_stride, 2 * angles.half);
  const int32_t* to = launch.maybe(y_rows, x.rows);
  const int64_t last = to == nullptr ? x.rows - 1 : *std::max_element(to, to + x.rows);
  const MatrixView out = rotary_view(launch, y, last + 1, layout.heads, layout.y_stride, 2 * angles.half);
  for (int64_t t = 0; t < x.rows; ++t) {
    launch.needs(to == nullptr || to[t] >= 0, "rows of y from 0 on");
    const T* from = in.row<T>(t);
    T* into = out.row<T>(to == nullptr ? t : to[t]);
    for (int64_t h = 0; h < layout.heads; ++h) {
      rotate(from + h * layout.x_stride, angles.cos(t), angles.sin(t), angles.half, layout.neighbours,
             into + h * layout.y_stride);
    }
  }
}

}  // namespace

void apply_rope_heads(MatrixView x, const RopeHeadsLayout& layout, const int32_t* positions,
                      const RopeTableView& table, MatrixView y, const int32_t* y_rows, StreamHandle stream) {
  if (emulation::recorded(stream, apply_rope_heads, x, layout, positions, table, y, y_rows)) return;
  const Launch launch("apply_rope_heads", stream);
  launch.needs(x.dtype == y.dtype && (x.dtype == Dtype::kBF16 || x.dtype == Dtype::kF32),
               "x and y of one dtype");
  if (x.rows == 0 || layout.heads == 0 || table.half == 0) return;
  launch.needs(!(layout.neighbours && x.data == y.data), "x apart from y where neighbours turn");
  const Angles angles(launch, positions, x.rows, table);
  if (x.dtype == Dtype::kBF16) {
    rotate_rows<BF16>(launch, x, layout, angles, y, y_rows);
  } else {
    rotate_rows<float>(launch, x, layout, angles, y, y_rows);
  }
}

void apply_rope(MatrixView x, const int32_t* positions, const RopeTableView& table, MatrixView y,
                const int32_t* y_rows, StreamHandle stream) {
  if (emulation::recorded(stream, apply_rope, x, positions, table, y, y_rows)) return;
  const int64_t dim = 2 * table.half;
  require(x.cols == y.cols && x.cols % dim == 0, "x.cols == y.cols && x.cols % dim == 0");
  require(x.data != y.data || y_rows == nullptr, "y apart from x where rows move");
  apply_rope_heads(x, {x.cols / dim, dim, dim, false}, positions, table, y, y_rows, stream);
}

namespace {

// Heads of x, normalized and turned, into y.
void turn_normed(const Launch& launch, const MatrixView& x, const BF16* weight, float eps, float* inv_rms,
                 const Angles& angles, const MatrixView& y, const int32_t* to_rows) {
  const int64_t dim = 2 * angles.half;
  const int64_t heads = x.cols / dim;
  const MatrixView in = launch.at(x);
  const int32_t* to = launch.maybe(to_rows, x.rows);
  const MatrixView out = launch.at(y, to == nullptr ? x.rows : *std::max_element(to, to + x.rows) + 1);
  float* const inverses = launch.maybe(inv_rms, x.rows * heads);
  std::vector<BF16> row(static_cast<size_t>(x.cols));
  for (int64_t t = 0; t < x.rows; ++t) {
    kernels::rms_norm({in.row<BF16>(t), Dtype::kBF16, heads, dim, dim}, launch.at(weight, dim), eps,
                      matrix_view(row.data(), heads, dim),
                      inverses == nullptr ? nullptr : inverses + t * heads);
    for (int64_t h = 0; h < heads; ++h) {
      rotate(row.data() + h * dim, angles.cos(t), angles.sin(t), angles.half, false,
             out.row<BF16>(to == nullptr ? t : to[t]) + h * dim);
    }
  }
}

}  // namespace

bool normalizes_heads(int64_t head_dim) { return head_dim == 32 || head_dim == 64 || head_dim == 128; }

void rope_to_cache(const RopeToCache& args, const RopeTableView& table, StreamHandle stream) {
  if (emulation::recorded(stream, rope_to_cache, args, table)) return;
  for (const MatrixView& x : {args.q, args.k, args.v, args.q_out, args.k_cache, args.v_cache}) {
    require(x.dtype == Dtype::kBF16, "bf16");
  }
  require(args.k.cols == args.v.cols, "k and v of one width");
  const HeadNorms& norms = args.norms;
  if (norms.q != nullptr) {
    const Launch launch("rope_to_cache", stream);
    launch.needs(normalizes_heads(2 * table.half), "heads that normalizes_heads() takes");
    if (args.q.rows == 0) return;
    const Angles angles(launch, args.positions, args.q.rows, table);
    turn_normed(launch, args.q, norms.q, norms.eps, norms.inv_rms_q, angles, args.q_out, nullptr);
    turn_normed(launch, args.k, norms.k, norms.eps, norms.inv_rms_k, angles, args.k_cache, args.to_rows);
    scatter_rows(args.v, args.to_rows, args.v_cache, stream);
    return;
  }
  apply_rope(args.q, args.positions, table, args.q_out, nullptr, stream);
  apply_rope(args.k, args.positions, table, args.k_cache, args.to_rows, stream);
  scatter_rows(args.v, args.to_rows, args.v_cache, stream);
}

namespace {

// a, b: the gradient of a turned pair; the pair's own.
struct Pair {
  float first;
  float second;
};
Pair turn_back(float a, float b, float cos, float sin) { return {a * cos + b * sin, b * cos - a * sin}; }

template <class T>
void rope_backward_rows(const float* dy, int64_t rows, int64_t width, const Angles& angles,
                        const MatrixView& dx) {
  for (int64_t t = 0; t < rows; ++t) {
    const float* cos = angles.cos(t);
    const float* sin = angles.sin(t);
    for (int64_t h = 0; h < width; h += 2 * angles.half) {
      const float* from = dy + t * width + h;
      T* to = dx.row<T>(t) + h;
      for (int64_t i = 0; i < angles.half; ++i) {
        const Pair pair = turn_back(from[i], from[angles.half + i], cos[i], sin[i]);
        to[i] = from_float<T>(pair.first);
        to[angles.half + i] = from_float<T>(pair.second);
      }
    }
  }
}

template <class T>
void rope_heads_backward_rows(const RopeHeadsBackward& args, const float* dy, const MatrixView& dx,
                              int64_t rows, const Angles& angles) {
  const int64_t half = angles.half;
  const bool shared = args.layout.x_stride == 0;
  std::vector<float> turned = emulation::floats(2 * half);
  for (int64_t t = 0; t < rows; ++t) {
    const float* from = dy + t * args.y_width + args.y_offset;
    T* to = dx.row<T>(t) + args.x_offset;
    for (int64_t h = 0; h < args.layout.heads;
         ++h, from += args.layout.y_stride, to += args.layout.x_stride) {
      for (int64_t i = 0; i < half; ++i) {
        const Pair pair = turn_back(from[i], from[half + i], angles.cos(t)[i], angles.sin(t)[i]);
        float& first = turned[static_cast<size_t>(args.layout.neighbours ? 2 * i : i)];
        float& second = turned[static_cast<size_t>(args.layout.neighbours ? 2 * i + 1 : half + i)];
        first = shared && h > 0 ? first + pair.first : pair.first;
        second = shared && h > 0 ? second + pair.second : pair.second;
      }
      if (!shared || h + 1 == args.layout.heads) emulation::store_row(turned.data(), 2 * half, to);
    }
  }
}

}  // namespace

void rope_backward(const float* dy, int64_t rows, int64_t width, const int32_t* positions,
                   const RopeTableView& table, MatrixView dx, StreamHandle stream) {
  const Launch launch("rope_backward", stream);
  launch.needs(table.half > 0 && width % (2 * table.half) == 0 && dx.cols == width && dx.rows >= rows,
               "whole heads, and dx of dy's shape");
  if (rows == 0) return;
  const Angles angles(launch, positions, rows, table);
  const float* from = launch.at(dy, rows * width);
  const MatrixView to = launch.at(dx, rows);
  if (dx.dtype == Dtype::kBF16) {
    rope_backward_rows<BF16>(from, rows, width, angles, to);
  } else {
    rope_backward_rows<float>(from, rows, width, angles, to);
  }
}

void rope_heads_backward(const RopeHeadsBackward& args, int64_t rows, const int32_t* positions,
                         const RopeTableView& table, StreamHandle stream) {
  const Launch launch("rope_heads_backward", stream);
  const RopeHeadsLayout& layout = args.layout;
  if (rows == 0 || layout.heads == 0) return;
  const int64_t dim = 2 * table.half;
  launch.needs(args.y_offset + (layout.heads - 1) * layout.y_stride + dim <= args.y_width &&
                   args.x_offset + (layout.heads - 1) * layout.x_stride + dim <= args.dx.cols &&
                   args.dx.rows >= rows,
               "heads within the rows of dy and dx");
  const Angles angles(launch, positions, rows, table);
  const float* dy = launch.at(args.dy, rows * args.y_width);
  const MatrixView dx = launch.at(args.dx, rows);
  if (dx.dtype == Dtype::kBF16) {
    rope_heads_backward_rows<BF16>(args, dy, dx, rows, angles);
  } else {
    rope_heads_backward_rows<float>(args, dy, dx, rows, angles);
  }
}

}  // namespace accord::kernels::cuda
