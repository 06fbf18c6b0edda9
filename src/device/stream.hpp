#pragma once
// Streams and events. On the CPU everything runs when it is called, so waiting is over at once.
#include <chrono>
#include <cstddef>
#include <memory>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/stream_handle.hpp"

namespace accord {

class Event;

struct StreamDeleter {
  int device = 0;
  void operator()(StreamHandle stream) const;
};
struct EventDeleter {
  int device = 0;
  void operator()(EventHandle event) const;
};

// An ordered queue of work. Moving it keeps its handle.
class Stream {
 public:
  Stream() = default;  // the CPU's
  // A stream that does not wait for CUDA's default stream.
  static StatusOr<Stream> create(const Device& device);

  StreamHandle handle() const { return handle_.get(); }
  DeviceId device() const { return device_; }

  Status synchronize() const;
  // What follows on this stream starts after the event.
  Status wait(const Event& event) const;

  // Between any two kinds of memory, in stream order. Asynchronous where both are device or pinned memory;
  // the ranges do not overlap. Pageable host memory makes the call wait.
  Status copy(void* to, const void* from, size_t bytes) const;
  Status fill(void* to, uint8_t value, size_t bytes) const;

 private:
  DeviceId device_;
  std::unique_ptr<CUstream_st, StreamDeleter> handle_;
};

// A point in a stream's work.
class Event {
 public:
  static StatusOr<Event> create(const Device& device);

  Status record(const Stream& stream);
  Status synchronize() const;
  StatusOr<bool> finished() const;
  // Milliseconds from `start` to this, both recorded and finished.
  StatusOr<double> milliseconds_since(const Event& start) const;
  EventHandle handle() const { return handle_.get(); }

 private:
  std::unique_ptr<CUevent_st, EventDeleter> handle_;
  std::chrono::steady_clock::time_point time_;  // on the CPU
};

}  // namespace accord
