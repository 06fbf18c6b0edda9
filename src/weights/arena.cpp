#include "weights/arena.hpp"

#include <sys/mman.h>

#include <cerrno>
#include <cstring>

namespace accord::weights {

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
  return std::unique_ptr<Arena>(new Arena(static_cast<std::byte*>(memory), bytes));
}

Arena::~Arena() { ::munmap(data_, static_cast<size_t>(size_)); }

}  // namespace accord::weights
