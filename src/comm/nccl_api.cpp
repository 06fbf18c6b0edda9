#include "comm/nccl_api.hpp"

#include <dlfcn.h>
#include <fmt/format.h>

#include <cstdlib>
#include <vector>

namespace accord::comm {
namespace {

constexpr int kLeastVersion = 21800;

template <class F>
bool find(void* library, const char* name, F*& function, std::string& missing) {
  function = reinterpret_cast<F*>(::dlsym(library, name));
  if (function == nullptr) {
    missing = name;
  }
  return function != nullptr;
}

std::string version_text(int version) {
  return fmt::format("{}.{}.{}", version / 10000, version / 100 % 100, version % 100);
}

}  // namespace

StatusOr<NcclApi> load_nccl() {
  const char* const named = std::getenv("ACCORD_NCCL");
  std::vector<std::string> names = {"libnccl.so.2", "/usr/local/cuda/lib64/libnccl.so.2",
                                    "/usr/local/cuda/lib/libnccl.so.2"};
  if (named != nullptr && *named != '\0') {
    if (std::string_view(named) == "off") {
      return unavailable_error("ACCORD_NCCL is off");
    }
    names = {named};
  }
  // NVLS needs multicast objects of the NVSwitch, which not every machine may use. NCCL reads this when it
  // makes its first communicator.
  ::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
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
        "NCCL is not here ({}): install libnccl2 for this CUDA, or name the file of libnccl.so.2 in "
        "ACCORD_NCCL",
        tried);
  }
  NcclApi api;
  int (*get_version)(int*) = nullptr;
  std::string missing;
  const bool complete = find(library, "ncclGetVersion", get_version, missing) &&
                        find(library, "ncclGetUniqueId", api.get_unique_id, missing) &&
                        find(library, "ncclCommInitRankConfig", api.comm_init_rank_config, missing) &&
                        find(library, "ncclCommGetAsyncError", api.comm_get_async_error, missing) &&
                        find(library, "ncclCommFinalize", api.comm_finalize, missing) &&
                        find(library, "ncclCommDestroy", api.comm_destroy, missing) &&
                        find(library, "ncclCommAbort", api.comm_abort, missing) &&
                        find(library, "ncclGroupStart", api.group_start, missing) &&
                        find(library, "ncclGroupEnd", api.group_end, missing) &&
                        find(library, "ncclSend", api.send, missing) &&
                        find(library, "ncclRecv", api.recv, missing) &&
                        find(library, "ncclBroadcast", api.broadcast, missing) &&
                        find(library, "ncclAllGather", api.all_gather, missing) &&
                        find(library, "ncclGetErrorString", api.get_error_string, missing) &&
                        find(library, "ncclGetLastError", api.get_last_error, missing);
  if (!complete) {
    return unavailable_error("{} has no {}: accord needs NCCL {} or later", path, missing,
                             version_text(kLeastVersion));
  }
  if (get_version(&api.version) != kNcclSuccess || api.version < kLeastVersion) {
    return unavailable_error("{} is NCCL {}, accord needs {} or later", path, version_text(api.version),
                             version_text(kLeastVersion));
  }
  api.origin = fmt::format("NCCL {} ({})", version_text(api.version), path);
  return api;
}

}  // namespace accord::comm
