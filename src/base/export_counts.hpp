#pragma once
// What the export of one tensor saw of its fp32 masters. Apart from flow.hpp because device code includes it
// too. All zeros: nothing yet; counts add up, so that one record can span several parts of a tensor.
#include <cstdint>

namespace accord {

struct ExportCounts {
  int64_t saturated = 0;      // scaled values beyond the format's largest, Inf included
  int64_t flushed = 0;        // nonzero masters that became zero, by BF16 or by the format
  uint32_t largest_bits = 0;  // of max |master|; 0x7f800000 and more: not finite
};

}  // namespace accord
