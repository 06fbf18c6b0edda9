#include "comm/device_group.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <fstream>
#include <vector>

#include "base/log.hpp"
#include "comm/nccl_communicator.hpp"

namespace accord::comm {
namespace {

constexpr size_t kTextBytes = 240;

// What a rank tells the others; texts end with 0.
struct Place {
  int32_t can = 0;               // take part in NCCL
  int32_t version = 0;           // of NCCL
  char device[kTextBytes] = {};  // names the device among those of all machines
  char why_not[kTextBytes] = {};
};

void put(char (&field)[kTextBytes], std::string_view text) {
  std::memcpy(field, text.data(), std::min(text.size(), kTextBytes - 1));
}

std::string machine_id() {
  std::ifstream file("/proc/sys/kernel/random/boot_id");
  std::string id;
  std::getline(file, id);
  return id;
}

Place place_of(const Device& device, const StatusOr<NcclApi>& nccl) {
  Place place;
  if (!device.is_cuda()) {
    put(place.why_not, "it is on the CPU");
    return place;
  }
  const StatusOr<DeviceInfo> info = device.info();
  if (!info.ok() || !nccl.ok()) {
    put(place.why_not, std::string(message_of(info.ok() ? nccl.status() : info.status())));
    return place;
  }
  place.can = 1;
  place.version = nccl->version;
  put(place.device, machine_id() + " " + info->bus_id);
  return place;
}

// Why the group does without NCCL; empty: it has it.
std::string obstacle(const std::vector<Place>& places) {
  for (size_t r = 0; r < places.size(); ++r) {
    if (places[r].can == 0) {
      return fmt::format("rank {}: {}", r, places[r].why_not);
    }
    if (places[r].version / 100 != places[0].version / 100) {
      return fmt::format("ranks 0 and {} have NCCL {} and {}", r, places[0].version, places[r].version);
    }
    for (size_t other = 0; other < r; ++other) {
      if (std::strcmp(places[other].device, places[r].device) == 0) {
        return fmt::format("ranks {} and {} share one device", other, r);
      }
    }
  }
  return "";
}

}  // namespace

StatusOr<std::unique_ptr<Communicator>> connect_devices(const std::string& group, const Device& device,
                                                        const StatusOr<NcclApi>& nccl,
                                                        std::unique_ptr<GlooCommunicator> host, Store& store,
                                                        Deadline deadline) {
  const Place mine = place_of(device, nccl);
  std::vector<Place> places(static_cast<size_t>(host->size()));
  ACCORD_RETURN_IF_ERROR(host->all_gather(&mine, sizeof(mine), places.data(), deadline));
  if (const std::string why = obstacle(places); !why.empty()) {
    log::info("group '{}': device memory goes through the hosts, over TCP: {}", group, why);
    return std::unique_ptr<Communicator>(std::move(host));
  }
  log::info("group '{}': device memory goes over {}", group, nccl->origin);
  return NcclCommunicator::create(*nccl, group, device, std::move(host), store, deadline);
}

}  // namespace accord::comm
