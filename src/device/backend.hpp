#pragma once
// Internal to the device room: the CUDA calls behind its classes. backend_cuda.cpp makes them;
// backend_none.cpp, in builds without CUDA, answers that there are none. Every error names the call.
#include <cstddef>
#include <string>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/stream_handle.hpp"

namespace accord::backend {

StatusOr<int> device_count();
StatusOr<DeviceInfo> device_info(int device);  // makes no context
StatusOr<int64_t> free_bytes(int device);
std::string driver_text();

Status set_device(int device);
Status synchronize_device(int device);

StatusOr<void*> allocate(int device, size_t bytes);
void release(int device, void* p);
StatusOr<void*> allocate_pinned(int device, size_t bytes);
void release_pinned(void* p);

StatusOr<StreamHandle> create_stream(int device);
void destroy_stream(int device, StreamHandle stream);
Status synchronize_stream(StreamHandle stream);
Status copy(void* to, const void* from, size_t bytes, StreamHandle stream);
Status fill(void* to, uint8_t value, size_t bytes, StreamHandle stream);

StatusOr<EventHandle> create_event(int device);
void destroy_event(int device, EventHandle event);
Status record(EventHandle event, StreamHandle stream);
Status wait(StreamHandle stream, EventHandle event);
Status synchronize_event(EventHandle event);
StatusOr<bool> event_finished(EventHandle event);
StatusOr<double> milliseconds_between(EventHandle start, EventHandle end);

// Between these two calls what the calling thread submits to `stream` is recorded, not run. end_capture also
// ends a recording that failed, with an error.
Status begin_capture(StreamHandle stream);
StatusOr<GraphHandle> end_capture(StreamHandle stream);
Status launch_graph(GraphHandle graph, StreamHandle stream);
void destroy_graph(int device, GraphHandle graph);

}  // namespace accord::backend
