#include "kernels/block_scaled/cublaslt_api.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <string_view>
#include <vector>

namespace accord::kernels::block_scaled {
namespace {

constexpr size_t kLeastVersion =
    130000;  // block scales are older (12.8), this interface's library name is not

template <class F>
bool find(void* library, const char* name, F*& function, std::string& missing) {
  function = reinterpret_cast<F*>(::dlsym(library, name));
  if (function == nullptr) missing = name;
  return function != nullptr;
}

std::string version_text(size_t version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

std::string_view asked() {
  const char* const value = std::getenv("ACCORD_CUBLASLT");
  return value == nullptr ? std::string_view() : std::string_view(value);
}

bool find_all(void* library, LtApi& api, std::string& missing) {
  return find(library, "cublasLtCreate", api.create, missing) &&
         find(library, "cublasLtDestroy", api.destroy, missing) &&
         find(library, "cublasLtMatmulDescCreate", api.descriptor_create, missing) &&
         find(library, "cublasLtMatmulDescDestroy", api.descriptor_destroy, missing) &&
         find(library, "cublasLtMatmulDescSetAttribute", api.descriptor_set, missing) &&
         find(library, "cublasLtMatrixLayoutCreate", api.layout_create, missing) &&
         find(library, "cublasLtMatrixLayoutDestroy", api.layout_destroy, missing) &&
         find(library, "cublasLtMatmulPreferenceCreate", api.preference_create, missing) &&
         find(library, "cublasLtMatmulPreferenceDestroy", api.preference_destroy, missing) &&
         find(library, "cublasLtMatmulPreferenceSetAttribute", api.preference_set, missing) &&
         find(library, "cublasLtMatmulAlgoGetHeuristic", api.get_heuristic, missing) &&
         find(library, "cublasLtMatmulAlgoCheck", api.check, missing) &&
         find(library, "cublasLtMatmulAlgoConfigGetAttribute", api.config_get, missing) &&
         find(library, "cublasLtMatmul", api.matmul, missing) &&
         find(library, "cublasLtGetStatusString", api.status_string, missing);
}

}  // namespace

bool cublaslt_is_off() { return asked() == "off"; }

StatusOr<LtApi> load_cublaslt() {
  if (cublaslt_is_off()) return unavailable_error("ACCORD_CUBLASLT is off");
  std::vector<std::string> names = {"libcublasLt.so.13", "/usr/local/cuda/lib64/libcublasLt.so.13",
                                    "/usr/local/cuda/lib/libcublasLt.so.13"};
  if (!asked().empty()) names = {std::string(asked())};
  void* library = nullptr;
  std::string tried;
  std::string path;
  for (const std::string& name : names) {
    library = ::dlopen(name.c_str(), RTLD_NOW | RTLD_LOCAL);
    if (library != nullptr) {
      path = name;
      break;
    }
    const char* const why = ::dlerror();
    tried += fmt::format("{}{}", tried.empty() ? "" : "; ", why != nullptr ? why : name.c_str());
  }
  if (library == nullptr) {
    return unavailable_error(
        "cuBLASLt is not here ({}): install libcublas of CUDA 13, or name the file of libcublasLt.so.13 in "
        "ACCORD_CUBLASLT; ACCORD_CUBLASLT=off, for all workers of a run, multiplies decoded values without "
        "it",
        tried);
  }
  LtApi api;
  size_t (*get_version)() = nullptr;
  std::string missing;
  if (!find(library, "cublasLtGetVersion", get_version, missing) || !find_all(library, api, missing)) {
    return unavailable_error("{} has no {}: accord needs cuBLASLt {} or later", path, missing,
                             version_text(kLeastVersion));
  }
  api.version = get_version();
  if (api.version < kLeastVersion) {
    return unavailable_error("{} is cuBLASLt {}, accord needs {} or later", path, version_text(api.version),
                             version_text(kLeastVersion));
  }
  api.origin = fmt::format("cuBLASLt {} ({})", version_text(api.version), path);
  return api;
}

}  // namespace accord::kernels::block_scaled
