// Vector quantizers (AVX2). Eight blocks share one computation of their scales; a group that holds a NaN or
// an Inf goes through the scalar block instead, so that the fast path needs no clamp: with a finite amax no
// scaled value can round above the largest element value.
#include "kernels/formats/mxfp8.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/formats/avx2.hpp"
#include "kernels/formats/ieee_mode.hpp"
#include "kernels/formats/mxfp8_block.hpp"
#include "kernels/formats/visit.hpp"

namespace accord::formats {
namespace {

constexpr int kGroupBlocks = 8;
constexpr int64_t kGroup = kGroupBlocks * kMxfp8Block;
constexpr int64_t kPanel = 32;  // columns that the column-wise quantizer takes at a time

template <Element kElement>
struct Traits;
template <>
struct Traits<Element::kE4M3> : avx2::GridE4M3 {
  static constexpr float kInverseMax = kInverseE4M3Max;
  static constexpr float kMax = kE4M3Max;
};
template <>
struct Traits<Element::kE5M2> : avx2::GridE5M2 {
  static constexpr float kInverseMax = kInverseE5M2Max;
  static constexpr float kMax = kE5M2Max;
};

// E8M0_up of finite values: one more where any bit lies below the exponent, except that the subnormals up to
// 2^-127 still have exponent 0.
__m256i scale_exponent(__m256i amax_bits, float inverse_max) {
  const __m256i bits =
      _mm256_castps_si256(_mm256_mul_ps(_mm256_castsi256_ps(amax_bits), _mm256_set1_ps(inverse_max)));
  const __m256i is_subnormal = _mm256_cmpgt_epi32(_mm256_set1_epi32(0x00800000), bits);
  const __m256i carry =
      _mm256_blendv_epi8(_mm256_set1_epi32(0x007fffff), _mm256_set1_epi32(0x003fffff), is_subnormal);
  return _mm256_srli_epi32(_mm256_add_epi32(bits, carry), 23);
}

// 2^(127-e) for e < 254.
__m256 reciprocal_scale(__m256i e) {
  return _mm256_castsi256_ps(_mm256_slli_epi32(_mm256_sub_epi32(_mm256_set1_epi32(254), e), 23));
}

// Eight exponents as bytes, in order.
void store_exponents(__m256i e, uint8_t* out) {
  const __m128i words = _mm_packus_epi32(_mm256_castsi256_si128(e), _mm256_extracti128_si256(e, 1));
  _mm_storel_epi64(reinterpret_cast<__m128i*>(out), _mm_packus_epi16(words, words));
}

// 32 consecutive elements, vector i scaled by r[i]. Inlined so that its constants stay in registers.
template <class Format, bool kHealth, class T>
[[gnu::always_inline]] inline void cast32(const T* x, const __m256 (&r)[4], uint8_t* q,
                                          avx2::Counts& counts) {
  __m256 values[4];
  __m256i codes[4];
  for (int i = 0; i < 4; ++i) {
    values[i] = avx2::load8(x + 8 * i);
    const __m256 scaled = _mm256_mul_ps(avx2::abs8(values[i]), r[i]);
    codes[i] = Format::round(scaled).code;
    if constexpr (kHealth) {
      counts.add(values[i], scaled, Format::kMax, Format::kZeroBelow);
    }
  }
  const __m256i magnitude = _mm256_add_epi8(avx2::pack_low_bytes(codes[0], codes[1], codes[2], codes[3]),
                                            _mm256_set1_epi8(Format::kBias));
  const __m256i packed = _mm256_or_si256(magnitude, avx2::pack_signs(values));
  _mm256_storeu_si256(reinterpret_cast<__m256i*>(q), avx2::in_order(packed));
}

// Eight row-wise blocks, 256 consecutive elements.
template <Element kElement, bool kHealth, class T>
void quantize_group(const T* x, uint8_t* q, uint8_t* scale, avx2::Counts& counts, QuantHealth* health) {
  using Format = Traits<kElement>;
  __m256i block_amax[kGroupBlocks];
  for (int b = 0; b < kGroupBlocks; ++b) {
    const T* block = x + b * kMxfp8Block;
    block_amax[b] = _mm256_max_epi32(avx2::magnitude_bits16(block), avx2::magnitude_bits16(block + 16));
  }
  const __m256i amax_bits = avx2::reduce_max8(block_amax);
  if (avx2::any_special(amax_bits)) [[unlikely]] {
    for (int b = 0; b < kGroupBlocks; ++b) {
      quantize_mxfp8_block(x + b * kMxfp8Block, 1, q + b * kMxfp8Block, 1, scale + b, kElement, health);
    }
    return;
  }
  if constexpr (kHealth) {
    counts.amax = _mm256_max_epi32(counts.amax, amax_bits);
  }
  const __m256i e = scale_exponent(amax_bits, Format::kInverseMax);
  store_exponents(e, scale);
  alignas(32) float r[kGroupBlocks];
  _mm256_store_ps(r, reciprocal_scale(e));
  for (int b = 0; b < kGroupBlocks; ++b) {
    const __m256 factor = _mm256_broadcast_ss(r + b);
    const __m256 factors[4] = {factor, factor, factor, factor};
    cast32<Format, kHealth>(x + b * kMxfp8Block, factors, q + b * kMxfp8Block, counts);
  }
}

// n % 32 == 0 consecutive elements.
template <Element kElement, bool kHealth, class T>
void quantize_row(const T* x, int64_t n, uint8_t* q, uint8_t* scale, avx2::Counts& counts,
                  QuantHealth* health) {
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    quantize_group<kElement, kHealth>(x + i, q + i, scale + i / kMxfp8Block, counts, health);
  }
  if (i < n) {  // the rest, filled up with zeros, which count nowhere
    const int64_t rest = n - i;
    T padded[kGroup] = {};
    uint8_t padded_q[kGroup];
    uint8_t padded_scale[kGroupBlocks];
    std::copy_n(x + i, rest, padded);
    quantize_group<kElement, kHealth>(padded, padded_q, padded_scale, counts, health);
    std::copy_n(padded_q, rest, q + i);
    std::copy_n(padded_scale, rest / kMxfp8Block, scale + i / kMxfp8Block);
  }
}

// 32 rows of 32 columns, one block a column.
template <Element kElement, bool kHealth, class T>
void quantize_panel(const T* x, int64_t x_stride, uint8_t* q, int64_t q_stride, uint8_t* scale,
                    avx2::Counts& counts, QuantHealth* health) {
  using Format = Traits<kElement>;
  __m256i amax_bits[4] = {};
  for (int64_t r = 0; r < kMxfp8Block; ++r) {
    for (int i = 0; i < 4; ++i) {
      amax_bits[i] =
          _mm256_max_epi32(amax_bits[i], avx2::magnitude_bits(avx2::load8(x + r * x_stride + 8 * i)));
    }
  }
  const __m256i panel_amax = _mm256_max_epi32(_mm256_max_epi32(amax_bits[0], amax_bits[1]),
                                              _mm256_max_epi32(amax_bits[2], amax_bits[3]));
  if (avx2::any_special(panel_amax)) [[unlikely]] {
    for (int64_t c = 0; c < kPanel; ++c) {
      quantize_mxfp8_block(x + c, x_stride, q + c, q_stride, scale + c, kElement, health);
    }
    return;
  }
  if constexpr (kHealth) {
    counts.amax = _mm256_max_epi32(counts.amax, panel_amax);
  }
  __m256 factors[4];
  for (int i = 0; i < 4; ++i) {
    const __m256i e = scale_exponent(amax_bits[i], Format::kInverseMax);
    store_exponents(e, scale + 8 * i);
    factors[i] = reciprocal_scale(e);
  }
  for (int64_t r = 0; r < kMxfp8Block; ++r) {
    cast32<Format, kHealth>(x + r * x_stride, factors, q + r * q_stride, counts);
  }
}

template <Element kElement, bool kHealth, class T>
void quantize_stripe(const T* x, int64_t x_stride, int64_t cols, uint8_t* q, uint8_t* scale,
                     avx2::Counts& counts, QuantHealth* health) {
  int64_t c = 0;
  for (; c + kPanel <= cols; c += kPanel) {
    quantize_panel<kElement, kHealth>(x + c, x_stride, q + c, cols, scale + c, counts, health);
  }
  if (c < cols) {
    const int64_t rest = cols - c;
    T padded[kMxfp8Block * kPanel] = {};
    uint8_t padded_q[kMxfp8Block * kPanel];
    uint8_t padded_scale[kPanel];
    for (int64_t r = 0; r < kMxfp8Block; ++r) {
      std::copy_n(x + r * x_stride + c, rest, padded + r * kPanel);
    }
    quantize_panel<kElement, kHealth>(padded, kPanel, padded_q, kPanel, padded_scale, counts, health);
    for (int64_t r = 0; r < kMxfp8Block; ++r) {
      std::copy_n(padded_q + r * kPanel, rest, q + r * cols + c);
    }
    std::copy_n(padded_scale, rest, scale + c);
  }
}

template <Element kElement, bool kHealth, class T>
void quantize_all(const T* x, const MatrixView& view, Axis axis, uint8_t* q, uint8_t* scale,
                  QuantHealth* health) {
  avx2::Counts counts;
  const int64_t cols = view.cols;
  if (axis == Axis::kRow) {
    // Blocks of contiguous rows form one long row.
    const bool contiguous = view.stride == cols;
    const int64_t num_rows = contiguous ? std::min<int64_t>(view.rows, 1) : view.rows;
    const int64_t length = contiguous ? view.rows * cols : cols;
    for (int64_t r = 0; r < num_rows; ++r) {
      quantize_row<kElement, kHealth>(x + r * view.stride, length, q + r * length,
                                      scale + r * (length / kMxfp8Block), counts, health);
      if constexpr (kHealth) {
        counts.flush(*health);
      }
    }
  } else {
    for (int64_t r = 0; r < view.rows; r += kMxfp8Block) {
      quantize_stripe<kElement, kHealth>(x + r * view.stride, view.stride, cols, q + r * cols,
                                         scale + (r / kMxfp8Block) * cols, counts, health);
      if constexpr (kHealth) {
        counts.flush(*health);
      }
    }
  }
}

void quantize(MatrixView x, Axis axis, uint8_t* q, uint8_t* scale, Element element, QuantHealth* health) {
  require(check_input(x));
  require(check_mxfp8_shape(x.rows, x.cols, axis));
  const IeeeMode mode;
  visit_elements(x, [&](const auto* data) {
    if (element == Element::kE4M3) {
      if (health == nullptr) {
        quantize_all<Element::kE4M3, false>(data, x, axis, q, scale, nullptr);
      } else {
        quantize_all<Element::kE4M3, true>(data, x, axis, q, scale, health);
      }
    } else if (health == nullptr) {
      quantize_all<Element::kE5M2, false>(data, x, axis, q, scale, nullptr);
    } else {
      quantize_all<Element::kE5M2, true>(data, x, axis, q, scale, health);
    }
  });
  if (health != nullptr) {
    health->elements += x.rows * x.cols;
  }
}

}  // namespace

void quantize_mxfp8_rows(MatrixView x, uint8_t* q, uint8_t* scale, Element element, QuantHealth* health) {
  quantize(x, Axis::kRow, q, scale, element, health);
}

void quantize_mxfp8_cols(MatrixView x, uint8_t* q, uint8_t* scale, Element element, QuantHealth* health) {
  quantize(x, Axis::kCol, q, scale, element, health);
}

}  // namespace accord::formats
