#include "gpu.hpp"
#include "support/catch.hpp"

using namespace accord;
using gpu_test::Gpu;
using gpu_test::must;

TEST_CASE("memory keeps its address and copies arrive in stream order") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const std::vector<int32_t> values = {1, 2, 3, 4, 5};
  const Memory a = gpu->upload(values);
  const Memory b = gpu->allocate(a.bytes());
  must(gpu->stream().copy(b.data(), a.data(), a.bytes()));
  CHECK(gpu->download<int32_t>(b, values.size()) == values);
  CHECK(reinterpret_cast<uintptr_t>(b.data()) % Memory::kAlignment == 0);
}

TEST_CASE("an event tells when its stream has come so far") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  Event start = must(Event::create(gpu->device()));
  Event end = must(Event::create(gpu->device()));
  const Memory memory = gpu->allocate(size_t{1} << 28);
  must(start.record(gpu->stream()));
  must(gpu->stream().fill(memory.data(), 1, memory.bytes()));
  must(end.record(gpu->stream()));
  const Stream other = must(Stream::create(gpu->device()));
  must(other.wait(end));
  must(other.synchronize());
  CHECK(must(end.finished()));
  CHECK(must(end.milliseconds_since(start)) > 0.0);
}

TEST_CASE("pinned memory is copied both ways") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const Memory host = must(Memory::allocate(gpu->device(), 4096, MemoryKind::kPinned));
  for (size_t i = 0; i < 4096; ++i) host.as<uint8_t>()[i] = static_cast<uint8_t>(i * 7);
  const Memory device = gpu->allocate(4096);
  const Memory back = must(Memory::allocate(gpu->device(), 4096, MemoryKind::kPinned));
  must(gpu->stream().copy(device.data(), host.data(), 4096));
  must(gpu->stream().copy(back.data(), device.data(), 4096));
  must(gpu->stream().synchronize());
  int64_t wrong = 0;
  for (size_t i = 0; i < 4096; ++i) wrong += back.as<uint8_t>()[i] != host.as<uint8_t>()[i] ? 1 : 0;
  CHECK(wrong == 0);
}

TEST_CASE("too much memory is an error that names the call and the amounts and leaves the device usable") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const auto memory = Memory::allocate(gpu->device(), size_t{1} << 46);
  REQUIRE(!memory.ok());
  const std::string message(message_of(memory.status()));
  CHECK(message.find("cudaMalloc: cuda:") != std::string::npos);
  CHECK(message.find("70368744177664 are needed") != std::string::npos);
  CHECK(exit_code(memory.status()) == ExitCode::kUnavailable);
  CHECK(gpu->download<int32_t>(gpu->upload(std::vector<int32_t>{7}), 1) == std::vector<int32_t>{7});
}

TEST_CASE("a device that does not exist is refused") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const auto device = Device::open({DeviceKind::kCuda, 99});
  REQUIRE(!device.ok());
  CHECK(std::string(message_of(device.status())).find("numbered from 0") != std::string::npos);
}
