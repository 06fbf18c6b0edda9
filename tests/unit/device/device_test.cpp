#include "device/device.hpp"

#include "device/memory.hpp"
#include "device/stream.hpp"
#include "support/catch.hpp"

using namespace accord;

TEST_CASE("device names parse and print") {
  CHECK(parse_device("cpu").value() == DeviceId{});
  CHECK(parse_device("cuda").value() == DeviceId{DeviceKind::kCuda, 0});
  CHECK(parse_device("cuda:3").value() == DeviceId{DeviceKind::kCuda, 3});
  CHECK(to_string(DeviceId{DeviceKind::kCuda, 12}) == "cuda:12");
  for (const char* bad : {"", "gpu", "cuda:", "cuda:x", "cuda:-1", "cuda:1x", "cuda:99999999999", "CPU"}) {
    CAPTURE(bad);
    const auto id = parse_device(bad);
    REQUIRE(!id.ok());
    CHECK(exit_code(id.status()) == ExitCode::kUsage);
  }
}

TEST_CASE("the CPU has the whole interface") {
  const Device cpu = Device::open(DeviceId{}).value();
  CHECK(cpu.make_current().ok());
  CHECK(cpu.synchronize().ok());
  const Stream stream = Stream::create(cpu).value();
  CHECK(stream.handle() == nullptr);
  const Memory a = Memory::allocate(cpu, 1000).value();
  const Memory b = Memory::allocate(cpu, 1000, MemoryKind::kPinned).value();
  Event start = Event::create(cpu).value();
  Event end = Event::create(cpu).value();
  REQUIRE(start.record(stream).ok());
  REQUIRE(stream.fill(a.data(), 7, 1000).ok());
  REQUIRE(stream.copy(b.data(), a.data(), 1000).ok());
  REQUIRE(end.record(stream).ok());
  CHECK(stream.wait(end).ok());
  CHECK(end.synchronize().ok());
  CHECK(end.finished().value());
  CHECK(end.milliseconds_since(start).value() >= 0.0);
  CHECK(b.as<uint8_t>()[999] == 7);
}

TEST_CASE("memory stays where it is when its owner moves") {
  Memory a = Memory::allocate(Device(), 10).value();
  const void* address = a.data();
  const Memory b = std::move(a);
  CHECK(b.data() == address);
  CHECK(reinterpret_cast<uintptr_t>(address) % Memory::kAlignment == 0);
  CHECK(Memory::allocate(Device(), 0).value().data() != nullptr);
}

TEST_CASE("an arena hands out aligned parts of one block and takes them back") {
  Arena arena = Arena::create(Device(), 1024).value();
  auto* first = static_cast<std::byte*>(arena.take(10).value());
  const size_t mark = arena.used();
  auto* second = static_cast<std::byte*>(arena.take(100, 16).value());
  CHECK(second - first == 16);
  auto* third = static_cast<std::byte*>(arena.take(1).value());
  CHECK(third - first == 256);
  CHECK(arena.matrix(Dtype::kF32, 2, 64).value().stride == 64);
  CHECK(arena.used() == 1024);
  const auto full = arena.take(1);
  REQUIRE(!full.ok());
  CHECK(std::string(message_of(full.status())).find("1024 in use") != std::string::npos);
  CHECK(arena.used() == 1024);
  arena.rewind(mark);
  CHECK(arena.used() == 10);
  CHECK(arena.peak() == 1024);
  CHECK(static_cast<std::byte*>(arena.take(4, 4).value()) - first == 12);
}

TEST_CASE("a CUDA device without a usable one is refused with the reason") {
  if (list_cuda_devices().ok()) {
    return;  // tests/gpu looks at machines that have one
  }
  const auto device = Device::open({DeviceKind::kCuda, 0});
  REQUIRE(!device.ok());
  CHECK(exit_code(device.status()) == ExitCode::kUnavailable);
  CHECK(std::string(message_of(device.status())).find(kBuiltWithCuda ? "cuda" : "ACCORD_CUDA=ON") !=
        std::string::npos);
  CHECK(!cuda_driver_text().empty());
}
