#pragma once
// rope.hpp on CUDA: the same bits, in stream order. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels::cuda {

// A RopeTable's cosines and sines, copied to the device: [positions, half] each. (They come from the host's
// libm; nothing on the device computes one.)
struct RopeTableView {
  const float* cos = nullptr;
  const float* sin = nullptr;
  int64_t half = 0;
};

// x: [T, heads * 2 * half], y the same width and dtype; y may be x where y_rows is null.
void apply_rope(MatrixView x, const int32_t* positions, const RopeTableView& table, MatrixView y,
                const int32_t* y_rows, StreamHandle stream);

// The rotary columns of wider heads (RopeHeads in rope.hpp); x and y do not overlap.
struct RopeHeadsLayout {
  int64_t heads = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  bool neighbours = false;  // pairs 2i and 2i+1 in x
};
void apply_rope_heads(MatrixView x, const RopeHeadsLayout& layout, const int32_t* positions,
                      const RopeTableView& table, MatrixView y, const int32_t* y_rows, StreamHandle stream);

// What attention of a batch reads, in one launch: q_out[t] and row to_rows[t] of k_cache are q and k turned
// as by apply_rope, and row to_rows[t] of v_cache is v[t]. q, k, v [T, heads * 2 * half] bf16; q_out may be
// q.
//
// With norms, each head of q and of k is normalized first, as by rms_norm (rmsnorm_cuda.hpp) over rows of
// 2 * half: for sizes of heads that normalizes_heads() takes.
struct HeadNorms {
  const BF16* q = nullptr;  // weights [2 * half]; null: no norms
  const BF16* k = nullptr;
  float eps = 0.0F;
  float* inv_rms_q = nullptr;  // [T, heads], or null
  float* inv_rms_k = nullptr;  // [T, kv heads], or null
};
bool normalizes_heads(int64_t head_dim);

struct RopeToCache {
  MatrixView q, k, v;
  MatrixView q_out, k_cache, v_cache;
  const int32_t* positions = nullptr;  // [T]
  const int32_t* to_rows = nullptr;    // [T]; no two rows go to the same place
  HeadNorms norms = {};
};
void rope_to_cache(const RopeToCache& args, const RopeTableView& table, StreamHandle stream);

}  // namespace accord::kernels::cuda
