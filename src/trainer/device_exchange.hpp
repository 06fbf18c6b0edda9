#pragma once
// exchange.hpp between device memory: the same bits, without a detour over the hosts. What is done goes into
// `stream`; the calls return when it is done there, on this rank.
#include <cstdint>
#include <functional>

#include "base/communicator.hpp"
#include "base/deadline.hpp"
#include "base/dtype.hpp"
#include "base/status.hpp"
#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/stream.hpp"
#include "trainer/shards.hpp"

namespace accord::trainer {

// Bytes that a rank gets in a round, from all ranks.
inline constexpr int64_t kDeviceRoundBytes = int64_t{128} << 20;

class DeviceExchange {
 public:
  // Both must outlive it. Takes memory with the first exchange.
  DeviceExchange(const Device& device, const Stream& stream) : device_(device), stream_(stream) {}

  // Whether `group` can: it has device collectives, and not more ranks than one sum takes.
  static bool serves(Communicator& group);

  Status reduce_gradients(const ShardLayout& layout, float* gradients, Communicator& group, Deadline deadline,
                          int64_t round_bytes = kDeviceRoundBytes);
  // `master`: of the device.
  Status share_originals(const ShardLayout& layout, BF16* originals,
                         const std::function<const float*(int64_t parameter)>& master,
                         const std::function<int64_t(int64_t parameter)>& numel, Communicator& group,
                         Deadline deadline, int64_t round_bytes = kDeviceRoundBytes);

  int64_t bytes() const { return static_cast<int64_t>(buffer_.capacity()); }

 private:
  const Device& device_;
  const Stream& stream_;
  DeviceBuffer buffer_;
};

}  // namespace accord::trainer
