#include "comm/store.hpp"

#include <thread>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::comm;
using std::chrono::milliseconds;

TEST_CASE("a store hands out values, waits for missing ones, and refuses a second set") {
  InMemoryStore store;
  REQUIRE(store.set("a", std::string("x\0y", 3)).ok());
  CHECK(store.get("a", Deadline::after(milliseconds(0))).value() == std::string("x\0y", 3));
  CHECK_FALSE(store.set("a", "z").ok());
  const Status missing = store.get("b", Deadline::after(milliseconds(5))).status();
  CHECK(missing.code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(std::string(message_of(missing)).find("rendezvous key 'b'") != std::string::npos);
  std::thread later([&] { store.set("b", "late").IgnoreError(); });
  CHECK(store.get("b", Deadline::after(milliseconds(20000))).value() == "late");
  later.join();
}
