// Scales of a block, the scalar quantizer that the vector code is held against, and the decoder.
#include <algorithm>

#include "kernels/formats/amax.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/ieee_mode.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/formats/nvfp4_tile.hpp"
#include "kernels/formats/visit.hpp"

namespace accord::formats {
namespace {

constexpr int kBlock = static_cast<int>(kNvfp4Block);

// Error of a candidate scale over a block: each row summed in order, then rows in a tree of halving width.
float candidate_error(const float* values, int rows, uint8_t s, const OuterScale& outer, FourOverSix mode) {
  const float k = nvfp4_multiplier(s, outer);
  const float scale = from_e4m3(s);
  float row_error[kBlock];
  for (int r = 0; r < rows; ++r) {
    float e = 0.0F;
    for (int i = 0; i < kBlock; ++i) {
      const float x = values[r * kBlock + i];
      const float q = from_e2m1(to_e2m1(x * k));
      const float d = ((q * scale) * outer.amax) / outer.divisor - x;
      e = e + (mode == FourOverSix::kMae ? std::fabs(d) : d * d);
    }
    row_error[r] = e;
  }
  for (int width = rows / 2; width > 0; width /= 2) {
    for (int r = 0; r < width; ++r) {
      row_error[r] = row_error[r] + row_error[r + width];
    }
  }
  return row_error[0];
}

}  // namespace

OuterScale outer_scale(float amax, int range) {
  const IeeeMode mode;
  return make_outer_scale(amax, range);
}

float nvfp4_multiplier(uint8_t s, const OuterScale& outer) {
  return clamp_finite(1.0F / (from_e4m3(s) * outer.inverse));
}

uint8_t nvfp4_block_scale(const float* values, int rows, float block_amax, const OuterScale& outer,
                          FourOverSix mode) {
  if (mode == FourOverSix::kNone) {
    return to_e4m3(clamp_finite(block_amax * outer.t));
  }
  const float base = (block_amax / 6.0F) * outer.s;
  const uint8_t s6 = to_e4m3(std::min(base, kE4M3Max));
  const uint8_t s4 = to_e4m3(std::min(base * 1.5F, kE4M3Max));
  const float e6 = candidate_error(values, rows, s6, outer, mode);
  const float e4 = candidate_error(values, rows, s4, outer, mode);
  return e4 < e6 ? s4 : s6;  // a NaN compares false
}

Status check_nvfp4_shape(int64_t rows, int64_t cols, const Nvfp4Options& options) {
  const bool square = options.layout == Nvfp4Layout::k16x16;
  if (rows < 0 || cols < 0 || cols % kNvfp4Block != 0) {
    return data_error(
        "shape [{}, {}]: NVFP4 needs a multiple of 16 along its last axis; keep this tensor in BF16 or pad "
        "it",
        rows, cols);
  }
  if (square && rows % kNvfp4Block != 0) {
    return data_error("shape [{}, {}]: the NVFP4 layout 16x16 needs a multiple of 16 rows; use layout 1x16",
                      rows, cols);
  }
  if (square && options.scope != Nvfp4Scope::kTensor) {
    return data_error("the NVFP4 layout 16x16 exists with scope tensor only; use layout 1x16 per token");
  }
  if (options.range != 448 && !(options.range == 256 && options.four_over_six != FourOverSix::kNone)) {
    return data_error("NVFP4 range {}: 448, or 256 with four over six", options.range);
  }
  return absl::OkStatus();
}

void quantize_nvfp4_reference(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out,
                              const float* shared_amax, QuantHealth* health) {
  require(check_input(x));
  require(check_nvfp4_shape(x.rows, x.cols, options));
  const IeeeMode mode;
  const bool per_token = options.scope == Nvfp4Scope::kToken;
  const int rows = options.layout == Nvfp4Layout::k16x16 ? kBlock : 1;
  const int64_t q_stride = x.cols / 2;
  const int64_t scale_stride = x.cols / kBlock;
  if (!per_token) {
    out.amax[0] = shared_amax != nullptr ? *shared_amax : amax(x);
  }
  visit_elements(x, [&](const auto* data) {
    for (int64_t r = 0; r < x.rows; r += rows) {
      if (per_token) {
        out.amax[r] = amax(x.slice_rows(r, 1));
      }
      const OuterScale outer = outer_scale(out.amax[per_token ? r : 0], options.range);
      for (int64_t c = 0; c < x.cols; c += kBlock) {
        quantize_nvfp4_tile(data + r * x.stride + c, x.stride, rows, outer, options.four_over_six,
                            out.q + r * q_stride + c / 2, q_stride, out.scale + r * scale_stride + c / kBlock,
                            scale_stride, health);
      }
    }
  });
  if (health != nullptr) {
    health->elements += x.rows * x.cols;
  }
}

void dequantize_nvfp4(const uint8_t* q, const uint8_t* scale, const float* amax, int64_t rows, int64_t cols,
                      Nvfp4Scope scope, int range, float* out) {
  require(check_nvfp4_shape(rows, cols, Nvfp4Options{scope, Nvfp4Layout::k1x16, FourOverSix::kMae, range}));
  const IeeeMode mode;
  for (int64_t r = 0; r < rows; ++r) {
    decode_nvfp4_row(q + r * (cols / 2), scale + r * (cols / kNvfp4Block),
                     amax[scope == Nvfp4Scope::kToken ? r : 0], range, cols, out + r * cols);
  }
}

}  // namespace accord::formats
