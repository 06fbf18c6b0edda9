// Instantiates gemm_experts.cuh.
#include "kernels/gemm/gemm_experts.cuh"

namespace accord::kernels::cuda {

template void launch_experts_of<WeightFormat::kMXFP8, false>(const LargeParams&, StreamHandle);

}  // namespace accord::kernels::cuda
