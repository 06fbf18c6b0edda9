#pragma once
// The memory of emulated devices. An address that a program gets is one of a range that nothing is mapped to,
// so that host code which touches device memory ends with a segmentation fault, as it would with a GPU. The
// bytes lie elsewhere; kernels and copies ask for them (resolve), and learn whether an address is the
// device's at all.
//
// Fresh memory holds kPoison: NaN as BF16, FP32, E4M3 and E8M0, and -1 as an index.
//
//   ACCORD_EMULATED_DEVICES  how many devices there are (default 1)
//   ACCORD_EMULATED_MEMORY   bytes of each (default 8 GiB), read when a device is first used
#include <cstddef>
#include <cstdint>

#include "base/status.hpp"

namespace accord::emulation {

inline constexpr uint8_t kPoison = 0xff;

StatusOr<int> device_count();
size_t memory_bytes(int device);
size_t memory_used(int device);

// Null where the device has not so much in one piece.
void* allocate(int device, size_t bytes);
bool release(int device, void* p);  // false: no block begins there

bool is_device_address(const void* p);
// Blocks are numbered as they are allocated, over all devices. While this lives, the calling thread's
// resolve() ends the process where a block came after the `last` one.
uint64_t last_block();
class OldBlocksOnly {
 public:
  explicit OldBlocksOnly(uint64_t last);
  ~OldBlocksOnly();
  OldBlocksOnly(const OldBlocksOnly&) = delete;
  OldBlocksOnly& operator=(const OldBlocksOnly&) = delete;

 private:
  uint64_t before_;
};

// Where the bytes [p, p + bytes) lie; null unless they are part of one block of this device.
void* resolve(int device, const void* p, size_t bytes);

// The calling thread's device.
int current_device();
void set_current_device(int device);

}  // namespace accord::emulation
