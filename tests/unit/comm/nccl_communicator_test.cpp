#include "comm/nccl_communicator.hpp"

#include <algorithm>
#include <chrono>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "comm/device_group.hpp"
#include "support/catch.hpp"
#include "support/fake_nccl.hpp"

using namespace accord;
using namespace accord::comm;
using accord::testing::fake_nccl;
using accord::testing::NcclFaults;
using accord::testing::set_faults;
using std::chrono::milliseconds;

namespace {

Deadline soon(int ms = 30000) { return Deadline::after(milliseconds(ms)); }

// Ranks as threads on the CPU, whose "device memory" is host memory. Catch's macros stay in the main thread.
std::vector<Status> run_group(int size, const std::function<Status(Communicator&, DeviceCollectives&)>& body,
                              int init_ms = 30000) {
  InMemoryStore store;
  std::vector<Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      GlooOptions options;
      options.group = "n";
      options.rank = rank;
      options.size = size;
      auto host = GlooCommunicator::create(options, store, soon());
      if (!host.ok()) {
        results[static_cast<size_t>(rank)] = host.status();
        return;
      }
      auto group =
          NcclCommunicator::create(fake_nccl(), "n", Device(), *std::move(host), store, soon(init_ms));
      results[static_cast<size_t>(rank)] =
          group.ok() ? body(**group, *(*group)->device_collectives()) : group.status();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

std::string text(const Status& status) { return std::string(message_of(status)); }

bool contains(const Status& status, const std::string& part) {
  return text(status).find(part) != std::string::npos;
}

void check_all_ok(const std::vector<Status>& results) {
  for (const Status& status : results) {
    INFO(text(status));
    CHECK(status.ok());
  }
}

}  // namespace

TEST_CASE("device memory is broadcast and exchanged and gathered and the host's calls go on") {
  set_faults({});
  for (int size = 1; size <= 3; ++size) {
    check_all_ok(run_group(size, [](Communicator& group, DeviceCollectives& device) -> Status {
      const Stream stream;
      const int rank = group.rank();
      for (int root = 0; root < group.size(); ++root) {
        std::vector<int> data(1000, rank);
        ACCORD_RETURN_IF_ERROR(device.broadcast(data.data(), 4000, root, stream, soon()));
        ACCORD_RETURN_IF_ERROR(device.finish(stream, soon()));
        if (std::count(data.begin(), data.end(), root) != 1000) return internal_error("broadcast");
      }
      std::vector<int> all(static_cast<size_t>(group.size()), -1);
      ACCORD_RETURN_IF_ERROR(device.all_gather(&rank, sizeof(int), all.data(), stream, soon()));
      ACCORD_RETURN_IF_ERROR(device.finish(stream, soon()));
      std::vector<int> received(all.size(), -1);
      std::vector<DeviceCollectives::Part> out;
      std::vector<DeviceCollectives::Part> in;
      std::vector<int> sent;
      for (int r = 0; r < group.size(); ++r) sent.push_back(10 * rank + r);
      for (int r = 0; r < group.size(); ++r) {
        if (all[static_cast<size_t>(r)] != r) return internal_error("all_gather");
        if (r == rank) continue;
        out.push_back({r, &sent[static_cast<size_t>(r)], sizeof(int)});
        in.push_back({r, &received[static_cast<size_t>(r)], sizeof(int)});
      }
      ACCORD_RETURN_IF_ERROR(device.exchange(out, in, stream, soon()));
      ACCORD_RETURN_IF_ERROR(device.finish(stream, soon()));
      for (int r = 0; r < group.size(); ++r) {
        if (r != rank && received[static_cast<size_t>(r)] != 10 * r + rank) return internal_error("exchange");
      }
      int from_root = rank;
      ACCORD_RETURN_IF_ERROR(group.broadcast(&from_root, sizeof(int), 0, soon()));
      if (from_root != 0) return internal_error("the host's broadcast");
      return group.barrier(soon());
    }));
    CHECK(accord::testing::aborted() == 0);
  }
  CHECK(accord::testing::destroyed() == 6);
}

TEST_CASE("a rank that never comes ends the others at their deadline and they abort") {
  set_faults({.stay_away = 1});
  const auto begin = std::chrono::steady_clock::now();
  const auto results = run_group(
      2, [](Communicator&, DeviceCollectives&) { return absl::OkStatus(); }, 300);
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(20));
  for (const Status& status : results) {
    INFO(text(status));
    CHECK(status.code() == absl::StatusCode::kDeadlineExceeded);
    CHECK(exit_code(status) == ExitCode::kUnavailable);
    CHECK(contains(status, "meeting the other ranks missed its deadline"));
  }
  CHECK(accord::testing::aborted() == 2);
}

