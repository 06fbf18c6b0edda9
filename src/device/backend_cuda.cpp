// The device room's CUDA calls.
#include <cuda_runtime.h>

#include <cstdlib>

#include "base/log.hpp"
#include "device/backend.hpp"
#include "device/launch.hpp"

namespace accord::backend {
namespace {

// The hardware or its driver is gone, rather than this program's kernels at fault.
bool is_hardware(cudaError_t error) {
  switch (error) {
    case cudaErrorECCUncorrectable:
    case cudaErrorNvlinkUncorrectable:
    case cudaErrorDevicesUnavailable:
    case cudaErrorDeviceUninitialized:
    case cudaErrorSystemNotReady:
    case cudaErrorContained:
      return true;
    default:
      return false;
  }
}

// Whether every later call on the context fails too: such an error is not cleared by reading it.
bool is_sticky(cudaError_t error) {
  switch (error) {
    case cudaErrorIllegalAddress:
    case cudaErrorLaunchTimeout:
    case cudaErrorAssert:
    case cudaErrorHardwareStackError:
    case cudaErrorIllegalInstruction:
    case cudaErrorMisalignedAddress:
    case cudaErrorInvalidAddressSpace:
    case cudaErrorInvalidPc:
    case cudaErrorLaunchFailure:
    case cudaErrorTensorMemoryLeak:
    case cudaErrorExternalDevice:
    case cudaErrorUnknown:
      return true;
    default:
      return is_hardware(error);
  }
}

std::string version_text(int version) {
  constexpr int kMajor = 1000;
  constexpr int kMinor = 10;
  return fmt::format("{}.{}", version / kMajor, version % kMajor / kMinor);
}

std::string text_of(cudaError_t error) {
  return fmt::format("{} ({})", cudaGetErrorString(error), cudaGetErrorName(error));
}

[[noreturn]] void end_process(const char* call, cudaError_t error) {
  log::error("{}: {}; the CUDA context is lost, so this process ends. {}", call, text_of(error),
             is_hardware(error) ? "Check the device with nvidia-smi and the kernel's log for Xid messages"
                                : "Run it under compute-sanitizer to find the kernel at fault");
  // No destructors: they would call into the lost context.
  std::_Exit(static_cast<int>(is_hardware(error) ? ExitCode::kUnavailable : ExitCode::kInternal));
}

Status check(cudaError_t error, const char* call) {
  if (error == cudaSuccess) {
    return absl::OkStatus();
  }
  if (is_sticky(error)) {
    end_process(call, error);
  }
  (void)cudaGetLastError();  // handled: the next check of a launch must not find it
  return unavailable_error("{}: {}", call, text_of(error));
}

constexpr int kNone = -1;

// The device that the calling thread has chosen. CUDA's own answer is device 0 where it has chosen none, and
// going back there would make a context on it.
int& thread_device() {
  thread_local int device = kNone;
  return device;
}

// The calling thread's device while this lives, and after it where the thread had none.
class CurrentDevice {
 public:
  explicit CurrentDevice(int device) : previous_(thread_device()) {
    if (device != previous_) {
      status_ = set_device(device);
    }
  }
  ~CurrentDevice() {
    if (previous_ != kNone && previous_ != thread_device()) {
      (void)set_device(previous_);
    }
  }
  CurrentDevice(const CurrentDevice&) = delete;
  CurrentDevice& operator=(const CurrentDevice&) = delete;
  const Status& status() const { return status_; }

