#include "weights/arena.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>
#include <utility>

#include "device/memory.hpp"

namespace accord::weights {

Arena::Arena(std::byte* data, int64_t size, std::unique_ptr<Memory> pinned)
    : data_(data), size_(size), pinned_(std::move(pinned)) {}

StatusOr<std::unique_ptr<Arena>> Arena::create(int64_t bytes) {
  if (bytes <= 0) {
    return internal_error("a weight arena of {} bytes", bytes);
  }
  // Anonymous pages are zero and cost nothing until they are written.
  void* memory = ::mmap(nullptr, static_cast<size_t>(bytes), PROT_READ | PROT_WRITE,
                        MAP_PRIVATE | MAP_ANONYMOUS | MAP_NORESERVE, -1, 0);
  if (memory == MAP_FAILED) {
    return unavailable_error("cannot get {} bytes of memory for the weights: {}", bytes,
                             std::strerror(errno));
  }
  return std::unique_ptr<Arena>(new Arena(static_cast<std::byte*>(memory), bytes, nullptr));
}

StatusOr<std::unique_ptr<Arena>> Arena::create_pinned(const Device& device, int64_t bytes) {
  if (bytes <= 0) {
    return internal_error("a weight arena of {} bytes", bytes);
  }
  const auto size = static_cast<size_t>(bytes);
  ACCORD_ASSIGN_OR_RETURN(Memory pinned, Memory::allocate(device, size, MemoryKind::kPinned));
  auto* const data = pinned.as<std::byte>();
  std::memset(data, 0, size);
  return std::unique_ptr<Arena>(new Arena(data, bytes, std::make_unique<Memory>(std::move(pinned))));
}

Arena::~Arena() {
  if (!pinned_) {
    ::munmap(data_, static_cast<size_t>(size_));
  }
}

}  // namespace accord::weights
