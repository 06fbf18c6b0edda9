#pragma once
// Ranks as threads of one process, each on a device of its own, connected over NCCL; on emulated devices over
// the tests' own NCCL.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/communicator.hpp"
#include "base/status.hpp"
#include "device/collectives.hpp"
#include "device/device.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"

namespace gpu_test {

struct Rank {
  accord::Communicator& host;  // gloo alone, of the same ranks
  accord::Communicator& group;
  accord::DeviceCollectives& collectives;
  accord::Device device;
  accord::Stream stream;

  accord::Memory upload(const void* data, size_t bytes) const;
  void download(const void* from, void* to, size_t bytes) const;
};

// False, after printing SKIPPED: and why, where there are not `size` devices or no NCCL.
bool have_devices(int size);

// Bodies do not use Catch's macros.
std::vector<accord::Status> run_ranks(int size, const std::function<accord::Status(Rank&)>& body,
                                      int init_ms = 120000);

}  // namespace gpu_test
