#pragma once
// rmsnorm.hpp on CUDA: the same bits, in stream order, and fused with the quantizer that reads its result:
// the bytes are those of the two steps. All pointers are the device's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/nvfp4_types.hpp"

namespace accord::kernels::cuda {

// What is added to x before the norm, as add_rows does (embedding_cuda.hpp): the sum, rounded, is what is
// normalized. It goes to `sum`, which may be x or delta. delta's data null: nothing is added.
struct Residual {
  MatrixView delta;
  MatrixView sum;
};

// With a residual: bf16 rows as the fused forms take them, and sum and delta likewise.
void rms_norm(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, StreamHandle stream,
              const Residual& residual = {});

// Whether the fused forms take rows of this length: a multiple of 16 that fits into a block's registers. They
// take bf16 whose rows are aligned to 16 bytes. y (data null: none) gets the values themselves; inv_rms may
// be null. operand [rows, n] (or null) gets what the quantizer stored as products take it: expand_mxfp8's, or
// expand_nvfp4's without outer scales (gemm/gemm_cuda.hpp).
bool fuses_rows(int64_t cols);

// E4M3 rows: q [rows, n], aligned to 16 bytes, scale [rows, n/32]; n % 32 == 0.
void rms_norm_mxfp8(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, uint8_t* q,
                    uint8_t* scale, StreamHandle stream, BF16* operand = nullptr,
                    const Residual& residual = {});
// Scope token, layout 1x16.
void rms_norm_nvfp4(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms,
                    const formats::Nvfp4Output& out, FourOverSix four_over_six, int range,
                    StreamHandle stream, BF16* operand = nullptr, const Residual& residual = {});

}  // namespace accord::kernels::cuda