 private:
  const int previous_;
  Status status_;
};

// Releasing fails only when the context is lost or the program ends: worth a line, not a status.
void check_release(cudaError_t error, const char* call) {
  if (error != cudaSuccess && error != cudaErrorCudartUnloading) {
    if (is_sticky(error)) {
      end_process(call, error);
    }
    log::warn("{}: {}", call, text_of(error));
  }
}

}  // namespace

StatusOr<int> device_count() {
  int count = 0;
  const cudaError_t error = cudaGetDeviceCount(&count);
  if (error == cudaErrorInsufficientDriver) {
    (void)cudaGetLastError();
    return unavailable_error("this machine has no NVIDIA driver for CUDA {} (found: {})",
                             version_text(CUDART_VERSION), driver_text());
  }
  ACCORD_RETURN_IF_ERROR(check(error, "cudaGetDeviceCount"));
  return count;
}

StatusOr<DeviceInfo> device_info(int device) {
  cudaDeviceProp properties;
  ACCORD_RETURN_IF_ERROR(check(cudaGetDeviceProperties(&properties, device), "cudaGetDeviceProperties"));
  char bus_id[32] = {};
  ACCORD_RETURN_IF_ERROR(
      check(cudaDeviceGetPCIBusId(bus_id, sizeof(bus_id), device), "cudaDeviceGetPCIBusId"));
  DeviceInfo info;
  info.name = properties.name;
  info.bus_id = bus_id;
  info.major = properties.major;
  info.minor = properties.minor;
  info.num_multiprocessors = properties.multiProcessorCount;
  info.l2_bytes = properties.l2CacheSize;
  info.total_bytes = static_cast<int64_t>(properties.totalGlobalMem);
  return info;
}

StatusOr<int64_t> free_bytes(int device) {
  const CurrentDevice current(device);
  ACCORD_RETURN_IF_ERROR(current.status());
  size_t free = 0;
  size_t total = 0;
  ACCORD_RETURN_IF_ERROR(check(cudaMemGetInfo(&free, &total), "cudaMemGetInfo"));
  return static_cast<int64_t>(free);
}

std::string driver_text() {
  int driver = 0;
  if (cudaDriverGetVersion(&driver) != cudaSuccess) {
    return "none: the CUDA runtime does not start";
  }
  return driver == 0 ? std::string("none") : "CUDA " + version_text(driver);
}

Status set_device(int device) {
  ACCORD_RETURN_IF_ERROR(check(cudaSetDevice(device), "cudaSetDevice"));
  thread_device() = device;
  return absl::OkStatus();
}

Status synchronize_device(int device) {
  const CurrentDevice current(device);
  ACCORD_RETURN_IF_ERROR(current.status());
  return check(cudaDeviceSynchronize(), "cudaDeviceSynchronize");
}

StatusOr<void*> allocate(int device, size_t bytes) {
  const CurrentDevice current(device);
  ACCORD_RETURN_IF_ERROR(current.status());
  void* p = nullptr;
  const cudaError_t error = cudaMalloc(&p, bytes);
  if (error == cudaErrorMemoryAllocation) {
    (void)cudaGetLastError();
    size_t free_bytes = 0;
    size_t total_bytes = 0;
    ACCORD_RETURN_IF_ERROR(check(cudaMemGetInfo(&free_bytes, &total_bytes), "cudaMemGetInfo"));
    return unavailable_error("cudaMalloc: cuda:{} has {} of {} bytes free, {} are needed", device, free_bytes,
                             total_bytes, bytes);
  }
  ACCORD_RETURN_IF_ERROR(check(error, "cudaMalloc"));
  return p;
}

void release(int device, void* p) {
  const CurrentDevice current(device);
  check_release(cudaFree(p), "cudaFree");
}

StatusOr<void*> allocate_pinned(int device, size_t bytes) {
  const CurrentDevice current(device);
  ACCORD_RETURN_IF_ERROR(current.status());
  void* p = nullptr;
  const Status status = check(cudaHostAlloc(&p, bytes, cudaHostAllocPortable), "cudaHostAlloc");
  if (!status.ok()) {
    return annotate(status, fmt::format("{} bytes of pinned host memory", bytes));
  }
  return p;
}

void release_pinned(void* p) { check_release(cudaFreeHost(p), "cudaFreeHost"); }

StatusOr<StreamHandle> create_stream(int device) {
  const CurrentDevice current(device);
  ACCORD_RETURN_IF_ERROR(current.status());
  cudaStream_t stream = nullptr;
  ACCORD_RETURN_IF_ERROR(
      check(cudaStreamCreateWithFlags(&stream, cudaStreamNonBlocking), "cudaStreamCreateWithFlags"));
  return stream;
}

void destroy_stream(int device, StreamHandle stream) {
  const CurrentDevice current(device);
  check_release(cudaStreamDestroy(stream), "cudaStreamDestroy");
}

Status synchronize_stream(StreamHandle stream) {
  return check(cudaStreamSynchronize(stream), "cudaStreamSynchronize");
}

Status copy(void* to, const void* from, size_t bytes, StreamHandle stream) {
  return check(cudaMemcpyAsync(to, from, bytes, cudaMemcpyDefault, stream), "cudaMemcpyAsync");
}

Status fill(void* to, uint8_t value, size_t bytes, StreamHandle stream) {
  return check(cudaMemsetAsync(to, value, bytes, stream), "cudaMemsetAsync");
}

StatusOr<EventHandle> create_event(int device) {
  const CurrentDevice current(device);
  ACCORD_RETURN_IF_ERROR(current.status());
  cudaEvent_t event = nullptr;
  ACCORD_RETURN_IF_ERROR(check(cudaEventCreate(&event), "cudaEventCreate"));
  return event;
}

void destroy_event(int device, EventHandle event) {
  const CurrentDevice current(device);
  check_release(cudaEventDestroy(event), "cudaEventDestroy");
}

Status record(EventHandle event, StreamHandle stream) {
  return check(cudaEventRecord(event, stream), "cudaEventRecord");
}

Status wait(StreamHandle stream, EventHandle event) {
  return check(cudaStreamWaitEvent(stream, event, 0), "cudaStreamWaitEvent");
}

Status synchronize_event(EventHandle event) {
  return check(cudaEventSynchronize(event), "cudaEventSynchronize");
}

StatusOr<bool> event_finished(EventHandle event) {
  const cudaError_t error = cudaEventQuery(event);
  if (error == cudaErrorNotReady) {
    (void)cudaGetLastError();
    return false;
  }
  ACCORD_RETURN_IF_ERROR(check(error, "cudaEventQuery"));
  return true;
}

StatusOr<double> milliseconds_between(EventHandle start, EventHandle end) {
  float milliseconds = 0.0F;
  ACCORD_RETURN_IF_ERROR(check(cudaEventElapsedTime(&milliseconds, start, end), "cudaEventElapsedTime"));
  return milliseconds;
}

// Other threads may allocate and wait meanwhile; this one may not.
Status begin_capture(StreamHandle stream) {
  return check(cudaStreamBeginCapture(stream, cudaStreamCaptureModeThreadLocal), "cudaStreamBeginCapture");
}

StatusOr<GraphHandle> end_capture(StreamHandle stream) {
  cudaGraph_t graph = nullptr;
  ACCORD_RETURN_IF_ERROR(check(cudaStreamEndCapture(stream, &graph), "cudaStreamEndCapture"));
  cudaGraphExec_t executable = nullptr;
  const Status status = check(cudaGraphInstantiate(&executable, graph, 0), "cudaGraphInstantiate");
  check_release(cudaGraphDestroy(graph), "cudaGraphDestroy");
  ACCORD_RETURN_IF_ERROR(status);
  return executable;
}

Status launch_graph(GraphHandle graph, StreamHandle stream) {
  return check(cudaGraphLaunch(graph, stream), "cudaGraphLaunch");
}

void destroy_graph(int device, GraphHandle graph) {
  const CurrentDevice current(device);
  check_release(cudaGraphExecDestroy(graph), "cudaGraphExecDestroy");
}

}  // namespace accord::backend

namespace accord {

void check_launch(const char* kernel) {
  const cudaError_t error = cudaGetLastError();
  if (error != cudaSuccess) {
    backend::end_process(kernel, error);
  }
}

void require(bool holds, const char* condition) {
  if (!holds) {
    log::error("a CUDA kernel needs {}; the caller must check before it calls", condition);
    std::abort();
  }
}

int num_multiprocessors() {
  int device = 0;
  int count = 0;
  if (cudaGetDevice(&device) != cudaSuccess ||
      cudaDeviceGetAttribute(&count, cudaDevAttrMultiProcessorCount, device) != cudaSuccess) {
    check_launch("cudaDeviceGetAttribute");
  }
  return count;
}

}  // namespace accord
