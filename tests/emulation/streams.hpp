#pragma once
// Streams of emulated devices. Work runs when it is submitted, with two exceptions that make missing waits
// show:
//
//   device -> pinned memory   arrives when the host waits for the stream or for a later event; until then the
//                             target holds poison
//   pinned memory -> device   the source must still hold the same bytes at that time
//
// Copies from and to other host memory are over when the call returns, as with CUDA.
//
// While a stream is captured its work is recorded as calls to make again, and does not run. A graph that is
// launched makes them, and may touch no memory that was allocated after its capture: an address that changed
// since, and was given to something else, shows. While it captures, a thread may not wait or allocate.
#include <cstddef>
#include <functional>
#include <utility>

#include "base/status.hpp"
#include "device/stream_handle.hpp"

namespace accord::emulation {

inline constexpr int kMultiprocessors = 132;

int device_of(StreamHandle stream);

bool is_capturing(StreamHandle stream);
void record_call(StreamHandle stream, std::function<void(StreamHandle)> call);

// What a launch function does first: true where `stream` is captured, and kernel(arguments..., stream) a call
// to make later.
template <class Kernel, class... Arguments>
bool recorded(StreamHandle stream, Kernel kernel, const Arguments&... arguments) {
  if (!is_capturing(stream)) return false;
  record_call(stream, [=](StreamHandle later) { kernel(arguments..., later); });
  return true;
}

}  // namespace accord::emulation
