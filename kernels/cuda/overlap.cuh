#pragma once
// Kernels of one stream that overlap at their ends: the next one is put on the device while this one runs,
// and waits there for its end. A kernel launched so calls wait_for_previous() before it touches anything that
// kernels before it read or write, in every block, and allow_next() only afterwards: then what came before
// this kernel is complete when the next one starts.
#include "kernels/cuda/launch.cuh"

namespace accord::gpu {

// Until the kernel before this one is complete and its writes are seen.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel may start once every block has called this or ended.
__device__ inline void allow_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

template <class... Parameters, class... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), unsigned grid, int block, StreamHandle stream,
                       Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = dim3(grid);
  config.blockDim = dim3(static_cast<unsigned>(block));
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // An error stays the runtime's last one, which check_launch reads.
  (void)cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace accord::gpu
