// Instantiates gemm_experts.cuh.
#include "kernels/gemm/gemm_experts.cuh"

namespace accord::kernels::cuda {

template void launch_experts_of<WeightFormat::kBF16, true>(const LargeParams&, StreamHandle);

}  // namespace accord::kernels::cuda
