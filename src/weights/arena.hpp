#pragma once
// One contiguous, aligned block that holds all weights of a policy in manifest order. Its address is fixed
// for its life. It starts as zeros, and the padding between tensors stays zero.
#include <cstddef>
#include <cstdint>
#include <memory>

#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord {
class Device;
class Memory;
}  // namespace accord

namespace accord::weights {

class Arena {
 public:
  // Errors: kUnavailable when the memory cannot be had.
  static StatusOr<std::unique_ptr<Arena>> create(int64_t bytes);
  // Host memory that the device copies from and to without a detour.
  static StatusOr<std::unique_ptr<Arena>> create_pinned(const Device& device, int64_t bytes);
  ~Arena();
  Arena(const Arena&) = delete;
  Arena& operator=(const Arena&) = delete;

  std::byte* data() { return data_; }
  const std::byte* data() const { return data_; }
  int64_t size() const { return size_; }

 private:
  Arena(std::byte* data, int64_t size, std::unique_ptr<Memory> pinned);

  std::byte* data_;  // page aligned, or of pinned_
  int64_t size_;
  std::unique_ptr<Memory> pinned_;
};

}  // namespace accord::weights
