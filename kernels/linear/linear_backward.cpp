#include "kernels/linear/linear_backward.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/formats/decode.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace accord::kernels {

namespace {

constexpr int64_t kStripe = formats::kMxfp8Block;  // rows at a time

// One stripe's scratch memory, the largest alignment first.
struct Stripe {
  Stripe(float* scratch, int64_t cols)
      : padded(scratch),
        amax(padded + kStripe * cols),
        q(reinterpret_cast<uint8_t*>(amax + kStripe)),
        scale(q + kStripe * cols) {}
  float* padded;   // [32,cols]
  float* amax;     // [32]
  uint8_t* q;      // at most [32,cols]
  uint8_t* scale;  // at most [32,cols/16]
};

MatrixView rows_of(const float* x, int64_t rows, int64_t cols) {
  return {const_cast<float*>(x), Dtype::kF32, rows, cols, cols};  // quantizers only read
}

}  // namespace

void widen(MatrixView in, float* out) {
  for (int64_t r = 0; r < in.rows; ++r, out += in.cols) {
    if (in.dtype == Dtype::kF32) {
      std::memcpy(out, in.row<float>(r), static_cast<size_t>(in.cols) * sizeof(float));
    } else {
      const BF16* x = in.row<BF16>(r);
      for (int64_t c = 0; c < in.cols; ++c) out[c] = to_float(x[c]);
    }
  }
}

void round_to_bf16(const float* in, int64_t count, float* out) {
  for (int64_t i = 0; i < count; ++i) {
    const uint32_t u = std::bit_cast<uint32_t>(in[i]);
    const uint32_t rounded = u + 0x7fffu + ((u >> 16) & 1u);
    const uint32_t quiet = u | 0x400000u;  // what to_bf16 makes of a NaN
    const bool is_nan = (u & 0x7fffffffu) > 0x7f800000u;
    out[i] = std::bit_cast<float>((is_nan ? quiet : rounded) & 0xffff0000u);
  }
}

int64_t backward_operand_scratch(int64_t cols) {
  const int64_t bytes = kStripe * cols + kStripe * ((cols + 15) / 16);
  return kStripe * cols + kStripe + (bytes + 3) / 4;
}

void decoded_activation(const float* x, int64_t rows, int64_t cols, const ActivationFormat& format,
                        float* out, float* scratch) {
  const Stripe stripe(scratch, cols);
  for (int64_t begin = 0; begin < rows; begin += kStripe) {
    const int64_t count = std::min(kStripe, rows - begin);
    const MatrixView view = rows_of(x + begin * cols, count, cols);
    float* to = out + begin * cols;
    if (format.format == WeightFormat::kMXFP8) {
      formats::quantize_mxfp8_rows(view, stripe.q, stripe.scale, formats::Element::kE4M3);
      formats::dequantize_mxfp8(stripe.q, stripe.scale, count, cols, formats::Axis::kRow,
                                formats::Element::kE4M3, to);
    } else {
      formats::Nvfp4Options options;
      options.scope = formats::Nvfp4Scope::kToken;
      options.four_over_six = format.scaling.four_over_six;
      options.range = format.scaling.range;
      formats::quantize_nvfp4(view, options, {stripe.q, stripe.scale, stripe.amax});
      formats::dequantize_nvfp4(stripe.q, stripe.scale, stripe.amax, count, cols, options.scope,
                                options.range, to);
    }
    round_to_bf16(to, count * cols, to);
  }
}

void decoded_weight(const LinearWeight& w, int64_t begin, int64_t count, float* out) {
  const auto* data = static_cast<const uint8_t*>(w.data);
  for (int64_t row = begin; row < begin + count; ++row, out += w.k) {
    if (w.format == WeightFormat::kMXFP8) {
      formats::decode_mxfp8_row(data + row * w.k, w.scales + row * (w.k / formats::kMxfp8Block), w.k, out);
    } else {
      formats::decode_nvfp4_row(data + row * (w.k / 2), w.scales + row * (w.k / formats::kNvfp4Block),
                                *w.outer, w.scaling.range, w.k, out);
    }
    round_to_bf16(out, w.k, out);
  }
}

void mxfp8_operand(const float* x, int64_t rows, int64_t cols, formats::Axis axis, formats::Element element,
                   float* out, float* scratch) {
  const Stripe stripe(scratch, cols);
  for (int64_t begin = 0; begin < rows; begin += kStripe) {
    const int64_t count = std::min(kStripe, rows - begin);
    const float* from = x + begin * cols;
    float* to = out + begin * cols;
    if (axis == formats::Axis::kRow) {
      formats::quantize_mxfp8_rows(rows_of(from, count, cols), stripe.q, stripe.scale, element);
      formats::dequantize_mxfp8(stripe.q, stripe.scale, count, cols, axis, element, to);
      continue;
    }
    if (count < kStripe) {
      std::copy_n(from, count * cols, stripe.padded);
      std::fill(stripe.padded + count * cols, stripe.padded + kStripe * cols, 0.0F);
      from = stripe.padded;
      to = stripe.padded;
    }
    formats::quantize_mxfp8_cols(rows_of(from, kStripe, cols), stripe.q, stripe.scale, element);
    formats::dequantize_mxfp8(stripe.q, stripe.scale, kStripe, cols, axis, element, to);
    if (count < kStripe) std::copy_n(to, count * cols, out + begin * cols);
  }
}

}  // namespace accord::kernels
