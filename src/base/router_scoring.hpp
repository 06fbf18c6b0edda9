#pragma once
#include <cstdint>

namespace accord {

// How a router turns its logits into scores.
enum class RouterScoring : uint8_t { kSoftmax, kSigmoid };

}  // namespace accord
