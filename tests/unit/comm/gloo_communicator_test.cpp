#include "comm/gloo_communicator.hpp"

#include <atomic>
#include <cmath>
#include <cstring>
#include <functional>
#include <string>
#include <thread>
#include <vector>

#include "base/philox.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::comm;
using std::chrono::milliseconds;

namespace {

Deadline soon(int ms = 30000) { return Deadline::after(milliseconds(ms)); }

// Runs body(communicator) in one thread per rank; Catch's macros stay in the main thread.
std::vector<Status> run_group(int size, const std::string& group, int64_t chunk_bytes,
                              const std::function<Status(Communicator&)>& body) {
  InMemoryStore store;
  std::vector<Status> results(static_cast<size_t>(size));
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      GlooOptions options;
      options.group = group;
      options.rank = rank;
      options.size = size;
      options.chunk_bytes = chunk_bytes;
      auto communicator = GlooCommunicator::create(options, store, soon());
      results[static_cast<size_t>(rank)] = communicator.ok() ? body(**communicator) : communicator.status();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

void check_all_ok(const std::vector<Status>& results) {
  for (const Status& status : results) {
    INFO(message_of(status));
    CHECK(status.ok());
  }
}

std::vector<float> values_of(int rank, int64_t count) {
  PhiloxStream random(17, static_cast<uint64_t>(rank));
  std::vector<float> values(static_cast<size_t>(count));
  for (float& value : values) {
    value =
        static_cast<float>(random.next_normal() * std::exp2(static_cast<double>(random.next_below(40)) - 20));
  }
  return values;
}

constexpr int64_t kChunk = 4096;

}  // namespace

TEST_CASE("broadcast copies every root's bytes to every rank") {
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    check_all_ok(run_group(size, "b", kChunk, [](Communicator& comm) -> Status {
      for (const int64_t bytes : {int64_t{0}, int64_t{1}, kChunk, 5 * kChunk + 3}) {
        for (int root = 0; root < comm.size(); ++root) {
          std::vector<uint8_t> data(static_cast<size_t>(bytes), static_cast<uint8_t>(100 + comm.rank()));
          if (comm.rank() == root) {
            for (size_t i = 0; i < data.size(); ++i) {
              data[i] = static_cast<uint8_t>(i * 31 + static_cast<size_t>(root));
            }
          }
          ACCORD_RETURN_IF_ERROR(comm.broadcast(data.data(), bytes, root, soon()));
          for (size_t i = 0; i < data.size(); ++i) {
            if (data[i] != static_cast<uint8_t>(i * 31 + static_cast<size_t>(root))) {
              return internal_error("rank {} has a wrong byte {} of {}", comm.rank(), i, bytes);
            }
          }
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST_CASE("sums are the ones in rank order, bit for bit, on every rank") {
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    check_all_ok(run_group(size, "r", kChunk, [](Communicator& comm) -> Status {
      for (const int64_t count : {1, 2, 3, 1024, 4096, 10007}) {
        std::vector<float> expected = values_of(0, count);
        for (int r = 1; r < comm.size(); ++r) {
          const std::vector<float> other = values_of(r, count);
          for (size_t i = 0; i < expected.size(); ++i) {
            expected[i] += other[i];
          }
        }
        std::vector<float> data = values_of(comm.rank(), count);
        ACCORD_RETURN_IF_ERROR(comm.all_reduce_sum(data.data(), count, soon()));
        if (std::memcmp(data.data(), expected.data(), expected.size() * sizeof(float)) != 0) {
          return internal_error("rank {} of {}: a wrong sum of {} values", comm.rank(), comm.size(), count);
        }
      }
      return absl::OkStatus();
    }));
  }
}

TEST_CASE("all_gather keeps rank order") {
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    check_all_ok(run_group(size, "g", 1000, [](Communicator& comm) -> Status {
      constexpr size_t kBytes = 2500;
      const std::vector<uint8_t> mine(kBytes, static_cast<uint8_t>(comm.rank() + 1));
      std::vector<uint8_t> all(kBytes * static_cast<size_t>(comm.size()));
      ACCORD_RETURN_IF_ERROR(comm.all_gather(mine.data(), kBytes, all.data(), soon()));
      for (size_t i = 0; i < all.size(); ++i) {
        if (all[i] != i / kBytes + 1) {
          return internal_error("rank {}: byte {} is {}", comm.rank(), i, all[i]);
        }
      }
      return absl::OkStatus();
    }));
  }
}

namespace {

// What rank `from` sends rank `to`: nothing, a byte, uneven ones and many chunks, different each way.
int64_t block_bytes(int from, int to) {
  const int64_t sizes[] = {0, 1, kChunk, 3 * kChunk + 17, 700, 0, 9 * kChunk - 1};
  return sizes[(from * 3 + to * 5) % 7];
}
uint8_t block_byte(int from, int to, int64_t i) {
  return static_cast<uint8_t>(i * 29 + from * 7 + to * 101 + (i >> 8));
}

Status exchange_blocks(Communicator& comm, const std::function<int64_t(int from, int to)>& size_of_block) {
  std::vector<int64_t> in_bytes;
  std::vector<int64_t> out_bytes;
  std::vector<uint8_t> in;
  std::vector<uint8_t> expected;
  for (int r = 0; r < comm.size(); ++r) {
    in_bytes.push_back(size_of_block(comm.rank(), r));
    out_bytes.push_back(size_of_block(r, comm.rank()));
    for (int64_t i = 0; i < in_bytes.back(); ++i) {
      in.push_back(block_byte(comm.rank(), r, i));
    }
    for (int64_t i = 0; i < out_bytes.back(); ++i) {
      expected.push_back(block_byte(r, comm.rank(), i));
    }
  }
  std::vector<uint8_t> out(expected.size(), 0xEE);
  ACCORD_RETURN_IF_ERROR(comm.all_to_all(in.data(), in_bytes, out.data(), out_bytes, soon()));
  return out == expected ? absl::OkStatus() : internal_error("rank {} has wrong blocks", comm.rank());
}

}  // namespace

TEST_CASE("all_to_all gives every pair its block whatever the sizes") {
  for (int size = 1; size <= 4; ++size) {
    CAPTURE(size);
    check_all_ok(run_group(size, "a", kChunk, [](Communicator& comm) -> Status {
      for (int repeat = 0; repeat < 3; ++repeat) {
        ACCORD_RETURN_IF_ERROR(exchange_blocks(comm, block_bytes));
        ACCORD_RETURN_IF_ERROR(exchange_blocks(comm, [](int, int) { return int64_t{0}; }));
        // Rank 0 sends to the last rank alone: everybody has another number of rounds.
        ACCORD_RETURN_IF_ERROR(exchange_blocks(comm, [&](int from, int to) {
          return from == 0 && to == comm.size() - 1 ? 11 * kChunk : from < to ? int64_t{5} : int64_t{0};
        }));
        ACCORD_RETURN_IF_ERROR(comm.barrier(soon()));
      }
      return absl::OkStatus();
    }));
  }
}

TEST_CASE("all_to_all refuses sizes that do not fit and stays usable") {
  check_all_ok(run_group(2, "sizes", kChunk, [](Communicator& comm) -> Status {
    uint8_t in[8] = {};
    uint8_t out[8] = {};
    const std::vector<int64_t> good{1, 1};
    const std::vector<int64_t> wrong[] = {{1}, {1, -1}, {1, 1, 1}};
    for (const std::vector<int64_t>& sizes : wrong) {
      if (comm.all_to_all(in, sizes, out, good, soon()).ok() ||
          comm.all_to_all(in, good, out, sizes, soon()).ok()) {
        return internal_error("wrong sizes are taken");
      }
    }
    const std::vector<int64_t> other{2, 2};
    if (comm.all_to_all(in, good, out, other, soon()).ok()) {
      return internal_error("a block to itself of two sizes is taken");
    }
    return comm.all_to_all(in, good, out, good, soon());
  }));
}

TEST_CASE("a rank lost before all_to_all is an error on all others") {
  const auto begin = Deadline::Clock::now();
  const auto results = run_group(4, "lost-a", kChunk, [](Communicator& comm) -> Status {
    ACCORD_RETURN_IF_ERROR(comm.barrier(soon()));
    if (comm.rank() == 1) {
      return absl::OkStatus();
    }
    const Status status = exchange_blocks(comm, [](int, int) { return 6 * kChunk; });
    const Status again = comm.barrier(soon());
    return again == status ? status : internal_error("a broken communicator goes on: {}", message_of(again));
  });
  CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(10));
  for (const int rank : {0, 2, 3}) {
    const Status& status = results[static_cast<size_t>(rank)];
    CAPTURE(rank, message_of(status));
    CHECK(exit_code(status) == ExitCode::kUnavailable);
    CHECK(std::string(message_of(status)).find("all_to_all") != std::string::npos);
  }
}

TEST_CASE("a rank that hangs ends all_to_all at its deadline") {
  std::atomic<int> ended{0};
  const auto begin = Deadline::Clock::now();
  const auto results = run_group(3, "hang-a", kChunk, [&](Communicator& comm) -> Status {
    if (comm.rank() == 2) {
      while (ended < 2) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return absl::OkStatus();
    }
    std::vector<uint8_t> in(3 * kChunk);
    std::vector<uint8_t> out(3 * kChunk);
    const std::vector<int64_t> sizes(3, kChunk);
    const Status status = comm.all_to_all(in.data(), sizes, out.data(), sizes, soon(200));
    ++ended;
    return status;
  });
  CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(10));
  CHECK(exit_code(results[0]) == ExitCode::kUnavailable);
  CHECK(exit_code(results[1]) == ExitCode::kUnavailable);
}

TEST_CASE("large buffers go through whole") {
  constexpr size_t kBytes = (size_t{96} << 20) + 12345;
  check_all_ok(run_group(3, "large", int64_t{8} << 20, [](Communicator& comm) -> Status {
    std::vector<uint8_t> data(kBytes);
    if (comm.rank() == 1) {
      for (size_t i = 0; i < kBytes; ++i) {
        data[i] = static_cast<uint8_t>(i ^ (i >> 8) ^ (i >> 16));
      }
    }
    ACCORD_RETURN_IF_ERROR(comm.broadcast(data.data(), kBytes, 1, soon()));
    for (size_t i = 0; i < kBytes; ++i) {
      if (data[i] != static_cast<uint8_t>(i ^ (i >> 8) ^ (i >> 16))) {
        return internal_error("rank {}: byte {} differs", comm.rank(), i);
      }
    }
    return absl::OkStatus();
  }));
}

TEST_CASE("nobody leaves a barrier before everybody has come") {
  std::atomic<int> arrived{0};
  check_all_ok(run_group(4, "barrier", kChunk, [&](Communicator& comm) -> Status {
    for (int round = 1; round <= 20; ++round) {
      if (comm.rank() == round % 4) {
        std::this_thread::sleep_for(milliseconds(2));
      }
      ++arrived;
      ACCORD_RETURN_IF_ERROR(comm.barrier(soon()));
      if (arrived < 4 * round) {
        return internal_error("rank {} left round {} after {} arrivals", comm.rank(), round, arrived.load());
      }
    }
    return absl::OkStatus();
  }));
}

TEST_CASE("groups can be made again and again in one process") {
  for (int epoch = 0; epoch < 10; ++epoch) {
    check_all_ok(run_group(3, "epoch-" + std::to_string(epoch), kChunk, [](Communicator& comm) {
      float one = 1;
      const Status status = comm.all_reduce_sum(&one, 1, soon());
      return status.ok() && one != 3 ? internal_error("sum {}", one) : status;
    }));
  }
}

TEST_CASE("a lost peer is an error on all others, well before the deadline") {
  const auto begin = Deadline::Clock::now();
  const auto results = run_group(4, "lost", kChunk, [](Communicator& comm) -> Status {
    ACCORD_RETURN_IF_ERROR(comm.barrier(soon()));
    if (comm.rank() == 2) {
      return absl::OkStatus();  // leaves: its connections close
    }
    std::vector<uint8_t> data(size_t{4} << 20);
    Status status;
    for (int i = 0; i < 100 && status.ok(); ++i) {
      status = comm.broadcast(data.data(), static_cast<int64_t>(data.size()), 0, soon(20000));
    }
    const Status again = comm.barrier(soon());
    return again == status ? status : internal_error("a broken communicator goes on: {}", message_of(again));
  });
  CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(10));
  for (const int rank : {0, 1, 3}) {
    const Status& status = results[static_cast<size_t>(rank)];
    CAPTURE(rank, message_of(status));
    CHECK(status.code() == absl::StatusCode::kUnavailable);
    CHECK(exit_code(status) == ExitCode::kUnavailable);
    CHECK(std::string(message_of(status)).find("communicator 'lost', rank") == 0);
  }
}

TEST_CASE("a peer that does not take part is a missed deadline that names it") {
  std::atomic<bool> over{false};
  const auto begin = Deadline::Clock::now();
  const auto results = run_group(2, "hang", kChunk, [&](Communicator& comm) -> Status {
    if (comm.rank() == 1) {
      while (!over) {
        std::this_thread::sleep_for(milliseconds(1));
      }
      return absl::OkStatus();
    }
    int value = 0;
    const Status status = comm.broadcast(&value, sizeof(value), 1, soon(200));
    over = true;
    return status;
  });
  CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(10));
  INFO(message_of(results[0]));
  CHECK(results[0].code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(message_of(results[0]))
            .find("'hang', rank 0 of 2: broadcast with rank 1 missed its deadline") != std::string::npos);
}

TEST_CASE("a group that does not assemble is a missed deadline") {
  InMemoryStore store;
  GlooOptions options;
  options.group = "alone";
  options.size = 2;
  const auto communicator = GlooCommunicator::create(options, store, soon(100));
  INFO(message_of(communicator.status()));
  CHECK(communicator.status().code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(message_of(communicator.status())).find("'alone', rank 0 of 2: no rendezvous") !=
        std::string::npos);
}

TEST_CASE("an address that cannot be listened on and wrong options are refused") {
  InMemoryStore store;
  GlooOptions options;
  options.group = "bad";
  options.size = 2;
  SECTION("host") {
    options.hostname = "no-such-host.invalid";
    CHECK(exit_code(GlooCommunicator::create(options, store, soon(1000)).status()) == ExitCode::kUnavailable);
  }
  SECTION("a host that is not this machine") {
    options.hostname = "192.0.2.1";
    CHECK(exit_code(GlooCommunicator::create(options, store, soon(1000)).status()) == ExitCode::kUnavailable);
  }
  SECTION("interface") {
    options.interface = "nosuch0";
    const Status status = GlooCommunicator::create(options, store, soon(1000)).status();
    CHECK(exit_code(status) == ExitCode::kUnavailable);
    CHECK(std::string(message_of(status)).find("nosuch0") != std::string::npos);
  }
  SECTION("rank") {
    options.rank = 2;
    CHECK(exit_code(GlooCommunicator::create(options, store, soon(1000)).status()) == ExitCode::kUsage);
  }
  SECTION("chunk") {
    options.chunk_bytes = int64_t{1} << 40;
    CHECK(exit_code(GlooCommunicator::create(options, store, soon(1000)).status()) == ExitCode::kUsage);
  }
}

TEST_CASE("a group connects over an interface") {
  InMemoryStore store;
  Status results[2];
  std::vector<std::thread> threads;
  for (int rank = 0; rank < 2; ++rank) {
    threads.emplace_back([&, rank] {
      GlooOptions options;
      options.group = "interface";
      options.rank = rank;
      options.size = 2;
      options.interface.append("lo");
      auto communicator = GlooCommunicator::create(options, store, soon());
      results[rank] = communicator.ok() ? (*communicator)->barrier(soon()) : communicator.status();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  CHECK(results[0].ok());
  CHECK(results[1].ok());
}
