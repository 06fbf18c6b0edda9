#pragma once
// Products on the GPU with BF16 tensor cores: one fp32 accumulator per output, the contracted dimension in
// ascending groups of 16 (exact.hpp says the arithmetic of a group). An output therefore depends on its own
// row and column alone: not on the number of rows, tiling, grouping, gathering, or what other rows hold.
//
//   forward   C[m,n]  = sum over k of A[m,k] B[n,k]          B: BF16, MXFP8 or NVFP4, decoded exactly into
//   BF16 dgrad     C[m,n]  = sum over l of A[m,l] B[l,n]          dX = dY W wgrad     C[m,n] (+)= sum over l
//   of A[l,m] B[l,n]        dW = dY^T X
//
// A holds BF16 values: plain, decoded MXFP8, or NVFP4 products (E2M1 * E4M3) with an outer scale per row;
// expand_* makes the latter two from quantized activations. Epilogues (docs/contract.md, section 4), rounded
// once to bf16 or kept in fp32:
//   BF16, MXFP8   acc
//   NVFP4         fl(fl(acc * fl(1/(36 R_a R_b))) * fl(A_row * A_b))
//
// Pointers are device memory, 16-byte aligned; leading dimensions count elements. Nothing allocates or waits.
// What a kernel takes (gemm_*_takes, to be asked where shapes are fixed; other shapes are a programming
// error):
//   forward   lda % 8 == 0; K % 8 == 0 (BF16), % 32 (MXFP8), % 16 (NVFP4)
//   dgrad     L % 8 == 0, lda % 8 == 0, ldb % 8 == 0, N % 8 == 0
//   wgrad     lda % 8 == 0, ldb % 8 == 0, M % 8 == 0, N % 8 == 0; any L
#include <cstdint>
#include <span>

#include "base/dtype.hpp"
#include "base/weight_format.hpp"
#include "device/stream_handle.hpp"

