// Vector quantizer (AVX2): eight blocks side by side, one a lane, for their scales and four-over-six errors.
// A group that holds a NaN or an Inf goes through the scalar tile instead.
#include "kernels/formats/nvfp4.hpp"

#include <algorithm>
#include <cfloat>

#include "kernels/formats/amax.hpp"
#include "kernels/formats/avx2.hpp"
#include "kernels/formats/ieee_mode.hpp"
#include "kernels/formats/nvfp4_tile.hpp"
#include "kernels/formats/visit.hpp"

namespace accord::formats {
namespace {

constexpr int kBlock = static_cast<int>(kNvfp4Block);
constexpr int kGroupBlocks = 8;
constexpr int kGroup = kGroupBlocks * kBlock;  // columns of a group

// Where a group's results go.
struct Target {
  uint8_t* q;
  int64_t q_stride;
  uint8_t* scale;
  int64_t scale_stride;
};

// Scales of eight blocks.
struct BlockScales {
  __m256i code;  // E4M3 in 32-bit lanes, without Grid::kBias in the low byte
  __m256 value;
  __m256 multiplier;  // k
};

// scaled: the argument of the E4M3 cast, not NaN.
BlockScales block_scales(__m256 scaled, const OuterScale& outer) {
  const avx2::Rounded s = avx2::GridE4M3::round(_mm256_min_ps(scaled, _mm256_set1_ps(kE4M3Max)));
  const __m256 k = _mm256_div_ps(_mm256_set1_ps(1.0F), _mm256_mul_ps(s.value, _mm256_set1_ps(outer.inverse)));
  return {s.code, s.value, _mm256_min_ps(k, _mm256_set1_ps(FLT_MAX))};
}

// Lane b of result i is element i of block b, of one row of a group.
template <class T>
void load_transposed(const T* x, __m256 (&out)[kBlock]) {
  for (int half = 0; half < 2; ++half) {
    __m256 v[8];
    for (int b = 0; b < 8; ++b) {
      v[b] = avx2::load8(x + b * kBlock + half * 8);
    }
    __m256 t[8];
    for (int i = 0; i < 4; ++i) {
      t[2 * i] = _mm256_unpacklo_ps(v[2 * i], v[2 * i + 1]);
      t[2 * i + 1] = _mm256_unpackhi_ps(v[2 * i], v[2 * i + 1]);
    }
    for (int i = 0; i < 2; ++i) {
      v[4 * i] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0x44);
      v[4 * i + 1] = _mm256_shuffle_ps(t[4 * i], t[4 * i + 2], 0xee);
      v[4 * i + 2] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0x44);
      v[4 * i + 3] = _mm256_shuffle_ps(t[4 * i + 1], t[4 * i + 3], 0xee);
    }
    for (int i = 0; i < 4; ++i) {
      out[half * 8 + i] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x20);
      out[half * 8 + i + 4] = _mm256_permute2f128_ps(v[i], v[i + 4], 0x31);
    }
  }
}

// Error of one row of each block under `scales`. Signs drop out: d of -x is -d of x.
__m256 row_error(const __m256 (&x)[kBlock], const BlockScales& scales, const OuterScale& outer,
                 bool absolute) {
  const __m256 amax = _mm256_set1_ps(outer.amax);
  const __m256 divisor = _mm256_set1_ps(outer.divisor);
  const __m256 six = _mm256_set1_ps(kE2M1Max);
  __m256 e = _mm256_setzero_ps();
  for (int i = 0; i < kBlock; ++i) {
    const __m256 magnitude = avx2::abs8(x[i]);
    const __m256 q =
        avx2::GridE2M1::round(_mm256_min_ps(_mm256_mul_ps(magnitude, scales.multiplier), six)).value;
    const __m256 decoded = _mm256_div_ps(_mm256_mul_ps(_mm256_mul_ps(q, scales.value), amax), divisor);
    const __m256 d = _mm256_sub_ps(decoded, magnitude);
    e = _mm256_add_ps(e, absolute ? avx2::abs8(d) : _mm256_mul_ps(d, d));
  }
  return e;
}

