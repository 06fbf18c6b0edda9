#pragma once
// Kernels of one stream that overlap at their ends: the next one is put on the device while this one runs,
// and waits there for its end.
//
// The rule. A kernel launched so calls wait_for_previous() in every thread before it touches anything that
// kernels before it read or write, and allow_next() only afterwards. Then whatever comes before this kernel
// is complete when the next one starts, and everything up to this kernel when the next one has waited: no
// kernel ever sees more than its direct predecessor unfinished, and only until it has waited. Any kernel may
// come before or after, launched so or not; copies, events and graphs order themselves by the kernel's end.
//
// What may be touched before the wait: memory that the direct predecessor does not write, and that all
// earlier work has finished writing. Weights of a model are such memory wherever another kernel that keeps
// the rule, a norm or a quantizer, lies between what writes them and the product that reads them
// (GemmForward::b_at_rest).
#include "kernels/cuda/launch.cuh"

namespace accord::gpu {

// Until the kernel before this one is complete and its writes are seen.
__device__ inline void wait_for_previous() { asm volatile("griddepcontrol.wait;" ::: "memory"); }

// The next kernel may start once every block has called this or ended.
__device__ inline void allow_next() { asm volatile("griddepcontrol.launch_dependents;" ::: "memory"); }

// As kernel<<<grid, block, shared_bytes, stream>>>(arguments...).
template <class... Parameters, class... Arguments>
void launch_overlapped(void (*kernel)(Parameters...), dim3 grid, dim3 block, size_t shared_bytes,
                       StreamHandle stream, Arguments... arguments) {
  cudaLaunchAttribute attribute{};
  attribute.id = cudaLaunchAttributeProgrammaticStreamSerialization;
  attribute.val.programmaticStreamSerializationAllowed = 1;
  cudaLaunchConfig_t config{};
  config.gridDim = grid;
  config.blockDim = block;
  config.dynamicSmemBytes = shared_bytes;
  config.stream = stream;
  config.attrs = &attribute;
  config.numAttrs = 1;
  // An error stays the runtime's last one, which check_launch reads.
  (void)cudaLaunchKernelEx(&config, kernel, static_cast<Parameters>(arguments)...);
}

}  // namespace accord::gpu
