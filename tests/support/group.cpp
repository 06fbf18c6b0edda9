#include "support/group.hpp"

#include <barrier>
#include <thread>

#include "comm/gloo_communicator.hpp"
#include "support/catch.hpp"

namespace accord::testing {

std::vector<Status> run_group(int size, const std::string& name,
                              const std::function<Status(Communicator&)>& body, int64_t chunk_bytes) {
  comm::InMemoryStore store;
  std::vector<Status> results(static_cast<size_t>(size));
  // A rank may leave at once: it waits until all are connected, so that its leaving is what the others see.
  std::barrier connected(size);
  std::vector<std::thread> threads;
  for (int rank = 0; rank < size; ++rank) {
    threads.emplace_back([&, rank] {
      comm::GlooOptions options;
      options.group = name;
      options.rank = rank;
      options.size = size;
      options.chunk_bytes = chunk_bytes;
      auto communicator = comm::GlooCommunicator::create(options, store, soon());
      connected.arrive_and_wait();
      results[static_cast<size_t>(rank)] = communicator.ok() ? body(**communicator) : communicator.status();
    });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  return results;
}

Deadline soon(int ms) { return Deadline::after(std::chrono::milliseconds(ms)); }

void require_all_ok(const std::vector<Status>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    CAPTURE(rank, std::string(message_of(results[rank])));
    REQUIRE(results[rank].ok());
  }
}

}  // namespace accord::testing
