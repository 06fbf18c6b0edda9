#pragma once
// The life of a controller: check everything, take the run directory, serve, gather the workers, loop.
#include <cstdint>
#include <optional>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace accord::rpc {

struct ControllerOptions {
  std::string recipe;                  // path
  std::vector<std::string> overrides;  // key=value
  bool resume = false;
  std::optional<int64_t> steps;       // --steps N
  std::optional<std::string> listen;  // HOST:PORT instead of monitor.listen
  bool allow_exec = false;            // --allow-exec: the recipe's reward.command may be executed
  bool local_workers = false;         // accord run: start the pools on this machine
  std::string build;
};

// OK when the requested steps ran, or the run was stopped as asked. kWorkerLost names the worker.
Status run_controller(const ControllerOptions& options);

}  // namespace accord::rpc
