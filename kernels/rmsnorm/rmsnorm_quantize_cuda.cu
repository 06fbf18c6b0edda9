// RMSNorm (rmsnorm_cuda.cu) whose bf16 result goes straight into MXFP8 rows or NVFP4 per token: one pass over
// x.
#include "kernels/rmsnorm/norm_input.cuh"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

template <gpu::Sink kSink, bool kFourOverSix>
void launch(MatrixView x, const BF16* weight, float eps, float* inv_rms, const Residual& residual,
            const gpu::RowOutput<BF16>& out, StreamHandle stream) {
  const gpu::RowInput<BF16> in = gpu::norm_input(x, weight, eps, inv_rms, residual);
  if (in.sum != nullptr) {
    gpu::launch_rows<BF16, gpu::Source::kAddRmsNorm, kSink, kFourOverSix>(in, out, x.rows, x.cols, stream);
  } else {
    gpu::launch_rows<BF16, gpu::Source::kRmsNorm, kSink, kFourOverSix>(in, out, x.rows, x.cols, stream);
  }
}

}  // namespace

bool fuses_rows(int64_t cols) { return gpu::fits_rows(cols); }

void rms_norm_mxfp8(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms, uint8_t* q,
                    uint8_t* scale, StreamHandle stream, BF16* operand, const Residual& residual) {
  require(x.cols % 32 == 0, "x.cols % 32 == 0");
  if (x.rows == 0) {
    return;
  }
  const gpu::RowOutput<BF16> out{static_cast<BF16*>(y.data), y.stride, q, scale, nullptr, 0, false, operand};
  launch<gpu::Sink::kMxfp8, false>(x, weight, eps, inv_rms, residual, out, stream);
  check_launch("rms_norm_mxfp8");
}

void rms_norm_nvfp4(MatrixView x, const BF16* weight, float eps, MatrixView y, float* inv_rms,
                    const formats::Nvfp4Output& out, FourOverSix four_over_six, int range,
                    StreamHandle stream, BF16* operand, const Residual& residual) {
  if (x.rows == 0) {
    return;
  }
  const gpu::RowOutput<BF16> row_out{
      static_cast<BF16*>(y.data),         y.stride, out.q, out.scale, out.amax, range,
      four_over_six == FourOverSix::kMae, operand};
  if (four_over_six == FourOverSix::kNone) {
    launch<gpu::Sink::kNvfp4, false>(x, weight, eps, inv_rms, residual, row_out, stream);
  } else {
    launch<gpu::Sink::kNvfp4, true>(x, weight, eps, inv_rms, residual, row_out, stream);
  }
  check_launch("rms_norm_nvfp4");
}

}  // namespace accord::kernels::cuda
