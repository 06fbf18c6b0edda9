#pragma once
// What `accord status`, `watch` and `stop` ask of a running controller.
#include <functional>
#include <string>

#include "base/status.hpp"
#include "controller/run_state.hpp"

namespace accord::rpc {

struct WaitInfo {
  std::string reason;
  double elapsed_seconds = 0.0;
  double deadline_seconds = 0.0;
};

struct StatusInfo {
  controller::RunSnapshot run;
  std::vector<WaitInfo> waits;
  std::string build;
};

// Errors: kUnavailable when nothing answers at HOST:PORT.
StatusOr<StatusInfo> get_status(const std::string& address);
// Every step of the run so far and to come; returns when the run ends.
Status watch(const std::string& address, const std::function<void(const controller::StepRecord&)>& on_step);
// Ends the run after its current step, with a checkpoint. Returns that step. With `drain` the controller
// exits with kDrained.
StatusOr<uint64_t> stop(const std::string& address, const std::string& reason, bool drain);
// Compares what all workers hold with the ledger, after the current step: waits as long as that takes.
StatusOr<controller::WeightCheck> verify_weights(const std::string& address);
// Asks for a checkpoint after the current step. Returns that step.
StatusOr<uint64_t> checkpoint(const std::string& address);

}  // namespace accord::rpc
