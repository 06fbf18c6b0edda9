#include "controller/policy_arena.hpp"

#include <utility>

namespace accord::controller {

StatusOr<std::unique_ptr<PolicyArena>> PolicyArena::create(const Device& device, const Stream* stream,
                                                           int64_t bytes) {
  auto arena = std::unique_ptr<PolicyArena>(new PolicyArena(device, stream));
  if (!device.is_cuda()) {
    ACCORD_ASSIGN_OR_RETURN(arena->host_, weights::Arena::create(bytes));
    return arena;
  }
  ACCORD_ASSIGN_OR_RETURN(arena->host_, weights::Arena::create_pinned(device, bytes));
  ACCORD_ASSIGN_OR_RETURN(arena->memory_, Memory::allocate(device, arena->bytes()));
  ACCORD_RETURN_IF_ERROR(stream->fill(arena->memory_.data(), 0, arena->bytes()));
  ACCORD_RETURN_IF_ERROR(stream->synchronize());
  return arena;
}

Status PolicyArena::upload() {
  if (!on_device()) {
    return absl::OkStatus();
  }
  ACCORD_RETURN_IF_ERROR(stream_->copy(memory_.data(), host_->data(), bytes()));
  return stream_->synchronize();
}

Status PolicyArena::take(const std::byte* from) {
  ACCORD_RETURN_IF_ERROR(stream_->copy(memory_.data(), from, bytes()));
  return stream_->synchronize();
}

Status PolicyArena::download() {
  if (!on_device()) {
    return absl::OkStatus();
  }
  ACCORD_RETURN_IF_ERROR(stream_->copy(host_->data(), memory_.data(), bytes()));
  return stream_->synchronize();
}

Status PolicyArena::corrupt(int64_t byte, std::byte mask) {
  if (!on_device()) {
    host_->data()[byte] ^= mask;
    return absl::OkStatus();
  }
  std::byte value{};
  std::byte* const place = memory_.as<std::byte>() + byte;
  ACCORD_RETURN_IF_ERROR(stream_->copy(&value, place, 1));
  ACCORD_RETURN_IF_ERROR(stream_->synchronize());
  value ^= mask;
  ACCORD_RETURN_IF_ERROR(stream_->copy(place, &value, 1));
  return stream_->synchronize();
}

}  // namespace accord::controller
