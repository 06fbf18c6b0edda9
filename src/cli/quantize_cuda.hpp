#pragma once
// accord quantize on a CUDA device. Only builds with CUDA have these functions.
#include <cstdint>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/health.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace accord::cli {

// x and the outputs are host memory; the counts are added to `health`.
Status quantize_mxfp8_on(const Device& device, MatrixView x, formats::Axis axis, formats::Element element,
                         uint8_t* q, uint8_t* scale, formats::QuantHealth& health);
Status quantize_nvfp4_on(const Device& device, MatrixView x, const formats::Nvfp4Options& options,
                         const formats::Nvfp4Output& out, formats::QuantHealth& health);

}  // namespace accord::cli
