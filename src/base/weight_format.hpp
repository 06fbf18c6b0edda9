#pragma once
// How one weight is stored. Apart from flow.hpp because device code includes it too.
#include <cstdint>

#include "base/four_over_six.hpp"

namespace accord {

// Storage format of one weight; the layout of its bytes is docs/contract.md's.
// kF32 is for vectors that are kept as they are (a router's correction bias), never for a linear.
enum class WeightFormat : uint8_t { kBF16, kMXFP8, kNVFP4, kF32 };

// A range other than 448 comes with four over six only.
struct Nvfp4Scaling {
  FourOverSix four_over_six = FourOverSix::kNone;
  int32_t range = 448;
  bool operator==(const Nvfp4Scaling&) const = default;
};

}  // namespace accord
