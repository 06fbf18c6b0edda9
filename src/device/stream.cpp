#include "device/stream.hpp"

#include <cstring>

#include "device/backend.hpp"

namespace accord {

void StreamDeleter::operator()(StreamHandle stream) const { backend::destroy_stream(device, stream); }
void EventDeleter::operator()(EventHandle event) const { backend::destroy_event(device, event); }

StatusOr<Stream> Stream::create(const Device& device) {
  Stream stream;
  stream.device_ = device.id();
  if (device.is_cuda()) {
    ACCORD_ASSIGN_OR_RETURN(StreamHandle handle, backend::create_stream(device.id().index));
    stream.handle_ = {handle, StreamDeleter{device.id().index}};
  }
  return stream;
}

Status Stream::synchronize() const {
  return handle_ ? backend::synchronize_stream(handle()) : absl::OkStatus();
}

Status Stream::wait(const Event& event) const {
  return handle_ && event.handle() != nullptr ? backend::wait(handle(), event.handle()) : absl::OkStatus();
}

Status Stream::copy(void* to, const void* from, size_t bytes) const {
  if (bytes == 0) {
    return absl::OkStatus();
  }
  if (handle_) {
    return backend::copy(to, from, bytes, handle());
  }
  std::memcpy(to, from, bytes);
  return absl::OkStatus();
}

Status Stream::fill(void* to, uint8_t value, size_t bytes) const {
  if (bytes == 0) {
    return absl::OkStatus();
  }
  if (handle_) {
    return backend::fill(to, value, bytes, handle());
  }
  std::memset(to, value, bytes);
  return absl::OkStatus();
}

StatusOr<Event> Event::create(const Device& device) {
  Event event;
  if (device.is_cuda()) {
    ACCORD_ASSIGN_OR_RETURN(EventHandle handle, backend::create_event(device.id().index));
    event.handle_ = {handle, EventDeleter{device.id().index}};
  }
  return event;
}

Status Event::record(const Stream& stream) {
  if (handle_) {
    return backend::record(handle(), stream.handle());
  }
  time_ = std::chrono::steady_clock::now();
  return absl::OkStatus();
}

Status Event::synchronize() const {
  return handle_ ? backend::synchronize_event(handle()) : absl::OkStatus();
}

StatusOr<bool> Event::finished() const {
  if (handle_) {
    return backend::event_finished(handle());
  }
  return true;
}

StatusOr<double> Event::milliseconds_since(const Event& start) const {
  if (handle_) {
    return backend::milliseconds_between(start.handle(), handle());
  }
  return std::chrono::duration<double, std::milli>(time_ - start.time_).count();
}

}  // namespace accord
