#pragma once
// What a quantizer saw (health.hpp), counted on the device after it from its input and its scales. All
// pointers are the device's. The counts are the CPU's.
#include <cstdint>

#include "device/stream_handle.hpp"
#include "device/tensor_view.hpp"
#include "kernels/formats/element.hpp"
#include "kernels/formats/health.hpp"
#include "kernels/formats/nvfp4_types.hpp"

namespace accord::formats::cuda {

// Entries of scratch that one call needs.
constexpr int64_t kHealthScratch = 1024;

// result[0] gets the record of this tensor alone.
void measure_mxfp8_rows(MatrixView x, const uint8_t* scale, Element element, QuantHealth* result,
                        QuantHealth* scratch, StreamHandle stream);
void measure_mxfp8_cols(MatrixView x, const uint8_t* scale, Element element, QuantHealth* result,
                        QuantHealth* scratch, StreamHandle stream);
void measure_nvfp4(MatrixView x, const Nvfp4Options& options, const uint8_t* scale, const float* amax,
                   QuantHealth* result, QuantHealth* scratch, StreamHandle stream);

}  // namespace accord::formats::cuda