TEST_CASE("all ranks learn why there is no id") {
  set_faults({.no_id = true});
  const auto results = run_group(2, [](Communicator&, DeviceCollectives&) { return absl::OkStatus(); });
  for (const Status& status : results) {
    INFO(text(status));
    CHECK(status.code() == absl::StatusCode::kUnavailable);
    CHECK(contains(status, "ncclGetUniqueId failed: internal error"));
  }
}

TEST_CASE("an error that NCCL reports breaks both communicators and the peer follows") {
  set_faults({.error_on = 1});
  const auto results = run_group(2, [](Communicator& group, DeviceCollectives& device) -> Status {
    const Stream stream;
    int data = 0;
    const Status first = device.broadcast(&data, sizeof(int), 1, stream, soon());
    if (first.ok()) return first;
    // Broken for good, on the host's side too.
    const Status again = device.finish(stream, soon());
    const Status host = group.barrier(soon());
    return message_of(again) == message_of(first) && message_of(host) == message_of(first)
               ? first
               : internal_error("later calls have other errors");
  });
  INFO(text(results[0]));
  INFO(text(results[1]));
  CHECK(contains(results[1], "internal error: as asked"));
  CHECK(contains(results[1], "rank 1 of 2"));
  CHECK(contains(results[0], "rank 1 closed its connection"));
  CHECK(accord::testing::aborted() == 2);
}

TEST_CASE("a peer that leaves ends a wait long before its deadline") {
  set_faults({});
  const auto begin = std::chrono::steady_clock::now();
  const auto results = run_group(3, [](Communicator& group, DeviceCollectives& device) -> Status {
    ACCORD_RETURN_IF_ERROR(group.barrier(soon()));
    if (group.rank() == 2) return absl::OkStatus();
    int data = 0;
    return device.broadcast(&data, sizeof(int), 2, Stream(), soon(600000));
  });
  CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(30));
  CHECK(results[2].ok());
  for (int rank = 0; rank < 2; ++rank) {
    INFO(text(results[static_cast<size_t>(rank)]));
    CHECK(contains(results[static_cast<size_t>(rank)], "closed its connection"));
    CHECK(contains(results[static_cast<size_t>(rank)], "broadcast of 4 bytes from rank 2"));
  }
}

TEST_CASE("a group with a rank on the CPU keeps to the host and says why to nobody else") {
  set_faults({});
  InMemoryStore store;
  std::vector<Status> results(2);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      GlooOptions options;
      options.group = "c";
      options.rank = rank;
      options.size = 2;
      auto host = GlooCommunicator::create(options, store, soon());
      auto group = connect_devices("c", Device(), fake_nccl(), *std::move(host), store, soon());
      Status& result = results[static_cast<size_t>(rank)];
      result = group.status();
      if (group.ok() && (*group)->device_collectives() != nullptr) result = internal_error("it has NCCL");
      if (result.ok()) result = (*group)->barrier(soon());
    });
  }
  for (std::thread& thread : threads) thread.join();
  check_all_ok(results);
}

TEST_CASE("a missing library is named with what to do") {
  ::setenv("ACCORD_NCCL", "/nowhere/libnccl.so.2", 1);
  const Status missing = load_nccl().status();
  ::setenv("ACCORD_NCCL", "off", 1);
  const Status off = load_nccl().status();
  ::unsetenv("ACCORD_NCCL");
  CHECK(exit_code(missing) == ExitCode::kUnavailable);
  CHECK(contains(missing, "/nowhere/libnccl.so.2"));
  CHECK(contains(missing, "ACCORD_NCCL"));
  CHECK(text(off) == "ACCORD_NCCL is off");
}