namespace accord::kernels::cuda {

// A weight [N,K] as it lies in the arena.
struct GemmWeight {
  const void* data = nullptr;       // bf16 [N,K]; e4m3 [N,K]; packed e2m1 [N,K/2]
  const uint8_t* scales = nullptr;  // e8m0 [N,K/32]; e4m3 [N,K/16]
  const float* outer = nullptr;     // NVFP4: one fp32
  const void* fragments = nullptr;  // null, or a copy in the order of fragments.hpp
};

// Rows [row_begin, row_begin + num_rows) of the sorted order belong to `expert`; num_rows <= the tile's rows.
struct GroupTile {
  int32_t expert = 0;
  int32_t row_begin = 0;
  int32_t num_rows = 0;
};

// A product per expert over its rows, from a list in device memory. All arrays are device memory.
struct GemmGroups {
  const GroupTile* tiles = nullptr;     // build_group_tiles
  const int32_t* num_tiles = nullptr;   // one int
  int32_t max_tiles = 0;                // host: bound of *num_tiles (group_tiles_bound)
  int32_t tile_rows = 0;                // host: group_tile_rows
  const GemmWeight* experts = nullptr;  // per expert
  const int32_t* gather = nullptr;  // row of A (and of its outer scales) for each sorted row; null: the same
  // Tiles, their number and the experts' array were complete before the kernel launched last on this stream
  // began: as b_at_rest below. False is always right.
  bool at_rest = false;
};

struct GemmOutput {
  void* data = nullptr;
  int64_t ld = 0;
  bool bf16 = false;        // else fp32
  bool accumulate = false;  // fp32 only: C = fl(C + result)
};

// `batch` products of one shape; strides in elements (0: shared).
struct GemmBatch {
  int32_t count = 1;
  int64_t a = 0;
  int64_t b = 0;
  int64_t c = 0;
};

struct GemmForward {
  WeightFormat format = WeightFormat::kBF16;
  int64_t m = 0;  // rows of C; grouped: all rows of the sorted order
  int64_t n = 0;
  int64_t k = 0;
  const BF16* a = nullptr;
  int64_t lda = 0;
  const float* a_outer = nullptr;  // NVFP4: per row of A
  int32_t a_range = 448;           // NVFP4: R_a
  int32_t b_range = 448;
  GemmWeight b;
  bool fragments = false;  // every B has them: products of few rows may read those instead
  GemmOutput c;
  const GemmGroups* groups = nullptr;
  GemmBatch batch;  // BF16, not grouped
  // The weights (b, or the experts') were complete before the kernel launched last on this stream began, as a
  // model's are behind a norm or a quantizer of the rows: the product may read them before that kernel ends
  // (cuda/overlap.cuh). False is always right.
  bool b_at_rest = false;
};
bool gemm_forward_takes(const GemmForward& g);
void gemm_forward(const GemmForward& g, StreamHandle stream);
// The products in turn, or side by side in fewer launches where a kernel takes them so: of one A and form of
// weight, not batched; grouped, of one list. They differ in b or the list's experts, n and c, c's dtype
// excepted. A launch is at rest (b_at_rest, GemmGroups::at_rest) where all that it stands for are.
bool gemm_forward_takes_together(std::span<const GemmForward> products);
void gemm_forward_together(std::span<const GemmForward> products, StreamHandle stream);

struct GemmBackward {
  int64_t m = 0;
  int64_t n = 0;
  int64_t l = 0;  // contracted; grouped wgrad: given by `offsets`
  const BF16* a = nullptr;
  int64_t lda = 0;
  const BF16* b = nullptr;  // [l,n]
  int64_t ldb = 0;
  GemmOutput c;
  GemmBatch batch;
  // dgrad, grouped: b and ldb of expert e are experts[e].data and ldb.
  const GemmGroups* groups = nullptr;
  // wgrad, grouped over `num_experts`: rows [offsets[e], offsets[e+1]) of A and of B (through b_gather, if
  // any), result in outputs[e] (device array of pointers); an expert without rows gives zeros (or keeps C).
  int32_t num_experts = 0;
  const int32_t* offsets = nullptr;
  const int32_t* b_gather = nullptr;
  void* const* outputs = nullptr;
};
bool gemm_dgrad_takes(const GemmBackward& g);
void gemm_dgrad(const GemmBackward& g, StreamHandle stream);
bool gemm_wgrad_takes(const GemmBackward& g);
void gemm_wgrad(const GemmBackward& g, StreamHandle stream);

// ---- the list of tiles of a grouped product ---------------------------------------------------------------
// Rows per tile that suit `rows` rows over `experts` experts: 16, 64 or 128. Any choice gives the same bits.
int32_t group_tile_rows(int64_t rows, int64_t experts);
int32_t group_tiles_bound(int64_t rows, int64_t experts, int32_t tile_rows);
// Entries that a list may need.
int32_t group_list_size(int64_t rows, int64_t experts, int32_t tile_rows);
// offsets [experts + 1] -> tiles in ascending order, *num_tiles. After tiles of 128 rows follow the same rows
// in wide ones, wide_rows.hpp: one entry with their number in `expert`, then they.
void build_group_tiles(const int32_t* offsets, int32_t experts, int32_t tile_rows, GroupTile* tiles,
                       int32_t* num_tiles, StreamHandle stream);

// ---- quantized operands as BF16
// ------------------------------------------------------------------------------ Decoded MXFP8 [rows, cols];
// `column_wise`: one scale per 32 rows, [rows/32, cols], else [rows, cols/32].
void expand_mxfp8(const uint8_t* q, const uint8_t* scales, int64_t rows, int64_t cols, bool column_wise,
                  bool e5m2, BF16* out, int64_t ldo, StreamHandle stream);
// NVFP4 [rows, cols]: the products E2M1 * E4M3 (outer == null), or bf16 of the decoded values; outer per row
// or one for all.
void expand_nvfp4(const uint8_t* q, const uint8_t* scales, const float* outer, bool outer_per_row,
                  int32_t range, int64_t rows, int64_t cols, BF16* out, int64_t ldo, StreamHandle stream);
// *flag |= 1 where a block with a nonzero code has a scale outside 2^-117 .. 2^119, where BF16 may not hold
// its values, and |= 2 where a code is NaN: such weights must not be multiplied by these kernels. Zero *flag
// before.
void check_mxfp8_range(const uint8_t* q, const uint8_t* scales, int64_t rows, int64_t cols, int32_t* flag,
                       StreamHandle stream);

}  // namespace accord::kernels::cuda
