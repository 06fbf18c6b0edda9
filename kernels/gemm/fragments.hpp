#pragma once
// Quantized weights in the order in which a product of few rows reads them: a lane of mma m16n8k16 finds what
// it multiplies in 16 bytes side by side, and a slab of 16 rows is one run of memory. The same bits in other
// places: from_fragments(to_fragments(w)) is w.
//
// A weight [N,K] is slabs of 16 rows in order, each of records in order of K. A record:
//
//   NVFP4, 256 values of K   2048 bytes of codes, 256 of scales
//   MXFP8, 128 values of K   2048 bytes of codes, 64 of scales
//
//   codes   four parts, of 64 or 32 values of K; a part has 16 bytes of each lane, one after the other. Lane
//           4 g + t has of each group of 16 values the four from 4 t on, of rows g and g + 8: in NVFP4 in one
//           word per group, in MXFP8 in two, row g's first. fragment_words.hpp says where in a word.
//   scales  NVFP4: of each quarter q of 4 groups and each g 8 bytes at 8 (8 q + g): of rows g and g + 8,
//           groups 0 1 0 1 and 2 3 2 3 of the quarter, row g's two first. MXFP8: 8 bytes of each g, four of
//           row g, four of row g + 8.
#include <cstdint>

#include "base/weight_format.hpp"

namespace accord::kernels {

constexpr int64_t kFragmentRows = 16;

// Values of K and bytes of a record.
int64_t fragment_values(WeightFormat format);
int64_t fragment_record_bytes(WeightFormat format);

// Whether there is such an order of a weight: N % 16 == 0 and K a multiple of a record's.
bool takes_fragments(WeightFormat format, int64_t n, int64_t k);
// As many as codes and scales together have.
int64_t fragments_bytes(WeightFormat format, int64_t n, int64_t k);

// q [N,K] and scales as in the arena (docs/contract.md).
void to_fragments(WeightFormat format, int64_t n, int64_t k, const uint8_t* q, const uint8_t* scales,
                  uint8_t* fragments);
void from_fragments(WeightFormat format, int64_t n, int64_t k, const uint8_t* fragments, uint8_t* q,
                    uint8_t* scales);

}  // namespace accord::kernels
