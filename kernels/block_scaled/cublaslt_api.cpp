#include "kernels/block_scaled/cublaslt_api.hpp"

#include "base/shared_library.hpp"

namespace accord::kernels::block_scaled {
namespace {

constexpr size_t kLeastVersion =
    130000;  // block scales are older (12.8), this interface's library name is not

constexpr CudaLibrary kLibrary{
    "cuBLASLt", "libcublasLt.so.13", "ACCORD_CUBLASLT",
    "install libcublas of CUDA 13, or name the file of libcublasLt.so.13 in ACCORD_CUBLASLT; "
    "ACCORD_CUBLASLT=off, for all workers of a run, multiplies decoded values without it"};

}  // namespace

bool cublaslt_is_off() { return is_off(kLibrary); }

StatusOr<LtApi> load_cublaslt() {
  ACCORD_ASSIGN_OR_RETURN(SharedLibrary library, load(kLibrary));
  LtApi api;
  size_t (*get_version)() = nullptr;
  library.find("cublasLtGetVersion", get_version);
  library.find("cublasLtCreate", api.create);
  library.find("cublasLtDestroy", api.destroy);
  library.find("cublasLtMatmulDescCreate", api.descriptor_create);
  library.find("cublasLtMatmulDescDestroy", api.descriptor_destroy);
  library.find("cublasLtMatmulDescSetAttribute", api.descriptor_set);
  library.find("cublasLtMatrixLayoutCreate", api.layout_create);
  library.find("cublasLtMatrixLayoutDestroy", api.layout_destroy);
  library.find("cublasLtMatmulPreferenceCreate", api.preference_create);
  library.find("cublasLtMatmulPreferenceDestroy", api.preference_destroy);
  library.find("cublasLtMatmulPreferenceSetAttribute", api.preference_set);
  library.find("cublasLtMatmulAlgoGetHeuristic", api.get_heuristic);
  library.find("cublasLtMatmulAlgoCheck", api.check);
  library.find("cublasLtMatmulAlgoConfigGetAttribute", api.config_get);
  library.find("cublasLtMatmul", api.matmul);
  library.find("cublasLtGetStatusString", api.status_string);
  if (!library.missing().empty()) {
    return unavailable_error("{} has no {}: accord needs cuBLASLt {} or later", library.file(),
                             library.missing(), cuda_version_text(kLeastVersion));
  }
  api.version = get_version();
  const std::string version = cuda_version_text(static_cast<int64_t>(api.version));
  if (api.version < kLeastVersion) {
    return unavailable_error("{} is cuBLASLt {}, accord needs {} or later", library.file(), version,
                             cuda_version_text(kLeastVersion));
  }
  api.origin = fmt::format("cuBLASLt {} ({})", version, library.file());
  return api;
}

}  // namespace accord::kernels::block_scaled
