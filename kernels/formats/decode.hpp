#pragma once
// Row decoders: stored bytes to fp32, as the matrix products read them (docs/contract.md, sections 2 to 4).
// Each handles one row, or a K-range of one row: advance the pointers to the range's first block (q by k0, or
// k0/2 for packed E2M1; scales by k0/32 or k0/16) and pass its length. They allocate nothing and never fail.
// NaN codes decode to NaN of unspecified sign and payload. The products are those of the current
// floating-point environment, which must be the default one (round to nearest, subnormals kept).
#include <cstdint>

#include "base/dtype.hpp"
#include "kernels/formats/element.hpp"

namespace accord::formats {

// out[i] = bf16 bits as fp32; any k.
void decode_bf16_row(const BF16* x, int64_t k, float* out);

// out[i] = E4M3(q[i]) * 2^(e8m0[i/32]-127); k % 32 == 0. Exact unless the product overflows to Inf.
void decode_mxfp8_row(const uint8_t* q, const uint8_t* e8m0, int64_t k, float* out);
void decode_mxfp8_row(const uint8_t* q, const uint8_t* e8m0, int64_t k, float* out, Element element);

// out[i] = E2M1(q[i]) * E4M3(s[i/16]); k % 16 == 0, q holds k/2 bytes. Exact in fp32 and in BF16. A product
// of two such operands sums into acc32; the outer scales come in the epilogue.
void decode_nvfp4_products_row(const uint8_t* q, const uint8_t* s, int64_t k, float* out);

// The decoded value: out[i] = fl( q * fl( fl(s * amax) * fl(1/(6*range)) ) ); k % 16 == 0, range 448 or 256.
void decode_nvfp4_row(const uint8_t* q, const uint8_t* s, float amax, int range, int64_t k, float* out);

}  // namespace accord::formats
