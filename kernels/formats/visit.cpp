#include "kernels/formats/visit.hpp"

#include <cstdlib>

#include "base/log.hpp"

namespace accord::formats {

void require(const Status& status) {
  if (!status.ok()) {
    log::error("kernels/formats: {}; the caller must check before it calls", message_of(status));
    std::abort();
  }
}

Status check_input(const MatrixView& x) {
  if (x.dtype != Dtype::kF32 && x.dtype != Dtype::kBF16) {
    return data_error("quantizers read fp32 or bf16 values only");
  }
  if (x.rows < 0 || x.cols < 0 || (x.rows > 1 && x.stride < x.cols)) {
    return data_error("[{}, {}] with row stride {} is no matrix", x.rows, x.cols, x.stride);
  }
  return absl::OkStatus();
}

}  // namespace accord::formats