template <int kRows, class T>
BlockScales choose_scales(const T* x, int64_t stride, __m256 block_amax, const OuterScale& outer,
                          FourOverSix mode) {
  const __m256 base = _mm256_mul_ps(_mm256_div_ps(block_amax, _mm256_set1_ps(6.0F)), _mm256_set1_ps(outer.s));
  const BlockScales six = block_scales(base, outer);
  const BlockScales four = block_scales(_mm256_mul_ps(base, _mm256_set1_ps(1.5F)), outer);
  const bool absolute = mode == FourOverSix::kMae;
  __m256 e6[kRows];
  __m256 e4[kRows];
  for (int r = 0; r < kRows; ++r) {
    __m256 transposed[kBlock];
    load_transposed(x + r * stride, transposed);
    e6[r] = row_error(transposed, six, outer, absolute);
    e4[r] = row_error(transposed, four, outer, absolute);
  }
  for (int width = kRows / 2; width > 0; width /= 2) {
    for (int r = 0; r < width; ++r) {
      e6[r] = _mm256_add_ps(e6[r], e6[r + width]);
      e4[r] = _mm256_add_ps(e4[r], e4[r + width]);
    }
  }
  const __m256 take_four = _mm256_cmp_ps(e4[0], e6[0], _CMP_LT_OQ);
  return {_mm256_blendv_epi8(six.code, four.code, _mm256_castps_si256(take_four)),
          _mm256_blendv_ps(six.value, four.value, take_four),
          _mm256_blendv_ps(six.multiplier, four.multiplier, take_four)};
}

// One row of a group: 128 elements to 64 bytes, 32 elements at a time. Inlined so that its constants stay in
// registers.
template <bool kHealth, class T>
[[gnu::always_inline]] inline void cast_row(const T* x, const float* k, uint8_t* q, avx2::Counts& counts) {
  const __m256 six = _mm256_set1_ps(kE2M1Max);
  for (const float* end = k + kGroupBlocks; k != end; k += 2, x += 32, q += 16) {
    const __m256 multipliers[2] = {_mm256_broadcast_ss(k), _mm256_broadcast_ss(k + 1)};
    __m256 values[4];
    __m256i codes[4];
    for (int i = 0; i < 4; ++i) {
      values[i] = avx2::load8(x + 8 * i);
      const __m256 scaled = _mm256_mul_ps(avx2::abs8(values[i]), multipliers[i / 2]);
      codes[i] = avx2::GridE2M1::round(_mm256_min_ps(scaled, six)).code;
      if constexpr (kHealth) {
        counts.add(values[i], scaled, kE2M1Max, avx2::GridE2M1::kZeroBelow);
      }
    }
    const __m256i magnitude = _mm256_add_epi8(avx2::pack_low_bytes(codes[0], codes[1], codes[2], codes[3]),
                                              _mm256_set1_epi8(avx2::GridE2M1::kBias));
    const __m256i sign = _mm256_srli_epi16(avx2::pack_signs(values), 4);
    const __m256i nibbles = avx2::in_order(_mm256_or_si256(magnitude, sign));
    // low + 16 * high in each 16-bit lane, then one byte of each
    const __m256i pairs = _mm256_maddubs_epi16(nibbles, _mm256_set1_epi16(0x1001));
    const __m128i packed =
        _mm_packus_epi16(_mm256_castsi256_si128(pairs), _mm256_extracti128_si256(pairs, 1));
    _mm_storeu_si128(reinterpret_cast<__m128i*>(q), packed);
  }
}

// Eight blocks of kRows rows.
template <int kRows, bool kHealth, class T>
void quantize_group(const T* x, int64_t stride, const OuterScale& outer, FourOverSix mode, const Target& out,
                    avx2::Counts& counts, QuantHealth* health) {
  __m256i maxima[kGroupBlocks] = {};
  for (int r = 0; r < kRows; ++r) {
    for (int b = 0; b < kGroupBlocks; ++b) {
      maxima[b] = _mm256_max_epi32(maxima[b], avx2::magnitude_bits16(x + r * stride + b * kBlock));
    }
  }
  const __m256i amax_bits = avx2::reduce_max8(maxima);
  if (avx2::any_special(amax_bits)) [[unlikely]] {
    for (int b = 0; b < kGroupBlocks; ++b) {
      quantize_nvfp4_tile(x + b * kBlock, stride, kRows, outer, mode, out.q + b * (kBlock / 2), out.q_stride,
                          out.scale + b, out.scale_stride, health);
    }
    return;
  }
  if constexpr (kHealth) {
    counts.amax = _mm256_max_epi32(counts.amax, amax_bits);
  }
  const __m256 block_amax = _mm256_castsi256_ps(amax_bits);
  const BlockScales scales = mode == FourOverSix::kNone
                                 ? block_scales(_mm256_mul_ps(block_amax, _mm256_set1_ps(outer.t)), outer)
                                 : choose_scales<kRows>(x, stride, block_amax, outer, mode);
  alignas(32) float k[kGroupBlocks];
  _mm256_store_ps(k, scales.multiplier);
  const __m256i bytes =
      _mm256_add_epi8(avx2::pack_low_bytes(scales.code, scales.code, scales.code, scales.code),
                      _mm256_set1_epi8(avx2::GridE4M3::kBias));
  const __m128i ordered = _mm256_castsi256_si128(avx2::in_order(bytes));
  for (int r = 0; r < kRows; ++r) {
    _mm_storel_epi64(reinterpret_cast<__m128i*>(out.scale + r * out.scale_stride), ordered);
    cast_row<kHealth>(x + r * stride, k, out.q + r * out.q_stride, counts);
  }
}

