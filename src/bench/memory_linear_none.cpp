#include "bench/memory_linear.hpp"

namespace accord::bench {

// No device opens in a build without CUDA.
MemoryResult measure_linear(const MemoryOptions& /*options*/, const LinearMode& /*mode*/) { return {}; }

}  // namespace accord::bench
