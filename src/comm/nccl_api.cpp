#include "comm/nccl_api.hpp"

#include <cstdlib>

#include "base/shared_library.hpp"

namespace accord::comm {
namespace {

constexpr int kLeastVersion = 21800;

constexpr CudaLibrary kLibrary{
    "NCCL", "libnccl.so.2", "ACCORD_NCCL",
    "install libnccl2 for this CUDA, or name the file of libnccl.so.2 in ACCORD_NCCL"};

}  // namespace

StatusOr<NcclApi> load_nccl() {
  if (!is_off(kLibrary)) {
    // NVLS needs multicast objects of the NVSwitch, which not every machine may use. NCCL reads this when it
    // makes its first communicator.
    ::setenv("NCCL_NVLS_ENABLE", "0", /*overwrite=*/0);
  }
  ACCORD_ASSIGN_OR_RETURN(SharedLibrary library, load(kLibrary));
  NcclApi api;
  int (*get_version)(int*) = nullptr;
  library.find("ncclGetVersion", get_version);
  library.find("ncclGetUniqueId", api.get_unique_id);
  library.find("ncclCommInitRankConfig", api.comm_init_rank_config);
  library.find("ncclCommGetAsyncError", api.comm_get_async_error);
  library.find("ncclCommFinalize", api.comm_finalize);
  library.find("ncclCommDestroy", api.comm_destroy);
  library.find("ncclCommAbort", api.comm_abort);
  library.find("ncclGroupStart", api.group_start);
  library.find("ncclGroupEnd", api.group_end);
  library.find("ncclSend", api.send);
  library.find("ncclRecv", api.recv);
  library.find("ncclBroadcast", api.broadcast);
  library.find("ncclAllGather", api.all_gather);
  library.find("ncclGetErrorString", api.get_error_string);
  library.find("ncclGetLastError", api.get_last_error);
  if (!library.missing().empty()) {
    return unavailable_error("{} has no {}: accord needs NCCL {} or later", library.file(), library.missing(),
                             cuda_version_text(kLeastVersion));
  }
  if (get_version(&api.version) != kNcclSuccess || api.version < kLeastVersion) {
    return unavailable_error("{} is NCCL {}, accord needs {} or later", library.file(),
                             cuda_version_text(api.version), cuda_version_text(kLeastVersion));
  }
  api.origin = fmt::format("NCCL {} ({})", cuda_version_text(api.version), library.file());
  return api;
}

}  // namespace accord::comm
