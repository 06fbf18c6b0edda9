#include "bench/kernel_groups.hpp"

namespace accord::bench {

// No device opens in a build without CUDA.
void run_device_kernels(const KernelRun& /*run*/) {}

}  // namespace accord::bench
