#include "kernels/block_scaled/cublaslt_api.hpp"

namespace accord::kernels::block_scaled {

StatusOr<LtApi> cublaslt_of_this_build() { return load_cublaslt(); }

}  // namespace accord::kernels::block_scaled
