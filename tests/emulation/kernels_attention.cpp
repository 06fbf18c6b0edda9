// Attention and its backward over the CPU's (attention_cuda.hpp): one segment a tile, so that a row's result
// depends on its own sequence up to itself alone.
#include <algorithm>
#include <vector>

#include "kernels/attention/attention.hpp"
#include "kernels/attention/attention_backward.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/attention/attention_shapes.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/emulation/rows.hpp"
#include "tests/emulation/streams.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;

constexpr int64_t kBackwardTile = 64;
constexpr int32_t kMaxTiles = 65535;
constexpr size_t kRowBytes = 16;

MatrixView rows_of(const void* data, int64_t rows, int64_t cols, int64_t stride) {
  return {const_cast<void*>(data), Dtype::kBF16, rows, cols, stride};
}

int64_t batch_end(const AttentionTile& tile) { return int64_t{tile.row_begin} + tile.num_rows; }

// Whether a tile's pages lie in the cache: the last row of it that is read.
int64_t last_cache_row(const Launch& launch, const AttentionForward& args, const AttentionTile& tile) {
  const int64_t end = int64_t{tile.first_position} + tile.num_rows;
  const int32_t* pages = launch.at(args.pages + tile.page_begin, (end + kPageSize - 1) / kPageSize);
  int64_t last = 0;
  for (int64_t begin = 0; begin < end; begin += kPageSize) {
    const int64_t page = pages[begin / kPageSize];
    launch.needs(page >= 0, "pages from row 0 on");
    last = std::max(last, page + std::min<int64_t>(kPageSize, end - begin) - 1);
  }
  return last;
}

// Where splits run side by side, all rows are merged: the tiles cover them.
void check_cover(const Launch& launch, const AttentionForward& args, const AttentionTile* tiles) {
  if (args.partials == nullptr) return;
  std::vector<bool> covered(static_cast<size_t>(args.num_rows));
  for (int32_t i = 0; i < args.num_tiles; ++i) {
    std::fill_n(covered.begin() + tiles[i].row_begin, tiles[i].num_rows, true);
  }
  launch.needs(std::find(covered.begin(), covered.end(), false) == covered.end(),
               "tiles that cover all rows");
}

void check_splits(const Launch& launch, const AttentionForward& args, const AttentionTile& tile) {
  if (args.partials == nullptr) return;
  const int32_t* positions = launch.at(args.positions + tile.row_begin, tile.num_rows);
  for (int32_t r = 0; r < tile.num_rows; ++r) {
    launch.needs(positions[r] == tile.first_position + r, "positions that agree with the tiles");
  }
  launch.needs(int64_t{tile.first_position} + tile.num_rows <= args.max_splits * kAttentionSplit,
               "max_splits that cover the longest context");
}

// The first tile of each sequence, all tiles of which are there once.
std::vector<AttentionBackwardTile> sequences_of(const Launch& launch, const AttentionBackwardArgs& args,
                                                const AttentionBackwardTile* tiles) {
  std::vector<AttentionBackwardTile> sorted(tiles, tiles + args.num_tiles);
  std::sort(sorted.begin(), sorted.end(), [](const auto& a, const auto& b) {
    return a.row_begin != b.row_begin ? a.row_begin < b.row_begin : a.tile_begin < b.tile_begin;
  });
  std::vector<AttentionBackwardTile> sequences;
  for (size_t i = 0; i < sorted.size();) {
    const AttentionBackwardTile whole = sorted[i];
    sequences.push_back(whole);
    launch.needs(whole.row_begin >= 0 && whole.num_rows > 0 &&
                     int64_t{whole.row_begin} + whole.num_rows <= args.num_rows,
                 "sequences within the rows");
    for (int64_t tile = 0; tile < whole.num_rows; tile += kBackwardTile, ++i) {
      launch.needs(i < sorted.size() && sorted[i].row_begin == whole.row_begin &&
                       sorted[i].num_rows == whole.num_rows && sorted[i].tile_begin == tile,
                   "all tiles of a sequence");
    }
  }
  return sequences;
}

}  // namespace

