// The forward product for BF16 weights (gemm_dispatch.cuh).
#include "kernels/gemm/gemm_dispatch.cuh"

namespace accord::kernels::cuda {

template void forward_of_format<WeightFormat::kBF16>(const ForwardParams&, int32_t, int32_t, int32_t,
                                                     StreamHandle);
template bool launch_decode<WeightFormat::kBF16>(const ForwardParams&, int32_t, StreamHandle);

}  // namespace accord::kernels::cuda
