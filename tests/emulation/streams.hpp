#pragma once
// Streams of emulated devices. Work runs when it is submitted, with two exceptions that make missing waits
// show:
//
//   device -> pinned memory   arrives when the host waits for the stream or for a later event; until then the
//                             target holds poison
//   pinned memory -> device   the source must still hold the same bytes at that time
//
// Copies from and to other host memory are over when the call returns, as with CUDA.
#include <cstddef>

#include "base/status.hpp"
#include "device/stream_handle.hpp"

namespace accord::emulation {

inline constexpr int kMultiprocessors = 132;

int device_of(StreamHandle stream);

}  // namespace accord::emulation