void attention_forward(const AttentionForward& args, StreamHandle stream) {
  if (emulation::recorded(stream, attention_forward, args)) return;
  const Launch launch("attention_forward", stream);
  const AttentionDims& d = args.dims;
  launch.needs(attention_takes(d) && args.num_tiles <= kMaxTiles,
               "attention_takes(args.dims) && args.num_tiles <= 65535");
  if (args.num_tiles == 0) return;
  launch.needs(d.scale != 0.0F, "a scale");
  launch.needs(attention::queries_of(d, args.few_rows) == 16 || args.partials == nullptr,
               "few_rows where splits run side by side");
  const bool latent = d.head_dim == 576;
  const int64_t q_width = int64_t{d.num_heads} * d.head_dim;
  const int64_t out_width = int64_t{d.num_heads} * d.v_head_dim;
  const int64_t k_width = int64_t{d.num_kv_heads} * d.head_dim;
  const int64_t v_width = int64_t{d.num_kv_heads} * d.v_head_dim;
  launch.aligned_rows(rows_of(args.q, 2, q_width, args.q_stride), kRowBytes, "q");
  launch.aligned_rows(rows_of(args.k, 2, k_width, args.k_stride), kRowBytes, "k");
  launch.aligned_rows(rows_of(args.out, 2, out_width, args.out_stride), kRowBytes, "out");
  if (!latent) launch.aligned_rows(rows_of(args.v, 2, v_width, args.v_stride), kRowBytes, "v");
  if (args.partials != nullptr) {
    launch.scratch(static_cast<uint8_t*>(args.partials),
                   attention_partials_bytes(d, args.num_rows, args.max_splits));
  }
  const AttentionShape shape{d.num_heads, d.num_kv_heads, d.head_dim, d.v_head_dim, d.scale};
  const AttentionTile* tiles = launch.at(args.tiles, args.num_tiles);
  Workspace scratch;
  for (int32_t i = 0; i < args.num_tiles; ++i) {
    const AttentionTile& tile = tiles[i];
    launch.needs(tile.num_rows > 0 && tile.num_rows <= attention_tile_rows(d, args.few_rows) &&
                     tile.row_begin >= 0 && tile.first_position >= 0 &&
                     (args.num_rows == 0 || tile.row_begin + tile.num_rows <= args.num_rows),
                 "tiles of attention_tile_rows rows within the batch");
    launch.needs(args.partials == nullptr || batch_end(tile) <= args.num_rows,
                 "num_rows where splits run side by side");
    check_splits(launch, args, tile);
    const int64_t rows = last_cache_row(launch, args, tile) + 1;
    const int64_t batch = batch_end(tile);
    const MatrixView q = launch.at(rows_of(args.q, batch, q_width, args.q_stride));
    const MatrixView out = launch.at(rows_of(args.out, batch, out_width, args.out_stride));
    const MatrixView k = launch.at(rows_of(args.k, rows, k_width, args.k_stride));
    const Segment segment{tile.row_begin, tile.num_rows, tile.first_position,
                          launch.at(args.pages + tile.page_begin, 1)};
    float* lse = launch.at(args.lse, batch * d.num_heads);
    for (int64_t head = 0; head < d.num_kv_heads; ++head) {
      KvLayer kv{k, k};
      if (latent) {
        // The values of a head are the first columns of its keys.
        kv.v.data = static_cast<BF16*>(k.data) + head * (d.head_dim - d.v_head_dim);
      } else {
        kv.v = launch.at(rows_of(args.v, rows, v_width, args.v_stride));
      }
      kernels::attention(q, kv, segment, tile.row_begin, batch, head, shape, out, lse, scratch);
    }
  }
  check_cover(launch, args, tiles);
}

void attention_backward(const AttentionBackwardArgs& args, StreamHandle stream) {
  const Launch launch("attention_backward", stream);
  const AttentionDims& d = args.dims;
  launch.needs((d.head_dim < 64 && attention_takes(d)) || (d.head_dim % 64 == 0 && d.v_head_dim % 64 == 0),
               "head sizes of attention_takes, or multiples of 64");
  launch.needs(args.num_tiles <= kMaxTiles && d.num_kv_heads > 0 && d.num_heads % d.num_kv_heads == 0,
               "at most 65535 tiles, and whole groups of heads");
  if (args.num_tiles == 0) return;
  const int64_t q_width = int64_t{d.num_heads} * d.head_dim;
  const int64_t out_width = int64_t{d.num_heads} * d.v_head_dim;
  const int64_t k_width = int64_t{d.num_kv_heads} * d.head_dim;
  const int64_t v_width = int64_t{d.num_kv_heads} * d.v_head_dim;
  const auto operand = [&](const BF16* data, int64_t width, int64_t stride, const char* name) {
    const MatrixView view = rows_of(data, args.num_rows, width, stride);
    launch.aligned_rows(view, kRowBytes, name);
    return launch.at(view);
  };
  const MatrixView q = operand(args.q, q_width, args.q_stride, "q");
  const MatrixView k = operand(args.k, k_width, args.k_stride, "k");
  const MatrixView v = operand(args.v, v_width, args.v_stride, "v");
  const MatrixView out = operand(args.out, out_width, args.out_stride, "out");
  const MatrixView dout = operand(args.dout, out_width, args.dout_stride, "dout");
  const float* lse = launch.at(args.lse, args.num_rows * d.num_heads);
  float* dq = launch.at(args.dq, args.num_rows * q_width);
  float* dk = launch.at(args.dk, args.num_rows * k_width);
  float* dv = launch.at(args.dv, args.num_rows * v_width);
  launch.scratch(args.delta, args.num_rows * d.num_heads);
  const AttentionBackwardTile* tiles = launch.at(args.tiles, args.num_tiles);
  const std::vector<AttentionBackwardTile> sequences = sequences_of(launch, args, tiles);
  for (const AttentionBackwardTile& whole : sequences) {
    const int64_t begin = whole.row_begin;
    const int64_t rows = whole.num_rows;
    std::vector<float> dout_rows = emulation::floats(rows * out_width);
    for (int64_t r = 0; r < rows; ++r) {
      emulation::widen_row(dout.row<BF16>(begin + r), out_width, dout_rows.data() + r * out_width);
    }
    const AttentionBackward sequence{q.slice_rows(begin, rows),
                                     k.slice_rows(begin, rows),
                                     v.slice_rows(begin, rows),
                                     out.slice_rows(begin, rows),
                                     lse + begin * d.num_heads,
                                     dout_rows.data(),
                                     dq + begin * q_width,
                                     dk + begin * k_width,
                                     dv + begin * v_width,
                                     d.num_heads,
                                     d.num_kv_heads,
                                     d.head_dim,
                                     d.v_head_dim,
                                     d.scale};
    const auto floats =
        static_cast<size_t>(attention_backward_scratch(rows, std::max(d.head_dim, d.v_head_dim)));
    const Buffer scratch(floats * sizeof(float));
    for (int64_t head = 0; head < d.num_kv_heads; ++head) {
      kernels::attention_backward(sequence, head, scratch.as<float>());
    }
  }
}

}  // namespace accord::kernels::cuda
