#pragma once
#include <cstdint>

namespace accord {

// How NVFP4 chooses its block scales (docs/contract.md, section 3): per block, the amax becomes 4 instead of
// 6 where that lowers the sum of absolute or squared errors.
enum class FourOverSix : uint8_t { kNone, kMae, kMse };

}  // namespace accord
