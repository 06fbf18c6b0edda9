#pragma once
// What NVFP4's quantizers take and give, on any device (nvfp4.hpp, nvfp4_cuda.hpp).
#include <cstdint>

#include "base/four_over_six.hpp"

namespace accord::formats {

constexpr int64_t kNvfp4Block = 16;

enum class Nvfp4Scope : uint8_t { kTensor, kToken };
enum class Nvfp4Layout : uint8_t { k1x16, k16x16 };
using accord::FourOverSix;

struct Nvfp4Options {
  Nvfp4Scope scope = Nvfp4Scope::kTensor;
  Nvfp4Layout layout = Nvfp4Layout::k1x16;
  FourOverSix four_over_six = FourOverSix::kNone;
  int range = 448;  // 256 only with four over six: S = 6*range/A, and the decoder needs it
};

struct Nvfp4Output {
  uint8_t* q = nullptr;
  uint8_t* scale = nullptr;
  float* amax = nullptr;
};

}  // namespace accord::formats
