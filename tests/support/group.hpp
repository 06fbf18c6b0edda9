#pragma once
// Groups of ranks in one test: a thread per rank, gloo over 127.0.0.1. A test that uses it adds
// support/group.cpp and accord_comm in its links.cmake.
#include <functional>
#include <string>
#include <vector>

#include "base/communicator.hpp"
#include "base/status.hpp"

namespace accord::testing {

// What body(communicator) of each rank returned; all are connected before the first body runs. Catch's macros
// stay in the main thread.
std::vector<Status> run_group(int size, const std::string& name,
                              const std::function<Status(Communicator&)>& body,
                              int64_t chunk_bytes = int64_t{8} << 20);

Deadline soon(int ms = 60000);

void require_all_ok(const std::vector<Status>& results);

}  // namespace accord::testing
