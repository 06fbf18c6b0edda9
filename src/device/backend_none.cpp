// The device room's CUDA calls in a build without CUDA.
#include "device/backend.hpp"

namespace accord::backend {
namespace {

Status no_cuda() {
  return unavailable_error(
      "this build has no CUDA kernels: build with ACCORD_CUDA=ON (cmake --preset cuda), "
      "or use the device cpu");
}

}  // namespace

StatusOr<int> device_count() { return no_cuda(); }
StatusOr<DeviceInfo> device_info(int) { return no_cuda(); }
StatusOr<int64_t> free_bytes(int) { return no_cuda(); }
std::string driver_text() { return "none: this build has no CUDA kernels"; }
Status set_device(int) { return no_cuda(); }
Status synchronize_device(int) { return no_cuda(); }
StatusOr<void*> allocate(int, size_t) { return no_cuda(); }
void release(int, void*) {}
StatusOr<void*> allocate_pinned(int, size_t) { return no_cuda(); }
void release_pinned(void*) {}
StatusOr<StreamHandle> create_stream(int) { return no_cuda(); }
void destroy_stream(int, StreamHandle) {}
Status synchronize_stream(StreamHandle) { return no_cuda(); }
Status copy(void*, const void*, size_t, StreamHandle) { return no_cuda(); }
Status fill(void*, uint8_t, size_t, StreamHandle) { return no_cuda(); }
StatusOr<EventHandle> create_event(int) { return no_cuda(); }
void destroy_event(int, EventHandle) {}
Status record(EventHandle, StreamHandle) { return no_cuda(); }
Status wait(StreamHandle, EventHandle) { return no_cuda(); }
Status synchronize_event(EventHandle) { return no_cuda(); }
StatusOr<bool> event_finished(EventHandle) { return no_cuda(); }
StatusOr<double> milliseconds_between(EventHandle, EventHandle) { return no_cuda(); }
Status begin_capture(StreamHandle) { return no_cuda(); }
StatusOr<GraphHandle> end_capture(StreamHandle) { return no_cuda(); }
Status launch_graph(GraphHandle, StreamHandle) { return no_cuda(); }
void destroy_graph(int, GraphHandle) {}

}  // namespace accord::backend
