// The device room's calls on emulated devices (memory.hpp, streams.hpp): what backend_cuda.cpp asks of CUDA.
#include "device/backend.hpp"

#include <algorithm>
#include <chrono>
#include <cstdlib>
#include <cstring>
#include <functional>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string_view>
#include <vector>

#include "base/log.hpp"
#include "tests/emulation/capability.hpp"
#include "tests/emulation/memory.hpp"
#include "tests/emulation/streams.hpp"

namespace accord {
namespace {

constexpr size_t kPinnedAlignment = 256;

[[noreturn]] void fail(const std::string& what) {
  log::error("{}", what);
  std::abort();
}

// A copy that the host must wait for.
struct Transfer {
  std::byte* to = nullptr;  // pinned memory that gets `bytes`, or null
  std::vector<std::byte> bytes;
  const std::byte* from = nullptr;  // pinned memory whose `size` bytes must not have changed
  size_t size = 0;
  size_t hash = 0;
};

size_t hash_of(const void* p, size_t size) {
  return std::hash<std::string_view>()({static_cast<const char*>(p), size});
}

void finish(const Transfer& transfer) {
  if (transfer.to != nullptr) {
    std::memcpy(transfer.to, transfer.bytes.data(), transfer.bytes.size());
  } else if (hash_of(transfer.from, transfer.size) != transfer.hash) {
    fail(fmt::format("pinned memory at {} changed while a copy of {} bytes from it was under way",
                     static_cast<const void*>(transfer.from), transfer.size));
  }
}

// What is under way on one stream, in order; `first` is the number of the oldest.
struct Queue {
  std::vector<Transfer> transfers;
  size_t first = 0;

  size_t end() const { return first + transfers.size(); }
  bool reads(const std::byte* begin, size_t bytes) const {
    return std::any_of(transfers.begin(), transfers.end(), [&](const Transfer& t) {
      return t.from != nullptr && t.from < begin + bytes && begin < t.from + t.size;
    });
  }
  void finish_until(size_t count) {
    if (count <= first) return;
    const size_t finished = std::min(count - first, transfers.size());
    for (size_t i = 0; i < finished; ++i) finish(transfers[i]);
    transfers.erase(transfers.begin(), transfers.begin() + static_cast<std::ptrdiff_t>(finished));
    first += finished;
  }
};

}  // namespace
}  // namespace accord

using RecordedCalls = std::vector<std::function<void(accord::StreamHandle)>>;

struct CUstream_st {
  int device = 0;
  std::shared_ptr<accord::Queue> queue = std::make_shared<accord::Queue>();
  std::unique_ptr<RecordedCalls> recording;  // while it is captured
};

struct CUgraphExec_st {
  int device = 0;
  RecordedCalls calls;
  uint64_t last_block = 0;
};

struct CUevent_st {
  std::shared_ptr<accord::Queue> queue;  // null: not recorded
  size_t count = 0;                      // transfers before it
  std::chrono::steady_clock::time_point time;
};

namespace accord {
namespace {

// All streams and all pinned memory of this process. One lock: transfers of one stream may be finished by
// another thread.
struct Process {
  std::mutex mutex;
  std::set<StreamHandle> streams;
  std::map<const std::byte*, size_t> pinned;

  static Process& instance() {
    static Process process;
    return process;
  }

