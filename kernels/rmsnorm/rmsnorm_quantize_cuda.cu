// RMSNorm (rmsnorm_cuda.cu) whose bf16 result goes straight into MXFP8 rows or NVFP4 per token: one pass over
// x.
#include "kernels/formats/row_kernel.cuh"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

gpu::RowInput<BF16> input_of(MatrixView x, const BF16* weight, float eps, float* inv_rms) {
  require(x.dtype == Dtype::kBF16 && gpu::is_vectorizable(x) && gpu::fits_rows(x.cols),
          "x.dtype == Dtype::kBF16 && gpu::is_vectorizable(x) && gpu::fits_rows(x.cols)");
  return {static_cast<const BF16*>(x.data), x.stride, nullptr, 0, weight, eps, inv_rms};
}

}  // namespace

bool fuses_rows(int64_t cols) { return gpu::fits_rows(cols); }

void rms_norm_mxfp8(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, uint8_t* q,
                    uint8_t* scale, StreamHandle stream) {
  require(x.cols % 32 == 0, "x.cols % 32 == 0");
  if (x.rows == 0) {
    return;
  }
  const gpu::RowOutput<BF16> out{static_cast<BF16*>(y.data), y.stride, q, scale, nullptr, 0, false};
  gpu::launch_rows<BF16, gpu::Source::kRmsNorm, gpu::Sink::kMxfp8, false>(input_of(x, weight, eps, inv_rms),
                                                                          out, x.rows, x.cols, stream);
  check_launch("rms_norm_mxfp8");
}

void rms_norm_nvfp4(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms,
                    const formats::Nvfp4Output& out, FourOverSix four_over_six, int range,
                    StreamHandle stream) {
  if (x.rows == 0) {
    return;
  }
  const gpu::RowOutput<BF16> row_out{
      static_cast<BF16*>(y.data),        y.stride, out.q, out.scale, out.amax, range,
      four_over_six == FourOverSix::kMae};
  const gpu::RowInput<BF16> in = input_of(x, weight, eps, inv_rms);
  if (four_over_six == FourOverSix::kNone) {
    gpu::launch_rows<BF16, gpu::Source::kRmsNorm, gpu::Sink::kNvfp4, false>(in, row_out, x.rows, x.cols,
                                                                            stream);
  } else {
    gpu::launch_rows<BF16, gpu::Source::kRmsNorm, gpu::Sink::kNvfp4, true>(in, row_out, x.rows, x.cols,
                                                                           stream);
  }
  check_launch("rms_norm_nvfp4");
}

}  // namespace accord::kernels::cuda
