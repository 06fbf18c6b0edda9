#pragma once
// How many blocks, warps and stages the kernel of gemm_decode.cuh runs with. Included by the files that
// instantiate it.
#include <algorithm>

#include "kernels/gemm/gemm_decode.cuh"

namespace accord::kernels::cuda {

// True: launched. Blocks of `per_multiprocessor` on one, which share its memory.
template <WeightFormat F, WeightOrder O, int W, int STAGES, int SLABS = 1>
bool launch_decode_as(const ForwardParams& p, int32_t row_tiles, int per_multiprocessor,
                      StreamHandle stream) {
  using T = DecodeLayout<F, O, W, STAGES, SLABS>;
  // Of a block; a multiprocessor has 1 KiB more, and each block takes 1 KiB.
  constexpr int kShared = 227 * 1024;
  const int room = std::min(kShared, 228 * 1024 / per_multiprocessor - 1024);
  const int tokens = T::tokens_that_fit(p.k, room);
  if (tokens < kDecodeTileRows) return false;
  const auto kernel = decode_kernel<T>;
  const int bytes = T::shared_bytes(p.k, tokens);
  cudaFuncSetAttribute(kernel, cudaFuncAttributeMaxDynamicSharedMemorySize, bytes);
  const int blocks = num_multiprocessors() * per_multiprocessor;
  gpu::launch_overlapped(kernel, static_cast<unsigned>(blocks), 32 * W, bytes, stream, p, row_tiles, tokens);
  check_launch("gemm_forward");
  return true;
}

// Two slabs at a time read the rows of A in shared memory half as often. But where tiles are rather full (row
// tiles are a bound: as many as experts and full tiles), blocks wait less if the rows of two tiles fit.
template <WeightFormat F, WeightOrder O>
bool launch_one_or_two_slabs(const ForwardParams& p, int32_t row_tiles, StreamHandle stream) {
  const bool full = p.m >= int64_t{5} * row_tiles && p.k > 1024;
  const bool two = p.n % 32 == 0 && !full;
  return (two && launch_decode_as<F, O, 12, 2, 2>(p, row_tiles, 1, stream)) ||
         launch_decode_as<F, O, 16, 2>(p, row_tiles, 1, stream);
}

template <WeightFormat F, WeightOrder O>
bool launch_decode_of(const ForwardParams& p, int32_t row_tiles, StreamHandle stream) {
  const int64_t slabs = int64_t{row_tiles} * (p.n / 16) * (p.experts_2 != nullptr ? 2 : 1);
  if (slabs > kMaxShareSlabs) return false;
  const int blocks = num_multiprocessors();
  // Slabs in flight times stages: enough bytes on their way however few slabs there are.
  if (slabs <= int64_t{4} * blocks && launch_decode_as<F, O, 4, 8>(p, row_tiles, 1, stream)) return true;
  if (slabs <= int64_t{8} * blocks && launch_decode_as<F, O, 8, 6>(p, row_tiles, 1, stream)) return true;
  if constexpr (O == WeightOrder::kFragments && F == WeightFormat::kNVFP4) {
    return launch_one_or_two_slabs<F, O>(p, row_tiles, stream);
  } else if constexpr (O == WeightOrder::kFragments) {
    return launch_decode_as<F, O, 12, 4>(p, row_tiles, 1, stream) ||
           launch_decode_as<F, O, 12, 3>(p, row_tiles, 1, stream);  // longer rows
  } else if constexpr (F == WeightFormat::kBF16) {
    return launch_decode_as<F, O, 8, 8>(p, row_tiles, 1, stream);
  } else if constexpr (F == WeightFormat::kMXFP8) {
    // Longer rows are read faster by blocks of fewer warps (gemm_few_rows.cuh).
    return p.k <= 1024 && (launch_decode_as<F, O, 8, 2>(p, row_tiles, 3, stream) ||
                           launch_decode_as<F, O, 8, 4>(p, row_tiles, 2, stream) ||
                           launch_decode_as<F, O, 16, 4>(p, row_tiles, 1, stream));
  } else {
    // Two blocks of a multiprocessor wait for each other's rows of A less than one of all its warps.
    return launch_decode_as<F, O, 8, 3>(p, row_tiles, 2, stream) ||
           launch_decode_as<F, O, 16, 3>(p, row_tiles, 1, stream);
  }
}

// True: it took the product or both, of at most 16 rows or grouped by 16: N % 16 == 0, K a multiple of a
// stage, rows of A fit, and C can be written two BF16 at a time.
template <WeightFormat F>
bool launch_decode(const ForwardParams& p, int32_t row_tiles, StreamHandle stream) {
  constexpr WeightOrder kRows = WeightOrder::kRows;
  const auto in_pairs = [](const void* c) { return reinterpret_cast<uintptr_t>(c) % 4 == 0; };
  const bool pairs = !p.c_bf16 || (p.ldc % 2 == 0 && in_pairs(p.c) && in_pairs(p.c_2));
  if (p.n % 16 != 0 || !pairs || p.k % DecodeLayout<F, kRows, 4, 8, 1>::kStep != 0) return false;
  if constexpr (F == WeightFormat::kBF16) {
    // With few rows per expert the blocks of gemm_few_rows.cuh read faster; with more, their rows of A cost
    // as much as the weights. Row tiles are a bound: as many as experts and full tiles.
    const bool enough = p.m >= int64_t{p.k <= 1024 ? 5 : 6} * row_tiles;
    return enough && p.tiles != nullptr && launch_decode_of<F, kRows>(p, row_tiles, stream);
  } else {
    return p.fragments ? launch_decode_of<F, WeightOrder::kFragments>(p, row_tiles, stream)
                       : launch_decode_of<F, kRows>(p, row_tiles, stream);
  }
}

}  // namespace accord::kernels::cuda
