#pragma once
// Chooses the kernel of a forward product from the rows of a row tile (16, 64, 128), N, and how many row
// tiles there are. Included by the files that instantiate it.
#include "kernels/gemm/gemm_decode_launch.cuh"
#include "kernels/gemm/gemm_few_rows.cuh"
#include "kernels/gemm/gemm_forward.cuh"
#include "kernels/gemm/gemm_large.hpp"
#include "kernels/gemm/gemm_narrow.hpp"

namespace accord::kernels::cuda {

template <WeightFormat F>
void forward_of_format(const ForwardParams& p, int32_t tile_rows, int32_t row_tiles, int32_t batch,
                       StreamHandle stream) {
  const bool grouped = p.tiles != nullptr;
  const int64_t tiles = static_cast<int64_t>(row_tiles) * batch;
  const int64_t blocks = num_multiprocessors();
  if (!grouped && batch == 1 && p.m <= kMostNarrowRows && large_products_available() &&
      launch_narrow(F, {&p, 1}, stream)) {
    return;
  }
  if (F == WeightFormat::kNVFP4 && p.k % 32 != 0) {  // rows of B are 8-byte aligned only
    if constexpr (F == WeightFormat::kNVFP4) {
      const int32_t rows = grouped ? row_tiles : (p.m + 15) / 16;
      launch_few_rows<F, 2, 4, 128, 4, 8>(p, rows, grouped ? tile_rows / 16 : batch, stream);
    }
    return;
  }
  if (tile_rows <= 16) {
    if (launch_decode<F>(p, row_tiles, stream)) return;
    if (tiles * ((p.n + 63) / 64) >= 2 * blocks)
      return launch_few_rows < F, 2, 4, 128, F == WeightFormat::kBF16 ? 5 : 4 > (p, row_tiles, batch, stream);
    if (tiles * ((p.n + 31) / 32) >= blocks)
      return launch_few_rows<F, 2, 2, 128, 8>(p, row_tiles, batch, stream);
    return launch_few_rows<F, 2, 1, 128, 10>(p, row_tiles, batch, stream);
  }
  if (tile_rows <= 64) {
    constexpr int kBK = F == WeightFormat::kBF16 ? 64 : 128;
    if (tiles * ((p.n + 63) / 64) >= blocks / 8)
      return launch_few_rows<F, 8, 4, kBK, 4>(p, row_tiles, batch, stream);
    return launch_few_rows<F, 8, 1, kBK, 4>(p, row_tiles, batch, stream);
  }
  if (!large_products_available()) return launch_forward<F, 4, 4, 2, 4, 64, 4>(p, row_tiles, batch, stream);
  LargeParams large{};
  large.a = p.a;
  large.b = static_cast<const uint16_t*>(p.b.data);
  large.c = p.c;
  large.lda = p.lda;
  large.ldb = p.k;
  large.ldc = p.ldc;
  large.m = p.m;
  large.n = p.n;
  large.l = p.k;
  large.c_bf16 = p.c_bf16;
  large.accumulate = p.accumulate;
  large.a_batch = p.a_batch;
  large.b_batch = p.b_batch;
  large.c_batch = p.c_batch;
  large.tiles = p.tiles;
  large.num_tiles = p.num_tiles;
  large.experts = p.experts;
  large.gather = p.gather;
  large.weight = p.b;
  large.a_outer = p.a_outer;
  large.inverse = p.inverse;
  if (grouped && p.c_bf16 && wide_tiles_take(p.m, p.n, p.lda, {p.c, p.ldc, p.c_bf16, p.accumulate})) {
    return launch_experts(F, large, stream);
  }
  if constexpr (F == WeightFormat::kBF16) {
    launch_large(LargeForm::kForward, large, row_tiles, batch, stream);
  } else {
    launch_large_quantized(F, large, row_tiles, stream);
  }
}

}  // namespace accord::kernels::cuda
