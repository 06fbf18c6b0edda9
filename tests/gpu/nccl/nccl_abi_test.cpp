// comm/nccl_api.hpp against NCCL's own header, where the build has it.
#include "comm/nccl_api.hpp"

#if __has_include(<nccl.h>) && __has_include(<cuda_runtime.h>)
#include <nccl.h>

#include <cstddef>

#include "support/catch.hpp"

using accord::comm::NcclConfig;

static_assert(sizeof(accord::comm::NcclId) == sizeof(ncclUniqueId));
static_assert(accord::comm::kNcclSuccess == ncclSuccess && accord::comm::kNcclInProgress == ncclInProgress);
static_assert(accord::comm::kNcclBytes == ncclInt8);
static_assert(offsetof(NcclConfig, size) == offsetof(ncclConfig_t, size));
static_assert(offsetof(NcclConfig, magic) == offsetof(ncclConfig_t, magic));
static_assert(offsetof(NcclConfig, version) == offsetof(ncclConfig_t, version));
static_assert(offsetof(NcclConfig, blocking) == offsetof(ncclConfig_t, blocking));
static_assert(offsetof(NcclConfig, net_name) == offsetof(ncclConfig_t, netName));
static_assert(offsetof(NcclConfig, split_share) == offsetof(ncclConfig_t, splitShare));
static_assert(sizeof(NcclConfig) <= sizeof(ncclConfig_t));

TEST_CASE("a configuration of NCCL says what its header says") {
  const ncclConfig_t theirs = NCCL_CONFIG_INITIALIZER;
  const NcclConfig ours;
  CHECK(ours.magic == theirs.magic);
  CHECK(ours.version <= theirs.version);
  CHECK(ours.blocking == theirs.blocking);
  CHECK(ours.traffic_class == theirs.trafficClass);
  CHECK(ours.net_name == theirs.netName);
}
#endif
