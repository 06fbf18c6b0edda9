#include <algorithm>
#include <cassert>

#include "kernels/gemm/gemm.hpp"
#include "kernels/math/simd.hpp"
#include "kernels/mla/mla.hpp"

namespace accord::kernels {
namespace {

constexpr int64_t kRowsAtOnce = 48;  // their operands stay in L2 while a head's weights pass by

template <class T>
void widen_row(const T* x, int64_t n, float* out) {
  for (int64_t i = 0; i < n; i += 8) store8(out + i, load8(x + i));
}

// out[r][j .. j+8W) = sum over d ascending of q[r][d] w[d][j ..].
template <int R, int W, class T>
void absorb_columns(const float* q, int64_t nope, const BF16* w, int64_t latent, int64_t j, T* const* out) {
  F8 sum[R][W];
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < W; ++i) sum[r][i] = f8_zero();
  }
  for (int64_t d = 0; d < nope; ++d) {
    F8 row[W];
#pragma GCC unroll 4
    for (int i = 0; i < W; ++i) row[i] = load8(w + d * latent + j + 8 * i);
#pragma GCC unroll 4
    for (int r = 0; r < R; ++r) {
      const F8 x = f8(q[r * nope + d]);
#pragma GCC unroll 4
      for (int i = 0; i < W; ++i) sum[r][i] = _mm256_fmadd_ps(x, row[i], sum[r][i]);
    }
  }
  for (int r = 0; r < R; ++r) {
    for (int i = 0; i < W; ++i) store8(out[r] + j + 8 * i, sum[r][i]);
  }
}

template <int R, class T>
void absorb_rows(const float* q, int64_t nope, const BF16* w, int64_t latent, T* const* out) {
  int64_t j = 0;
  for (; j + 32 <= latent; j += 32) absorb_columns<R, 4>(q, nope, w, latent, j, out);
  for (; j < latent; j += 8) absorb_columns<R, 1>(q, nope, w, latent, j, out);
}

template <class T>
void absorb_head(MatrixView q, const BF16* w, const LatentHeads& s, int64_t head, MatrixView q_latent,
                 Workspace& scratch) {
  scratch.operand.ensure(static_cast<size_t>(kRowsAtOnce * s.nope) * sizeof(float));
  float* wide = scratch.operand.as<float>();
  for (int64_t begin = 0; begin < q.rows; begin += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, q.rows - begin);
    T* out[kRowsAtOnce];
    for (int64_t r = 0; r < rows; ++r) {
      widen_row(q.row<T>(begin + r) + head * (s.nope + s.rope), s.nope, wide + r * s.nope);
      out[r] = q_latent.row<T>(begin + r) + head * (s.latent + s.rope);
    }
    int64_t r = 0;
    for (; r + 3 <= rows; r += 3) absorb_rows<3>(wide + r * s.nope, s.nope, w, s.latent, out + r);
    for (; r < rows; ++r) absorb_rows<1>(wide + r * s.nope, s.nope, w, s.latent, out + r);
  }
}

template <class T>
void expand_head(MatrixView latent, const BF16* w, const LatentHeads& s, int64_t head, MatrixView out,
                 Workspace& scratch) {
  scratch.operand.ensure(static_cast<size_t>(kRowsAtOnce * s.latent) * sizeof(float));
  scratch.tile.ensure(static_cast<size_t>(kRowsAtOnce * s.v) * sizeof(float));
  scratch.panel_rows.ensure(static_cast<size_t>(s.v) * sizeof(const BF16*));
  float* wide = scratch.operand.as<float>();
  float* tile = scratch.tile.as<float>();
  auto* weights = scratch.panel_rows.as<const BF16*>();
  for (int64_t d = 0; d < s.v; ++d) weights[d] = w + d * s.latent;
  for (int64_t begin = 0; begin < latent.rows; begin += kRowsAtOnce) {
    const int64_t rows = std::min(kRowsAtOnce, latent.rows - begin);
    const float* a[kRowsAtOnce];
    for (int64_t r = 0; r < rows; ++r) {
      widen_row(latent.row<T>(begin + r) + head * s.latent, s.latent, wide + r * s.latent);
      a[r] = wide + r * s.latent;
    }
    gemm_rows(a, rows, weights, s.v, s.latent, tile, s.v);
    for (int64_t r = 0; r < rows; ++r) {
      T* to = out.row<T>(begin + r) + head * s.v;
      for (int64_t d = 0; d < s.v; d += 8) store8(to + d, load8(tile + r * s.v + d));
    }
  }
}

}  // namespace

void absorb_queries(MatrixView q, const BF16* kv_b, const LatentHeads& s, int64_t head_begin,
                    int64_t head_end, MatrixView q_latent, Workspace& scratch) {
  assert(q.dtype == q_latent.dtype && s.nope % 8 == 0 && s.latent % 8 == 0);
  for (int64_t h = head_begin; h < head_end; ++h) {
    const BF16* w = kv_b + h * (s.nope + s.v) * s.latent;
    if (q.dtype == Dtype::kBF16) {
      absorb_head<BF16>(q, w, s, h, q_latent, scratch);
    } else {
      absorb_head<float>(q, w, s, h, q_latent, scratch);
    }
  }
}

void expand_outputs(MatrixView latent, const BF16* kv_b, const LatentHeads& s, int64_t head_begin,
                    int64_t head_end, MatrixView out, Workspace& scratch) {
  assert(latent.dtype == out.dtype && s.v % 8 == 0 && s.latent % kGemmLanes == 0);
  for (int64_t h = head_begin; h < head_end; ++h) {
    const BF16* w = kv_b + (h * (s.nope + s.v) + s.nope) * s.latent;
    if (latent.dtype == Dtype::kBF16) {
      expand_head<BF16>(latent, w, s, h, out, scratch);
    } else {
      expand_head<float>(latent, w, s, h, out, scratch);
    }
  }
}

}  // namespace accord::kernels
