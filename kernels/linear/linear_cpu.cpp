#include <algorithm>
#include <cassert>
#include <functional>

#include "kernels/formats/decode.hpp"
#include "kernels/formats/ieee_mode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/linear/linear.hpp"
#include "kernels/math/convert.hpp"
#include "kernels/math/simd.hpp"

namespace accord::kernels {
namespace {

// Decoded weight rows that stay in the L1 cache while the rows of x pass by; at least 8 rows, so that the
// rows of x, which then come from L2, are used four times per load.
constexpr int64_t kPanelBytes = 16 * 1024;
constexpr int64_t kMinPanelRows = 8;
constexpr int64_t kMaxPanelRows = 64;
// bf16 weights are widened in registers, at each use, where that beats widening a panel once: for few rows,
// and where K is so large that a panel leaves L1 (measured).
constexpr int64_t kDirectRows = 16;
constexpr int64_t kDirectK = 1024;
constexpr int64_t kTileRows = 3;
// Below this many multiply-adds a handoff to other threads costs more than it saves.
constexpr int64_t kParallelWork = int64_t{1} << 20;

int64_t panel_rows(int64_t k) {
  const int64_t fit = kPanelBytes / (padded_k(k) * static_cast<int64_t>(sizeof(float)));
  return std::clamp(fit / 2 * 2, kMinPanelRows, kMaxPanelRows);
}

void decode_weight_row(const LinearWeight& w, int64_t row, float* out) {
  const int64_t k = w.k;
  switch (w.format) {
    case WeightFormat::kBF16:
      formats::decode_bf16_row(static_cast<const BF16*>(w.data) + row * k, k, out);
      break;
    case WeightFormat::kMXFP8:
      formats::decode_mxfp8_row(static_cast<const uint8_t*>(w.data) + row * k, w.scales + row * (k / 32), k,
                                out);
      break;
    case WeightFormat::kNVFP4:
      formats::decode_nvfp4_products_row(static_cast<const uint8_t*>(w.data) + row * (k / 2),
                                         w.scales + row * (k / 16), k, out);
      break;
    case WeightFormat::kF32:
      assert(false);  // no linear has it
      break;
  }
  std::fill(out + k, out + padded_k(k), 0.0F);
}

// fl(1/(36*R_x*R_W)): each operand carries an outer scale A over 6 times its range.
float nvfp4_inverse(const LinearWeight& w) {
  return 1.0F / (36.0F * static_cast<float>(w.activations.range) * static_cast<float>(w.scaling.range));
}

void epilogue_row(const Operand& a, const LinearWeight& w, int64_t row, float* acc, int64_t n, MatrixView y,
                  int64_t n_begin) {
  if (w.format == WeightFormat::kNVFP4) {
    const float outer = a.outer[row] * *w.outer;
    const float inverse = nvfp4_inverse(w);
    for (int64_t j = 0; j < n; ++j) {
      acc[j] = (acc[j] * inverse) * outer;
    }
  }
  if (y.dtype == Dtype::kBF16) {
    narrow(acc, y.row<BF16>(row) + n_begin, n);
  } else if (acc != y.row<float>(row) + n_begin) {
    std::copy(acc, acc + n, y.row<float>(row) + n_begin);
  }
}

template <class B>
void panel_product(const Operand& a, const LinearWeight& w, const B* const* b, int64_t n, MatrixView y,
                   int64_t n_begin, float* tile) {
  const int64_t k = padded_k(a.k);
  if (y.dtype == Dtype::kF32 && w.format != WeightFormat::kNVFP4) {
    gemm_rows(a.rows, a.m, b, n, k, y.row<float>(0) + n_begin, y.stride);
    return;
  }
  for (int64_t i = 0; i < a.m; i += kTileRows) {
    const int64_t m = std::min(kTileRows, a.m - i);
    gemm_rows(a.rows + i, m, b, n, k, tile, n);
    for (int64_t r = 0; r < m; ++r) {
      epilogue_row(a, w, i + r, tile + r * n, n, y, n_begin);
    }
  }
}

}  // namespace

void linear_columns(const Operand& a, const LinearWeight& w, MatrixView y, int64_t n_begin, int64_t n_end,
                    Workspace& scratch) {
  assert(a.k == w.k && a.format == w.activation_format() && y.rows >= a.m && y.cols == w.n);
  if (a.m == 0) {
    return;
  }
  const int64_t k = padded_k(w.k);
  const int64_t rows = panel_rows(w.k);
  scratch.tile.ensure(static_cast<size_t>(kTileRows * rows) * sizeof(float));
  scratch.panel_rows.ensure(static_cast<size_t>(rows) * sizeof(void*));
  auto* tile = scratch.tile.as<float>();
  const bool direct = w.format == WeightFormat::kBF16 && w.k == k && (a.m <= kDirectRows || k > kDirectK);
  if (!direct) {
    scratch.panel.ensure(static_cast<size_t>(rows * k) * sizeof(float));
  }
  for (int64_t begin = n_begin; begin < n_end; begin += rows) {
    const int64_t n = std::min(rows, n_end - begin);
    if (direct) {
      auto* b = scratch.panel_rows.as<const BF16*>();
      for (int64_t j = 0; j < n; ++j) {
        b[j] = static_cast<const BF16*>(w.data) + (begin + j) * k;
      }
      panel_product(a, w, b, n, y, begin, tile);
    } else {
      auto* b = scratch.panel_rows.as<const float*>();
      auto* panel = scratch.panel.as<float>();
      for (int64_t j = 0; j < n; ++j) {
        decode_weight_row(w, begin + j, panel + j * k);
        b[j] = panel + j * k;
      }
      panel_product(a, w, b, n, y, begin, tile);
    }
  }
}

void linear(const Operand& a, const LinearWeight& w, MatrixView y, ThreadPool* pool, WorkspacePool& scratch) {
  const int64_t rows = panel_rows(w.k);
  const int64_t panels = (w.n + rows - 1) / rows;
  const int64_t threads = pool == nullptr ? 1 : pool->num_threads();
  if (threads == 1 || panels < 2 || a.m * w.n * w.k < kParallelWork) {
    const WorkspacePool::Lease lease = scratch.acquire();
    linear_columns(a, w, y, 0, w.n, *lease);
    return;
  }
  // A few tasks per thread level out uneven progress.
  const int64_t per_task = std::max<int64_t>(1, panels / (threads * 4));
  const auto task = [&](int64_t i) {
    const formats::IeeeMode ieee;
    const WorkspacePool::Lease lease = scratch.acquire();
    const int64_t begin = i * per_task * rows;
    linear_columns(a, w, y, begin, std::min(w.n, begin + per_task * rows), *lease);
  };
  pool->parallel_for((panels + per_task - 1) / per_task, std::ref(task));
}

}  // namespace accord::kernels
