#pragma once
// Internal to kernels/formats: NVFP4 per token of rows that fit into registers.
#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/nvfp4_types.hpp"

namespace accord::formats::cuda {

template <class T, bool kFourOverSix>
void quantize_rows(MatrixView x, const Nvfp4Output& out, int range, bool absolute, BF16* operand,
                   StreamHandle stream);

extern template void quantize_rows<float, false>(MatrixView, const Nvfp4Output&, int, bool, BF16*,
                                                 StreamHandle);
extern template void quantize_rows<float, true>(MatrixView, const Nvfp4Output&, int, bool, BF16*,
                                                StreamHandle);
extern template void quantize_rows<BF16, false>(MatrixView, const Nvfp4Output&, int, bool, BF16*,
                                                StreamHandle);
extern template void quantize_rows<BF16, true>(MatrixView, const Nvfp4Output&, int, bool, BF16*,
                                               StreamHandle);

// Whether quantize_rows takes rows of this length.
bool fits_registers(int64_t cols);

}  // namespace accord::formats::cuda
