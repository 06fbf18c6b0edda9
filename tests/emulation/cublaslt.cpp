// Takes the place of kernels/block_scaled/cublaslt_of_this_build.cpp: a cuBLASLt between emulated devices,
// unless ACCORD_CUBLASLT names another.
#include <cstdlib>

#include "device/stream_handle.hpp"
#include "kernels/block_scaled/cublaslt_api.hpp"
#include "tests/emulation/launch.hpp"
#include "tests/support/fake_cublaslt.hpp"

namespace accord::kernels::block_scaled {

StatusOr<LtApi> cublaslt_of_this_build() {
  if (std::getenv("ACCORD_CUBLASLT") != nullptr) return load_cublaslt();
  testing::set_memory([](const void* p, size_t bytes, StreamHandle stream) {
    return emulation::Launch("cublasLtMatmul", stream).bytes(p, static_cast<int64_t>(bytes));
  });
  return testing::fake_cublaslt();
}

}  // namespace accord::kernels::block_scaled
