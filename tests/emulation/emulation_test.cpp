// That the emulation notices what a GPU would not forgive: each case does something wrong in a child process.
#include <sys/wait.h>
#include <unistd.h>

#include <csignal>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <thread>
#include <vector>

#include "device/device.hpp"
#include "device/graph.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "support/catch.hpp"
#include "tests/emulation/memory.hpp"

using namespace accord;

namespace {

constexpr int64_t kRows = 4;
constexpr int64_t kCols = 8;
constexpr size_t kBytes = static_cast<size_t>(kRows * kCols) * sizeof(float);
constexpr size_t kFew = 64;  // bytes

template <class T>
T must(StatusOr<T> value) {
  REQUIRE(value.ok());
  return std::move(value).value();
}

// The signal that ends a child which does this; 0 where it comes to its end.
int signal_of(const std::function<void()>& action) {
  const pid_t child = fork();
  if (child == 0) {
    if (std::freopen("/dev/null", "w", stderr) == nullptr) std::_Exit(1);
    std::signal(SIGABRT, SIG_DFL);
    std::signal(SIGSEGV, SIG_DFL);
    action();
    std::_Exit(0);
  }
  int status = 0;
  REQUIRE(waitpid(child, &status, 0) == child);
  return WIFSIGNALED(status) ? WTERMSIG(status) : 0;
}

struct Fixture {
  Device device = must(Device::open({DeviceKind::kCuda, 0}));
  Stream stream = must(Stream::create(device));
  Memory memory = must(Memory::allocate(device, 2 * kBytes));
  Memory pinned = must(Memory::allocate(device, kBytes, MemoryKind::kPinned));

  MatrixView view(void* data) const { return {data, Dtype::kF32, kRows, kCols, kCols}; }
  void add(MatrixView x, MatrixView y) const { kernels::cuda::add_rows(x, x, y, stream.handle()); }
};

}  // namespace

TEST_CASE("kernels take memory of their device and end the process for any other") {
  const Fixture f;
  std::vector<float> host(kRows * kCols);
  const MatrixView x = f.view(f.memory.data());
  CHECK(signal_of([&] { f.add(x, x); }) == 0);
  CHECK(signal_of([&] { f.add(f.view(host.data()), x); }) == SIGABRT);
  CHECK(signal_of([&] { f.add(x, f.view(f.pinned.data())); }) == SIGABRT);
  CHECK(signal_of([&] { f.add(f.view(nullptr), x); }) == SIGABRT);
  CHECK(signal_of([&] { f.add(x, f.view(f.memory.as<std::byte>() + kBytes)); }) == 0);
  CHECK(signal_of([&] { f.add(x, f.view(f.memory.as<std::byte>() + kBytes + 256)); }) == SIGABRT);
  CHECK(signal_of([&] { f.add(x, f.view(f.memory.as<std::byte>() + 1)); }) == SIGABRT);
  CHECK(signal_of([&] {
          Memory other = must(Memory::allocate(f.device, kBytes));
          void* freed = other.data();
          other = Memory();
          f.add(f.view(freed), x);
        }) == SIGABRT);
}

TEST_CASE("host code that touches device memory ends") {
  const Fixture f;
  CHECK(signal_of([&] { f.memory.as<volatile float>()[0] = 1.0F; }) == SIGSEGV);
  CHECK(signal_of([&] { f.pinned.as<volatile float>()[0] = 1.0F; }) == 0);
}

TEST_CASE("launches are on a stream of the thread's device") {
  setenv("ACCORD_EMULATED_DEVICES", "2", 1);
  const Fixture f;
  const MatrixView x = f.view(f.memory.data());
  CHECK(signal_of([&] { kernels::cuda::add_rows(x, x, x, nullptr); }) == SIGABRT);
  const Device second = must(Device::open({DeviceKind::kCuda, 1}));
  const Stream stream = must(Stream::create(second));
  const Memory memory = must(Memory::allocate(second, kBytes));
  const MatrixView y = f.view(memory.data());
  CHECK(signal_of([&] { f.add(x, x); }) == SIGABRT);
  CHECK(signal_of([&] { kernels::cuda::add_rows(y, y, y, stream.handle()); }) == 0);
  CHECK(signal_of([&] { kernels::cuda::add_rows(x, x, x, stream.handle()); }) == SIGABRT);
  REQUIRE(f.device.make_current().ok());
  CHECK(signal_of([&] { f.add(x, x); }) == 0);
  // Between devices, as with cudaMemcpyDefault.
  CHECK(f.stream.copy(memory.data(), f.memory.data(), kBytes).ok());
  unsetenv("ACCORD_EMULATED_DEVICES");
}

