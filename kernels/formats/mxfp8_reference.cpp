// The scalar quantizer that the vector code is held against, and the decoder.
#include "kernels/formats/decode.hpp"
#include "kernels/formats/ieee_mode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/mxfp8_block.hpp"
#include "kernels/formats/visit.hpp"

namespace accord::formats {

Status check_mxfp8_shape(int64_t rows, int64_t cols, Axis axis) {
  const int64_t length = axis == Axis::kRow ? cols : rows;
  if (rows < 0 || cols < 0 || length % kMxfp8Block != 0) {
    return data_error(
        "shape [{}, {}]: MXFP8 needs a multiple of 32 along its {} axis; keep this tensor in BF16 or pad it",
        rows, cols, axis == Axis::kRow ? "last" : "first");
  }
  return absl::OkStatus();
}

void quantize_mxfp8_reference(MatrixView x, uint8_t* q, uint8_t* scale, Axis axis, Element element,
                              QuantHealth* health) {
  require(check_input(x));
  require(check_mxfp8_shape(x.rows, x.cols, axis));
  const IeeeMode mode;
  visit_elements(x, [&](const auto* data) {
    if (axis == Axis::kRow) {
      for (int64_t r = 0; r < x.rows; ++r) {
        for (int64_t c = 0; c < x.cols; c += kMxfp8Block) {
          quantize_mxfp8_block(data + r * x.stride + c, 1, q + r * x.cols + c, 1, scale++, element, health);
        }
      }
    } else {
      for (int64_t r = 0; r < x.rows; r += kMxfp8Block) {
        for (int64_t c = 0; c < x.cols; ++c) {
          quantize_mxfp8_block(data + r * x.stride + c, x.stride, q + r * x.cols + c, x.cols, scale++,
                               element, health);
        }
      }
    }
  });
  if (health != nullptr) {
    health->elements += x.rows * x.cols;
  }
}

void dequantize_mxfp8(const uint8_t* q, const uint8_t* scale, int64_t rows, int64_t cols, Axis axis,
                      Element element, float* out) {
  require(check_mxfp8_shape(rows, cols, axis));
  const IeeeMode mode;
  for (int64_t r = 0; r < rows; ++r) {
    if (axis == Axis::kRow) {
      decode_mxfp8_row(q + r * cols, scale + r * (cols / kMxfp8Block), cols, out + r * cols, element);
      continue;
    }
    const uint8_t* row_scale = scale + (r / kMxfp8Block) * cols;
    for (int64_t c = 0; c < cols; ++c) {
      out[r * cols + c] = from_element(q[r * cols + c], element) * from_e8m0(row_scale[c]);
    }
  }
}

}  // namespace accord::formats