  bool is_pinned(const void* p) const {
    const auto* at = static_cast<const std::byte*>(p);
    auto block = pinned.upper_bound(at);
    if (block == pinned.begin()) return false;
    --block;
    return at < block->first + block->second;
  }
};

Status check_device(int device) {
  ACCORD_ASSIGN_OR_RETURN(const int count, emulation::device_count());
  if (device < 0 || device >= count) return unavailable_error("emulated device {} of {}", device, count);
  return absl::OkStatus();
}

// A copy's side on a device, whichever; null where p is host memory.
void* device_memory(const void* p, size_t bytes) {
  if (!emulation::is_device_address(p)) return nullptr;
  for (int device = 0; device < emulation::device_count().value_or(0); ++device) {
    if (void* memory = emulation::resolve(device, p, bytes)) return memory;
  }
  fail(fmt::format("cudaMemcpyAsync: the {} bytes at {} are not within one allocation", bytes, p));
}

// The thread's captures that have not ended.
int& thread_captures() {
  thread_local int captures = 0;
  return captures;
}

// What a thread must not do meanwhile; a capture of CUDA ends with an error then, too.
Status check_no_capture(const char* call) {
  return thread_captures() == 0
             ? absl::OkStatus()
             : unavailable_error("{}: operation not permitted when stream is capturing", call);
}

}  // namespace

namespace emulation {

int device_of(StreamHandle stream) { return stream->device; }
bool is_capturing(StreamHandle stream) { return stream != nullptr && stream->recording != nullptr; }
void record_call(StreamHandle stream, std::function<void(StreamHandle)> call) {
  stream->recording->push_back(std::move(call));
}

}  // namespace emulation

namespace backend {

StatusOr<int> device_count() { return emulation::device_count(); }

StatusOr<DeviceInfo> device_info(int device) {
  ACCORD_RETURN_IF_ERROR(check_device(device));
  constexpr int64_t kL2Bytes = 50 << 20;
  DeviceInfo info;
  info.name = "emulated";
  info.bus_id = fmt::format("emulated:{}", device);
  const emulation::Capability capability = emulation::capability();
  info.major = capability.major;
  info.minor = capability.minor;
  info.num_multiprocessors = emulation::kMultiprocessors;
  info.l2_bytes = kL2Bytes;
  info.total_bytes = static_cast<int64_t>(emulation::memory_bytes(device));
  return info;
}

StatusOr<int64_t> free_bytes(int device) {
  ACCORD_RETURN_IF_ERROR(check_device(device));
  return static_cast<int64_t>(emulation::memory_bytes(device) - emulation::memory_used(device));
}

std::string driver_text() { return "emulated"; }

Status set_device(int device) {
  ACCORD_RETURN_IF_ERROR(check_device(device));
  emulation::set_current_device(device);
  return absl::OkStatus();
}

Status synchronize_device(int device) {
  ACCORD_RETURN_IF_ERROR(check_no_capture("cudaDeviceSynchronize"));
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  for (StreamHandle stream : process.streams) {
    if (stream->device == device) stream->queue->finish_until(stream->queue->end());
  }
  return absl::OkStatus();
}

StatusOr<void*> allocate(int device, size_t bytes) {
  ACCORD_RETURN_IF_ERROR(check_device(device));
  ACCORD_RETURN_IF_ERROR(check_no_capture("cudaMalloc"));
  void* p = emulation::allocate(device, bytes);
  if (p == nullptr) {
    const size_t total = emulation::memory_bytes(device);
    return unavailable_error("cudaMalloc: cuda:{} has {} of {} bytes free, {} are needed", device,
                             total - emulation::memory_used(device), total, bytes);
  }
  return p;
}

void release(int device, void* p) {
  (void)synchronize_device(device);  // as cudaFree does
  if (!emulation::release(device, p)) fail(fmt::format("cudaFree: no block begins at {}", p));
}

StatusOr<void*> allocate_pinned(int device, size_t bytes) {
  ACCORD_RETURN_IF_ERROR(check_device(device));
  ACCORD_RETURN_IF_ERROR(check_no_capture("cudaHostAlloc"));
  const size_t rounded =
      std::max<size_t>(1, (bytes + kPinnedAlignment - 1) / kPinnedAlignment) * kPinnedAlignment;
  void* p = std::aligned_alloc(kPinnedAlignment, rounded);
  if (p == nullptr) return unavailable_error("cudaHostAlloc: {} bytes of pinned host memory", bytes);
  std::memset(p, emulation::kPoison, rounded);
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  process.pinned[static_cast<const std::byte*>(p)] = rounded;
  return p;
}

void release_pinned(void* p) {
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  for (StreamHandle stream : process.streams) {  // as cudaFreeHost does
    stream->queue->finish_until(stream->queue->end());
  }
  process.pinned.erase(static_cast<const std::byte*>(p));
  std::free(p);
}

StatusOr<StreamHandle> create_stream(int device) {
  ACCORD_RETURN_IF_ERROR(check_device(device));
  auto stream = std::make_unique<CUstream_st>();
  stream->device = device;
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  process.streams.insert(stream.get());
  return stream.release();
}

void destroy_stream(int /*device*/, StreamHandle stream) {
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  stream->queue->finish_until(stream->queue->end());
  process.streams.erase(stream);
  delete stream;
}

Status synchronize_stream(StreamHandle stream) {
  ACCORD_RETURN_IF_ERROR(check_no_capture("cudaStreamSynchronize"));
  const std::lock_guard lock(Process::instance().mutex);
  stream->queue->finish_until(stream->queue->end());
  return absl::OkStatus();
}

Status copy(void* to, const void* from, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return absl::OkStatus();
  if (emulation::is_capturing(stream)) {
    emulation::record_call(stream, [=](StreamHandle later) { (void)copy(to, from, bytes, later); });
    return absl::OkStatus();
  }
  void* device_to = device_memory(to, bytes);
  const void* device_from = device_memory(from, bytes);
  Process& process = Process::instance();
  const std::lock_guard lock(process.mutex);
  Queue& queue = *stream->queue;
  if (device_from == nullptr && process.is_pinned(from)) {
    queue.finish_until(queue.end());  // it may be the target of an earlier copy
    queue.transfers.push_back(
        {nullptr, {}, static_cast<const std::byte*>(from), bytes, hash_of(from, bytes)});
  }
  if (device_to != nullptr || !process.is_pinned(to)) {
    if (device_to == nullptr) queue.finish_until(queue.end());  // the call waits
    std::memcpy(device_to != nullptr ? device_to : to, device_from != nullptr ? device_from : from, bytes);
    return absl::OkStatus();
  }
  const auto* source = static_cast<const std::byte*>(device_from != nullptr ? device_from : from);
  auto* target = static_cast<std::byte*>(to);
  if (queue.reads(target, bytes)) queue.finish_until(queue.end());
  queue.transfers.push_back({target, {source, source + bytes}, nullptr, 0, 0});
  std::memset(target, emulation::kPoison, bytes);
  return absl::OkStatus();
}

Status fill(void* to, uint8_t value, size_t bytes, StreamHandle stream) {
  if (bytes == 0) return absl::OkStatus();
  if (emulation::is_capturing(stream)) {
    emulation::record_call(stream, [=](StreamHandle later) { (void)fill(to, value, bytes, later); });
    return absl::OkStatus();
  }
  void* memory = device_memory(to, bytes);
  if (memory == nullptr) fail("cudaMemsetAsync: not device memory");
  std::memset(memory, value, bytes);
  return absl::OkStatus();
}

StatusOr<EventHandle> create_event(int device) {
  ACCORD_RETURN_IF_ERROR(check_device(device));
  return new CUevent_st();
}

void destroy_event(int /*device*/, EventHandle event) { delete event; }

Status record(EventHandle event, StreamHandle stream) {
  if (emulation::is_capturing(stream)) fail("events in graphs are not emulated");
  const std::lock_guard lock(Process::instance().mutex);
  event->queue = stream->queue;
  event->count = stream->queue->end();
  event->time = std::chrono::steady_clock::now();
  return absl::OkStatus();
}

Status wait(StreamHandle stream, EventHandle event) {
  if (emulation::is_capturing(stream)) fail("events in graphs are not emulated");
  return synchronize_event(event);
}

Status synchronize_event(EventHandle event) {
  const std::lock_guard lock(Process::instance().mutex);
  if (event->queue) event->queue->finish_until(event->count);
  return absl::OkStatus();
}

StatusOr<bool> event_finished(EventHandle event) {
  ACCORD_RETURN_IF_ERROR(synchronize_event(event));
  return true;
}

StatusOr<double> milliseconds_between(EventHandle start, EventHandle end) {
  if (!start->queue || !end->queue)
    return unavailable_error("cudaEventElapsedTime: an event was not recorded");
  return std::chrono::duration<double, std::milli>(end->time - start->time).count();
}

Status begin_capture(StreamHandle stream) {
  if (emulation::is_capturing(stream)) return unavailable_error("cudaStreamBeginCapture: a second capture");
  stream->recording = std::make_unique<RecordedCalls>();
  ++thread_captures();
  return absl::OkStatus();
}

StatusOr<GraphHandle> end_capture(StreamHandle stream) {
  if (!emulation::is_capturing(stream)) return unavailable_error("cudaStreamEndCapture: no capture");
  auto graph = std::make_unique<CUgraphExec_st>();
  graph->device = stream->device;
  graph->calls = std::move(*stream->recording);
  graph->last_block = emulation::last_block();
  stream->recording.reset();
  --thread_captures();
  return graph.release();
}

Status launch_graph(GraphHandle graph, StreamHandle stream) {
  if (stream->device != graph->device) fail("cudaGraphLaunch: a graph of another device");
  const emulation::OldBlocksOnly old(graph->last_block);
  for (const auto& call : graph->calls) call(stream);
  return absl::OkStatus();
}

void destroy_graph(int /*device*/, GraphHandle graph) { delete graph; }

}  // namespace backend
}  // namespace accord
