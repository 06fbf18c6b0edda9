#pragma once
// What a quantizer saw: the figures that the weight ledger records per tensor.
#include <cstdint>

namespace accord::formats {

// Counts add up over calls, so that one record can span several parts of a tensor; amax is the largest |x| so
// far, NaN ignored.
struct QuantHealth {
  int64_t elements = 0;
  int64_t saturated = 0;  // the scaled value lay beyond the largest element value (Inf included)
  int64_t flushed = 0;    // a nonzero value that became +0 or -0
  int64_t nan = 0;
  float amax = 0.0F;
};

}  // namespace accord::formats
