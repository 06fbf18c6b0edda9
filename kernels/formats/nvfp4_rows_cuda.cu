// NVFP4 per token (nvfp4.hpp): a row's amax and its bytes in one pass, the row held in registers.
#include "kernels/formats/nvfp4_rows.hpp"
#include "kernels/formats/row_kernel.cuh"

namespace accord::formats::cuda {

template <class T, bool kFourOverSix>
void quantize_rows(MatrixView x, const Nvfp4Output& out, int range, bool absolute, BF16* operand,
                   StreamHandle stream) {
  gpu::RowInput<T> in;
  in.x = static_cast<const T*>(x.data);
  in.x_stride = x.stride;
  const gpu::RowOutput<T> row_out{nullptr, 0, out.q, out.scale, out.amax, range, absolute, operand};
  gpu::launch_rows<T, gpu::Source::kRead, gpu::Sink::kNvfp4, kFourOverSix>(in, row_out, x.rows, x.cols,
                                                                           stream);
  check_launch("quantize_nvfp4");
}

template void quantize_rows<float, false>(MatrixView, const Nvfp4Output&, int, bool, BF16*, StreamHandle);
template void quantize_rows<float, true>(MatrixView, const Nvfp4Output&, int, bool, BF16*, StreamHandle);
template void quantize_rows<BF16, false>(MatrixView, const Nvfp4Output&, int, bool, BF16*, StreamHandle);
template void quantize_rows<BF16, true>(MatrixView, const Nvfp4Output&, int, bool, BF16*, StreamHandle);

bool fits_registers(int64_t cols) { return gpu::fits_rows(cols); }

}  // namespace accord::formats::cuda
