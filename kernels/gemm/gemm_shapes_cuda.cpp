// What the products take, and the sizes of a grouped product's list of tiles: the host's side of
// gemm_cuda.hpp.
#include <algorithm>

#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/gemm/gemm_large.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int64_t kMaxDimension = int64_t{1} << 30;
constexpr int64_t kMaxGrid = 65535;

bool is_tile_rows(const GemmGroups* groups) {
  const int32_t rows = groups == nullptr ? 16 : groups->tile_rows;
  return rows == 16 || rows == 64 || rows == 128;
}

bool is_backward_shape(const GemmBackward& g) {
  return g.m >= 0 && g.n > 0 && g.l >= 0 && g.m <= kMaxDimension && g.n <= kMaxDimension &&
         g.l <= kMaxDimension && g.lda % 8 == 0 && g.ldb % 8 == 0 && g.n % 8 == 0 &&
         !(g.c.bf16 && g.c.accumulate);
}

}  // namespace

bool gemm_forward_takes(const GemmForward& g) {
  const int64_t block = g.format == WeightFormat::kMXFP8 ? 32 : g.format == WeightFormat::kNVFP4 ? 16 : 8;
  const bool shapes = g.m >= 0 && g.m <= kMaxDimension && g.n > 0 && g.n <= kMaxDimension && g.k > 0 &&
                      g.k <= kMaxDimension && g.k % block == 0 && g.lda % 8 == 0;
  const bool batched = g.batch.count == 1 || (g.groups == nullptr && g.format == WeightFormat::kBF16);
  return shapes && batched && g.format != WeightFormat::kF32 && !(g.c.bf16 && g.c.accumulate) &&
         is_tile_rows(g.groups) && (g.groups == nullptr ? g.m / 128 : g.groups->max_tiles) <= kMaxGrid;
}

bool gemm_forward_takes_together(std::span<const GemmForward> products) {
  const auto one_list = [](const GemmGroups* a, const GemmGroups* b) {
    if (a == nullptr || b == nullptr) return a == b;
    return a->tiles == b->tiles && a->num_tiles == b->num_tiles && a->max_tiles == b->max_tiles &&
           a->tile_rows == b->tile_rows && a->gather == b->gather;
  };
  return std::all_of(products.begin(), products.end(), [&](const GemmForward& b) {
    const GemmForward& a = products[0];
    return gemm_forward_takes(b) && b.batch.count == 1 && a.format == b.format && a.m == b.m && a.k == b.k &&
           a.a == b.a && a.lda == b.lda && a.a_outer == b.a_outer && a.a_range == b.a_range &&
           a.b_range == b.b_range && a.c.bf16 == b.c.bf16 && a.c.accumulate == b.c.accumulate &&
           one_list(a.groups, b.groups);
  });
}

bool gemm_dgrad_takes(const GemmBackward& g) {
  return is_backward_shape(g) && g.l % 8 == 0 && (g.groups == nullptr || g.batch.count == 1) &&
         is_tile_rows(g.groups) && (g.groups == nullptr ? g.m / 64 : g.groups->max_tiles) <= kMaxGrid;
}

bool gemm_wgrad_takes(const GemmBackward& g) {
  const bool grouped = g.offsets != nullptr;
  return is_backward_shape(g) && g.m % 8 == 0 && (!grouped || (g.batch.count == 1 && g.outputs != nullptr)) &&
         g.m / 64 <= kMaxGrid && g.num_experts <= kMaxGrid;
}

int32_t group_tile_rows(int64_t rows, int64_t experts) {
  const int64_t average = rows / std::max<int64_t>(experts, 1);
  return average <= 16 ? 16 : average <= 96 ? 64 : 128;
}

int32_t group_tiles_bound(int64_t rows, int64_t experts, int32_t tile_rows) {
  return static_cast<int32_t>(std::min(rows, rows / tile_rows + experts));
}

int32_t group_list_size(int64_t rows, int64_t experts, int32_t tile_rows) {
  const int32_t tiles = group_tiles_bound(rows, experts, tile_rows);
  return tile_rows == 128 ? tiles + 1 + group_tiles_bound(rows, experts, kWideRows) : tiles;
}

bool wide_tiles_take(int64_t m, int64_t n, int64_t lda, const GemmOutput& c) {
  const int64_t vector = c.bf16 ? 8 : 4;
  const bool in_reach = m * std::max(c.ld / vector, lda / 8) < int64_t{1} << 32;
  return n % vector == 0 && c.ld % vector == 0 && reinterpret_cast<uintptr_t>(c.data) % 16 == 0 && in_reach;
}

}  // namespace accord::kernels::cuda
