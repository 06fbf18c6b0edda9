#include <cstring>

#include "kernels/gemm/fragment_words.hpp"
#include "kernels/gemm/fragments.hpp"

namespace accord::kernels {
namespace {

constexpr int64_t kLanes = 32;
constexpr int64_t kParts = 4;
constexpr int64_t kPartBytes = kLanes * 16;
constexpr int64_t kCodeBytes = kParts * kPartBytes;

int64_t bits_per_code(WeightFormat format) { return format == WeightFormat::kNVFP4 ? 4 : 8; }
int64_t block_of(WeightFormat format) { return format == WeightFormat::kNVFP4 ? 16 : 32; }
int64_t scales_per_row(WeightFormat format) { return fragment_values(format) / block_of(format); }

// Calls codes(record's codes of a lane and group, row, first value of K) and scale(record's scale, row, place
// in the row) for all of a weight.
template <class Fragments, class Codes, class Scale>
void walk(WeightFormat format, int64_t n, int64_t k, Fragments* at, Codes codes, Scale scale) {
  const int64_t values = fragment_values(format);
  const int64_t groups = values / kParts / 16;  // of a part
  const int64_t word_bytes = 16 / groups;       // of a lane and group: rows g and g + 8
  const int64_t scales = scales_per_row(format);
  for (int64_t row = 0; row < n; row += kFragmentRows) {
    for (int64_t k0 = 0; k0 < k; k0 += values, at += fragment_record_bytes(format)) {
      for (int64_t part = 0; part < kParts; ++part) {
        for (int64_t lane = 0; lane < kLanes; ++lane) {
          for (int64_t group = 0; group < groups; ++group) {
            codes(at + part * kPartBytes + lane * 16 + group * word_bytes, row + lane / 4,
                  k0 + (part * groups + group) * 16 + lane % 4 * 4);
          }
        }
      }
      for (int64_t r = 0; r < kFragmentRows; ++r) {
        const int64_t g = r % 8;
        for (int64_t i = 0; i < scales; ++i) {
          const int64_t place = format == WeightFormat::kNVFP4
                                    ? 8 * (8 * (i / 4) + g) + i % 4 / 2 * 4 + r / 8 * 2 + i % 2
                                    : 8 * g + r / 8 * 4 + i;
          scale(at + kCodeBytes + place, row + r, k0 / block_of(format) + i);
        }
      }
    }
  }
}

template <class T>
T load(const uint8_t* from) {
  T x;
  std::memcpy(&x, from, sizeof(x));
  return x;
}
template <class T>
void store(uint8_t* to, T x) {
  std::memcpy(to, &x, sizeof(x));
}

}  // namespace

int64_t fragment_values(WeightFormat format) {
  return kCodeBytes * 8 / bits_per_code(format) / kFragmentRows;
}

int64_t fragment_record_bytes(WeightFormat format) {
  return kCodeBytes + kFragmentRows * scales_per_row(format);
}

bool takes_fragments(WeightFormat format, int64_t n, int64_t k) {
  return (format == WeightFormat::kNVFP4 || format == WeightFormat::kMXFP8) && n % kFragmentRows == 0 &&
         k % fragment_values(format) == 0;
}

int64_t fragments_bytes(WeightFormat format, int64_t n, int64_t k) {
  return n / kFragmentRows * (k / fragment_values(format)) * fragment_record_bytes(format);
}

void to_fragments(WeightFormat format, int64_t n, int64_t k, const uint8_t* q, const uint8_t* scales,
                  uint8_t* fragments) {
  const bool nvfp4 = format == WeightFormat::kNVFP4;
  walk(
      format, n, k, fragments,
      [&](uint8_t* to, int64_t row, int64_t at) {
        if (nvfp4) {
          const auto codes = [&](int64_t r) { return load<uint16_t>(q + (r * k + at) / 2); };
          store(to, nvfp4_fragment_word(codes(row), codes(row + 8)));
        } else {
          const auto codes = [&](int64_t r) { return load<uint32_t>(q + r * k + at); };
          store(to, mxfp8_fragment_word(codes(row)));
          store(to + 4, mxfp8_fragment_word(codes(row + 8)));
        }
      },
      [&](uint8_t* to, int64_t row, int64_t at) { *to = scales[row * (k / block_of(format)) + at]; });
}

void from_fragments(WeightFormat format, int64_t n, int64_t k, const uint8_t* fragments, uint8_t* q,
                    uint8_t* scales) {
  const bool nvfp4 = format == WeightFormat::kNVFP4;
  walk(
      format, n, k, fragments,
      [&](const uint8_t* from, int64_t row, int64_t at) {
        if (nvfp4) {
          uint32_t c = 0;
          uint32_t d = 0;
          nvfp4_fragment_codes(load<uint32_t>(from), c, d);
          store(q + (row * k + at) / 2, static_cast<uint16_t>(c));
          store(q + ((row + 8) * k + at) / 2, static_cast<uint16_t>(d));
        } else {
          store(q + row * k + at, mxfp8_fragment_codes(load<uint32_t>(from)));
          store(q + (row + 8) * k + at, mxfp8_fragment_codes(load<uint32_t>(from + 4)));
        }
      },
      [&](const uint8_t* from, int64_t row, int64_t at) {
        scales[row * (k / block_of(format)) + at] = *from;
      });
}

}  // namespace accord::kernels
