#include "tests/emulation/memory.hpp"

#include <sys/mman.h>

#include <atomic>
#include <charconv>
#include <cstdlib>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <string_view>
#include <system_error>

#include "base/log.hpp"

namespace accord::emulation {
namespace {

constexpr size_t kAlignment = 256;
constexpr int kMaxDevices = 16;
constexpr int64_t kDefaultBytes = int64_t{8} << 30;

// The number in an environment variable; `fallback` where it is not set, -1 where it is no number.
int64_t setting(const char* name, int64_t fallback) {
  const char* text = std::getenv(name);
  if (text == nullptr) return fallback;
  const std::string_view all(text);
  int64_t value = 0;
  const auto [end, error] = std::from_chars(all.data(), all.data() + all.size(), value);
  return error == std::errc() && end == all.data() + all.size() ? value : -1;
}

size_t configured_bytes() { return static_cast<size_t>(setting("ACCORD_EMULATED_MEMORY", kDefaultBytes)); }

std::byte* map(size_t bytes, int protection) {
  void* p = mmap(nullptr, bytes, protection, MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  return p == MAP_FAILED ? nullptr : static_cast<std::byte*>(p);
}

std::atomic<uint64_t>& block_count() {
  static std::atomic<uint64_t> count = 0;
  return count;
}

// The newest block that the thread may touch.
uint64_t& newest_allowed() {
  thread_local uint64_t newest = std::numeric_limits<uint64_t>::max();
  return newest;
}

struct Block {
  size_t bytes = 0;
  uint64_t number = 0;
};

class Device {
 public:
  void* allocate(size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (addresses_ == nullptr && !reserve()) return nullptr;
    bytes = (bytes + kAlignment - 1) / kAlignment * kAlignment;
    size_t at = 0;
    for (const auto& [begin, block] : blocks_) {
      if (begin - at >= bytes) break;
      at = begin + block.bytes;
    }
    if (at > size_ || bytes > size_ - at) return nullptr;
    blocks_[at] = {bytes, ++block_count()};
    used_ += bytes;
    std::memset(memory_ + at, kPoison, bytes);
    return addresses_ + at;
  }

  bool release(const void* p) {
    const std::lock_guard lock(mutex_);
    if (!holds(p)) return false;
    const auto block = blocks_.find(offset(p));
    if (block == blocks_.end()) return false;
    (void)give_back(block->first, block->second.bytes);
    used_ -= block->second.bytes;
    blocks_.erase(block);
    return true;
  }

  void* resolve(const void* p, size_t bytes) {
    const std::lock_guard lock(mutex_);
    if (!holds(p)) return nullptr;
    const size_t at = offset(p);
    auto block = blocks_.upper_bound(at);
    if (block == blocks_.begin()) return nullptr;
    --block;
    if (block->second.number > newest_allowed()) {
      log::error(
          "a graph was launched that names {}, where a block lies that was allocated after its capture", p);
      std::abort();
    }
    const size_t left = block->first + block->second.bytes;
    return at <= left && bytes <= left - at ? memory_ + at : nullptr;
  }

  bool is_address(const void* p) {
    const std::lock_guard lock(mutex_);
    return holds(p);
  }
  size_t size() {
    const std::lock_guard lock(mutex_);
    return addresses_ != nullptr ? size_ : configured_bytes();
  }
  size_t used() {
    const std::lock_guard lock(mutex_);
    return used_;
  }

 private:
  bool reserve() {
    size_ = configured_bytes();
    addresses_ = map(size_, PROT_NONE);
    memory_ = map(size_, PROT_READ | PROT_WRITE);
    return addresses_ != nullptr && memory_ != nullptr;
  }
  bool holds(const void* p) const {
    return addresses_ != nullptr && p >= addresses_ && p < addresses_ + size_;
  }
  size_t offset(const void* p) const {
    return static_cast<size_t>(static_cast<const std::byte*>(p) - addresses_);
  }
  // Gives whole pages back to the system.
  int give_back(size_t at, size_t bytes) {
    constexpr size_t kPage = 4096;
    const size_t begin = (at + kPage - 1) / kPage * kPage;
    const size_t end = (at + bytes) / kPage * kPage;
    return begin < end ? madvise(memory_ + begin, end - begin, MADV_DONTNEED) : 0;
  }

  std::mutex mutex_;
  std::byte* addresses_ = nullptr;
  std::byte* memory_ = nullptr;
  size_t size_ = 0;
  std::map<size_t, Block> blocks_;  // by offset
  size_t used_ = 0;
};

Device& device_at(int index) {
  static Device devices[kMaxDevices];
  return devices[index];
}

int& thread_device() {
  thread_local int device = 0;
  return device;
}

}  // namespace

StatusOr<int> device_count() {
  const int64_t count = setting("ACCORD_EMULATED_DEVICES", 1);
  if (count < 0 || count > kMaxDevices) {
    return unavailable_error("ACCORD_EMULATED_DEVICES: a number from 0 to {}", kMaxDevices);
  }
  if (setting("ACCORD_EMULATED_MEMORY", kDefaultBytes) <= 0) {
    return unavailable_error("ACCORD_EMULATED_MEMORY: a number of bytes");
  }
  return static_cast<int>(count);
}

size_t memory_bytes(int device) { return device_at(device).size(); }
size_t memory_used(int device) { return device_at(device).used(); }
void* allocate(int device, size_t bytes) { return device_at(device).allocate(bytes); }
bool release(int device, void* p) { return device_at(device).release(p); }

bool is_device_address(const void* p) {
  for (int device = 0; device < kMaxDevices; ++device) {
    if (device_at(device).is_address(p)) return true;
  }
  return false;
}

void* resolve(int device, const void* p, size_t bytes) { return device_at(device).resolve(p, bytes); }

uint64_t last_block() { return block_count(); }

OldBlocksOnly::OldBlocksOnly(uint64_t last) : before_(newest_allowed()) { newest_allowed() = last; }
OldBlocksOnly::~OldBlocksOnly() { newest_allowed() = before_; }

int current_device() { return thread_device(); }
void set_current_device(int device) { thread_device() = device; }

}  // namespace accord::emulation
