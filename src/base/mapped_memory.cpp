#include "base/mapped_memory.hpp"

#include <sys/mman.h>
#include <unistd.h>

#include <cstdint>

namespace accord {
namespace {

// Whole pages: one that a neighbour shares comes back on its next touch.
void advise(const std::byte* data, size_t size, int advice) {
  const auto page = static_cast<uintptr_t>(::sysconf(_SC_PAGESIZE));
  const uintptr_t begin = reinterpret_cast<uintptr_t>(data) / page * page;
  const uintptr_t end = (reinterpret_cast<uintptr_t>(data) + size + page - 1) / page * page;
  ::madvise(reinterpret_cast<void*>(begin), end - begin, advice);
}

}  // namespace

void prefetch_mapped(const std::byte* data, size_t size) { advise(data, size, MADV_WILLNEED); }

void release_mapped(const std::byte* data, size_t size) { advise(data, size, MADV_DONTNEED); }

}  // namespace accord