TEST_CASE("what a copy brings to pinned memory is there after a wait and not before") {
  const Fixture f;
  REQUIRE(f.stream.fill(f.memory.data(), 7, kFew).ok());
  REQUIRE(f.stream.copy(f.pinned.data(), f.memory.data(), kFew).ok());
  CHECK(f.pinned.as<uint8_t>()[0] == 0xff);
  REQUIRE(f.stream.synchronize().ok());
  CHECK(f.pinned.as<uint8_t>()[0] == 7);

  Event event = must(Event::create(f.device));
  REQUIRE(f.stream.fill(f.memory.data(), 8, kFew).ok());
  REQUIRE(f.stream.copy(f.pinned.data(), f.memory.data(), kFew).ok());
  REQUIRE(event.record(f.stream).ok());
  REQUIRE(f.stream.copy(f.pinned.as<std::byte>() + kFew, f.memory.data(), kFew).ok());
  REQUIRE(event.synchronize().ok());
  CHECK(f.pinned.as<uint8_t>()[0] == 8);
  CHECK(f.pinned.as<uint8_t>()[kFew] == 0xff);
  REQUIRE(f.device.synchronize().ok());
  CHECK(f.pinned.as<uint8_t>()[kFew] == 8);

  // A later copy from it has its bytes; ordinary memory has them at once.
  std::vector<uint8_t> host(kFew);
  REQUIRE(f.stream.fill(f.memory.data(), 9, kFew).ok());
  REQUIRE(f.stream.copy(f.pinned.data(), f.memory.data(), kFew).ok());
  REQUIRE(f.stream.copy(f.memory.as<std::byte>() + kFew, f.pinned.data(), kFew).ok());
  REQUIRE(f.stream.copy(host.data(), f.memory.as<std::byte>() + kFew, kFew).ok());
  CHECK(host == std::vector<uint8_t>(kFew, 9));
}

TEST_CASE("pinned memory keeps its bytes while a copy reads it") {
  const Fixture f;
  f.pinned.as<uint8_t>()[0] = 1;
  CHECK(signal_of([&] {
          REQUIRE(f.stream.copy(f.memory.data(), f.pinned.data(), kFew).ok());
          f.pinned.as<uint8_t>()[0] = 2;
          REQUIRE(f.stream.synchronize().ok());
        }) == SIGABRT);
  CHECK(signal_of([&] {
          REQUIRE(f.stream.copy(f.memory.data(), f.pinned.data(), kFew).ok());
          REQUIRE(f.stream.synchronize().ok());
          f.pinned.as<uint8_t>()[0] = 2;
          REQUIRE(f.stream.synchronize().ok());
        }) == 0);
}

TEST_CASE("copies stay within allocations and fills on the device") {
  const Fixture f;
  std::vector<uint8_t> host(4 * kBytes);
  CHECK(signal_of([&] { (void)f.stream.copy(f.memory.data(), host.data(), 2 * kBytes); }) == 0);
  CHECK(signal_of([&] { (void)f.stream.copy(f.memory.data(), host.data(), 4 * kBytes); }) == SIGABRT);
  CHECK(signal_of([&] { (void)f.stream.copy(host.data(), f.memory.data(), 4 * kBytes); }) == SIGABRT);
  CHECK(signal_of([&] { (void)f.stream.fill(host.data(), 0, kFew); }) == SIGABRT);
}

