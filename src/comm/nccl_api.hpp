#pragma once
// NCCL's functions, found when they are first needed: programs run where there is none. The declarations
// follow NCCL's C interface of version 2.18, which later ones keep; its header is not needed to build.
#include <cstddef>
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "device/stream_handle.hpp"

struct ncclComm;

namespace accord::comm {

using NcclHandle = ::ncclComm*;

struct NcclId {
  char bytes[128] = {};
};

// ncclResult_t
constexpr int kNcclSuccess = 0;
constexpr int kNcclInProgress = 7;

constexpr int kNcclBytes = 0;  // ncclInt8

// ncclConfig_t of version 2.18: NCCL reads as many bytes as `size` says and takes its defaults for the rest.
struct NcclConfig {
  static constexpr int kDefault = -2147483647 - 1;
  size_t size = sizeof(NcclConfig);
  unsigned magic = 0xcafebeef;
  unsigned version = 21800;
  int blocking = kDefault;
  int cga_cluster_size = kDefault;
  int min_ctas = kDefault;
  int max_ctas = kDefault;
  const char* net_name = nullptr;
  int split_share = kDefault;
  int traffic_class = kDefault;  // of a later version, which finds it in this one's padding
};

// Everything returns ncclResult_t. Tests put their own functions here.
struct NcclApi {
  std::string origin;  // the library's name, and its version
  int version = 0;     // 22809: 2.28.9
  int (*get_unique_id)(NcclId* id) = nullptr;
  int (*comm_init_rank_config)(NcclHandle* comm, int ranks, NcclId id, int rank,
                               NcclConfig* config) = nullptr;
  int (*comm_get_async_error)(NcclHandle comm, int* state) = nullptr;
  int (*comm_finalize)(NcclHandle comm) = nullptr;
  int (*comm_destroy)(NcclHandle comm) = nullptr;
  int (*comm_abort)(NcclHandle comm) = nullptr;
  int (*group_start)() = nullptr;
  int (*group_end)() = nullptr;
  int (*send)(const void* data, size_t count, int type, int peer, NcclHandle comm,
              StreamHandle stream) = nullptr;
  int (*recv)(void* data, size_t count, int type, int peer, NcclHandle comm, StreamHandle stream) = nullptr;
  int (*broadcast)(const void* in, void* out, size_t count, int type, int root, NcclHandle comm,
                   StreamHandle stream) = nullptr;
  int (*all_gather)(const void* in, void* out, size_t count, int type, NcclHandle comm,
                    StreamHandle stream) = nullptr;
  const char* (*get_error_string)(int result) = nullptr;
  const char* (*get_last_error)(NcclHandle comm) = nullptr;
};

// The library named by the environment variable ACCORD_NCCL, else libnccl.so.2 as the dynamic linker finds
// it, else the CUDA toolkit's. It stays loaded. Switches NCCL's multicast (NVLS) off, unless NCCL_NVLS_ENABLE
// is set. Errors: kUnavailable, saying what was tried and what to do; where ACCORD_NCCL is "off".
StatusOr<NcclApi> load_nccl();

// load_nccl; where devices are emulated (tests), an NCCL between such devices where ACCORD_NCCL is "emulated".
StatusOr<NcclApi> nccl_of_this_build();

}  // namespace accord::comm
