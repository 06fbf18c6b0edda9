#include "device/buffer.hpp"

#include <new>

namespace accord {

void Buffer::ensure(size_t bytes) {
  if (bytes <= capacity_) {
    return;
  }
  const size_t rounded = (bytes + kAlignment - 1) / kAlignment * kAlignment;
  memory_.reset();
  capacity_ = 0;
  memory_.reset(std::aligned_alloc(kAlignment, rounded));
  if (!memory_) {
    throw std::bad_alloc();
  }
  capacity_ = rounded;
}

}  // namespace accord
