#include "device_group.hpp"

#include <fmt/format.h>

#include <barrier>
#include <cstdio>
#include <cstdlib>
#include <thread>

#include "comm/device_group.hpp"
#include "comm/gloo_communicator.hpp"
#include "comm/nccl_communicator.hpp"
#include "gpu.hpp"
#include "support/fake_nccl.hpp"

namespace gpu_test {

using namespace accord;

namespace {

StatusOr<comm::NcclApi> nccl() {
  return cuda_is_emulated() ? accord::testing::fake_nccl() : comm::nccl_of_this_build();
}

StatusOr<std::unique_ptr<comm::GlooCommunicator>> connect(const std::string& group, int rank, int size,
                                                          comm::Store& store) {
  comm::GlooOptions options;
  options.group = group;
  options.rank = rank;
  options.size = size;
  return comm::GlooCommunicator::create(options, store, Deadline::after(std::chrono::seconds(60)));
}

}  // namespace

Memory Rank::upload(const void* data, size_t bytes) const {
  Memory memory = must(Memory::allocate(device, bytes));
  must(stream.copy(memory.data(), data, bytes));
  must(stream.synchronize());
  return memory;
}

void Rank::download(const void* from, void* to, size_t bytes) const {
  must(stream.copy(to, from, bytes));
  must(stream.synchronize());
}

bool have_devices(int size) {
  if (cuda_is_emulated()) {
    ::setenv("ACCORD_EMULATED_DEVICES", std::to_string(size).c_str(), 1);
  }
  const StatusOr<std::vector<DeviceInfo>> devices = list_cuda_devices();
  std::string why;
  if (!devices.ok()) {
    why = message_of(devices.status());
  } else if (static_cast<int>(devices->size()) < size) {
    why = fmt::format("{} CUDA devices, the case needs {}", devices->size(), size);
  } else if (!nccl().ok()) {
    why = message_of(nccl().status());
  }
  if (!why.empty()) {
    std::printf("SKIPPED: %s\n", why.c_str());
  }
  return why.empty();
}

std::vector<Status> run_ranks(int size, const std::function<Status(Rank&)>& body, int init_ms) {
  comm::InMemoryStore store;
  std::vector<Status> results(static_cast<size_t>(size));
  std::barrier met(size);
  const auto run = [&](int rank) -> Status {
    auto host = connect("host", rank, size, store);
    auto below = connect("nccl", rank, size, store);
    met.arrive_and_wait();  // what follows may leave at once
    ACCORD_RETURN_IF_ERROR(host.status());
    ACCORD_RETURN_IF_ERROR(below.status());
    ACCORD_ASSIGN_OR_RETURN(const Device device, Device::open({DeviceKind::kCuda, rank}));
    ACCORD_ASSIGN_OR_RETURN(const comm::NcclApi api, nccl());
    ACCORD_ASSIGN_OR_RETURN(const auto group,
                            comm::connect_devices("nccl", device, api, *std::move(below), store,
                                                  Deadline::after(std::chrono::milliseconds(init_ms))));
    if (group->device_collectives() == nullptr) {
      return internal_error("the group has no device collectives");
    }
    ACCORD_ASSIGN_OR_RETURN(Stream stream, Stream::create(device));
    Rank self{**host, *group, *group->device_collectives(), device, std::move(stream)};
    return body(self);
  };
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] { results[static_cast<size_t>(rank)] = run(rank); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

}  // namespace gpu_test