// n % 16 == 0 columns of kRows rows.
template <int kRows, bool kHealth, class T>
void quantize_stripe(const T* x, int64_t stride, int64_t n, const OuterScale& outer, FourOverSix mode,
                     const Target& out, avx2::Counts& counts, QuantHealth* health) {
  int64_t i = 0;
  for (; i + kGroup <= n; i += kGroup) {
    const Target target{out.q + i / 2, out.q_stride, out.scale + i / kBlock, out.scale_stride};
    quantize_group<kRows, kHealth>(x + i, stride, outer, mode, target, counts, health);
  }
  if (i < n) {  // the rest, filled up with zeros, which count nowhere
    const int64_t rest = n - i;
    T padded[kRows * kGroup] = {};
    uint8_t q[kRows * kGroup / 2];
    uint8_t scale[kRows * kGroupBlocks];
    for (int r = 0; r < kRows; ++r) {
      std::copy_n(x + r * stride + i, rest, padded + r * kGroup);
    }
    quantize_group<kRows, kHealth>(padded, kGroup, outer, mode, Target{q, kGroup / 2, scale, kGroupBlocks},
                                   counts, health);
    for (int r = 0; r < kRows; ++r) {
      std::copy_n(q + r * (kGroup / 2), rest / 2, out.q + r * out.q_stride + i / 2);
      std::copy_n(scale + r * kGroupBlocks, rest / kBlock, out.scale + r * out.scale_stride + i / kBlock);
    }
  }
}

template <int kRows, bool kHealth, class T>
void quantize_rows(const T* x, const MatrixView& view, const Nvfp4Options& options, const Nvfp4Output& out,
                   QuantHealth* health) {
  const bool per_token = options.scope == Nvfp4Scope::kToken;
  // Blocks of contiguous rows under one outer scale form one long row.
  const bool one_row = kRows == 1 && !per_token && view.stride == view.cols;
  const int64_t num_rows = one_row ? std::min<int64_t>(view.rows, 1) : view.rows;
  const int64_t length = one_row ? view.rows * view.cols : view.cols;
  OuterScale outer = outer_scale(per_token ? 0.0F : out.amax[0], options.range);
  avx2::Counts counts;
  for (int64_t r = 0; r < num_rows; r += kRows) {
    if (per_token) {
      out.amax[r] = amax(view.slice_rows(r, 1));
      outer = outer_scale(out.amax[r], options.range);
    }
    const Target target{out.q + r * (length / 2), length / 2, out.scale + r * (length / kBlock),
                        length / kBlock};
    quantize_stripe<kRows, kHealth>(x + r * view.stride, view.stride, length, outer, options.four_over_six,
                                    target, counts, health);
    if constexpr (kHealth) {
      counts.flush(*health);
    }
  }
}

}  // namespace

void quantize_nvfp4(MatrixView x, const Nvfp4Options& options, const Nvfp4Output& out,
                    const float* shared_amax, QuantHealth* health) {
  require(check_input(x));
  require(check_nvfp4_shape(x.rows, x.cols, options));
  const IeeeMode mode;
  if (options.scope == Nvfp4Scope::kTensor) {
    out.amax[0] = shared_amax != nullptr ? *shared_amax : amax(x);
  }
  const bool square = options.layout == Nvfp4Layout::k16x16;
  visit_elements(x, [&](const auto* data) {
    if (square) {
      health == nullptr ? quantize_rows<kBlock, false>(data, x, options, out, nullptr)
                        : quantize_rows<kBlock, true>(data, x, options, out, health);
    } else {
      health == nullptr ? quantize_rows<1, false>(data, x, options, out, nullptr)
                        : quantize_rows<1, true>(data, x, options, out, health);
    }
  });
  if (health != nullptr) {
    health->elements += x.rows * x.cols;
  }
}

}  // namespace accord::formats