TEST_CASE("fresh memory and scratch are poison") {
  const Fixture f;
  std::vector<uint8_t> host(2 * kBytes);
  const auto read = [&](const Memory& memory, size_t bytes) {
    host.assign(bytes, 0);
    REQUIRE(f.stream.copy(host.data(), memory.data(), bytes).ok());
    return host == std::vector<uint8_t>(bytes, 0xff);
  };
  CHECK(read(f.memory, 2 * kBytes));
  REQUIRE(f.stream.fill(f.memory.data(), 0, 2 * kBytes).ok());
  CHECK(!read(f.memory, 2 * kBytes));
  constexpr size_t kScratch = static_cast<size_t>(formats::cuda::kAmaxScratch) * sizeof(float);
  const Memory scratch = must(Memory::allocate(f.device, kScratch));
  REQUIRE(f.stream.fill(scratch.data(), 0, kScratch).ok());
  formats::cuda::amax(f.view(f.memory.data()), f.memory.as<float>(), false, scratch.as<float>(),
                      f.stream.handle());
  CHECK(read(scratch, kScratch));
}

TEST_CASE("products refuse what the kernels do not take") {
  const Fixture f;
  kernels::cuda::GemmForward g;
  g.m = 2;
  g.n = 8;
  g.k = 8;
  g.a = f.memory.as<BF16>();
  g.lda = 8;
  g.b.data = f.memory.data();
  g.c = {f.memory.as<std::byte>() + kBytes, 8, true, false};
  const auto signal = [&] { return signal_of([&] { kernels::cuda::gemm_forward(g, f.stream.handle()); }); };
  CHECK(signal() == 0);
  g.lda = 12;
  CHECK(signal() == SIGABRT);
  g.lda = 8;
  g.a = f.memory.as<BF16>() + 4;
  CHECK(signal() == SIGABRT);
  g.a = f.memory.as<BF16>();
  g.c.accumulate = true;
  CHECK(signal() == SIGABRT);
}

TEST_CASE("a graph of memory that was given back and taken again ends the process") {
  CHECK(signal_of([] {
          const Fixture f;
          auto old = std::make_unique<Memory>(must(Memory::allocate(f.device, kBytes)));
          const Graph graph =
              must(Graph::capture(f.stream, [&] { return f.stream.fill(old->data(), 0, kBytes); }));
          if (!graph.launch(f.stream).ok()) std::abort();
          const void* before = old->data();
          old.reset();
          const Memory other = must(Memory::allocate(f.device, kBytes));
          if (other.data() != before) _exit(0);
          (void)graph.launch(f.stream);
        }) == SIGABRT);
}

TEST_CASE("a thread that captures may not allocate") {
  const Fixture f;
  const auto graph = Graph::capture(f.stream, [&] { return Memory::allocate(f.device, kBytes).status(); });
  REQUIRE(!graph.ok());
  CHECK(std::string(message_of(graph.status())).find("cudaMalloc: operation not permitted") !=
        std::string::npos);
  CHECK(Memory::allocate(f.device, kBytes).ok());
}

TEST_CASE("looking at the devices opens none") {
  CHECK(signal_of([] {
          setenv("ACCORD_EMULATED_DEVICES", "2", 1);
          std::thread([] {
            emulation::set_current_device(1);
            const auto found = list_cuda_devices();
            if (!found.ok() || found->size() != 2) std::abort();
            if (!Device::check({DeviceKind::kCuda, 0}).ok()) std::abort();
            if (Device::check({DeviceKind::kCuda, 2}).ok()) std::abort();
            if (emulation::current_device() != 1) std::abort();
            if (!Device::open({DeviceKind::kCuda, 0}).ok() || emulation::current_device() != 0) std::abort();
          }).join();
        }) == 0);
}

TEST_CASE("a device has as much memory as it is given") {
  CHECK(signal_of([] {
          setenv("ACCORD_EMULATED_DEVICES", "4", 1);
          setenv("ACCORD_EMULATED_MEMORY", "4096", 1);
          const auto device = Device::open({DeviceKind::kCuda, 3});
          const auto first = Memory::allocate(*device, 3072);
          const bool second = Memory::allocate(*device, 2048).ok();
          if (!first.ok() || second || *device->free_bytes() != 1024) std::abort();
        }) == 0);
  CHECK(signal_of([] {
          setenv("ACCORD_EMULATED_DEVICES", "0", 1);
          const auto device = Device::open({DeviceKind::kCuda, 0});
          if (device.ok() || exit_code(device.status()) != ExitCode::kUnavailable) std::abort();
        }) == 0);
}
