#pragma once
// What a running controller shows to the outside, shared between the loop and the status service.
#include <atomic>
#include <condition_variable>
#include <cstdint>
#include <deque>
#include <functional>
#include <mutex>
#include <optional>
#include <string>
#include <vector>

#include "base/deadline.hpp"
#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord::controller {

struct WorkerState {
  std::string name;  // rollout/0
  std::string address;
  int64_t pid = 0;
  std::string state;  // registered, ready, lost
  uint64_t weight_version = 0;
};

struct StepRecord {
  uint64_t step = 0;
  Metrics metrics;
};

struct RunSnapshot {
  std::string run;
  std::string run_id;
  uint64_t epoch = 0;
  std::string directory;
  std::string phase;
  uint64_t step = 0;  // last committed
  uint64_t steps = 0;
  uint64_t weight_version = 0;
  std::vector<WorkerState> workers;
  std::vector<std::string> warnings;
  std::optional<StepRecord> last;
};

struct WeightDifference {
  std::string worker;
  std::string tensor;  // empty: another version, or other tensors
  std::string ledger;  // digests, or in words
  std::string held;
};

struct WeightCheck {
  uint64_t version = 0;
  size_t workers = 0;
  size_t tensors = 0;  // of each worker
  std::vector<WeightDifference> differences;
};

struct StopRequest {
  std::string reason;
  bool drain = false;  // the process exits with kDrained: whoever started it should start it again
};

class RunState {
 public:
  RunSnapshot snapshot() const;

  void describe(const std::string& run, const std::string& run_id, uint64_t epoch,
                const std::string& directory, uint64_t steps);
  void set_phase(const std::string& phase);
  void set_version(uint64_t version);
  void set_worker(const WorkerState& worker);  // by name
  void update_worker(const std::string& name, const std::string& worker_state, uint64_t weight_version);
  void warn(const std::string& message);  // also logged; the newest 100 are kept
  void commit(const StepRecord& record);
  void finish();  // watchers end

  // Records after the first `seen`; blocks until there is one, the run has finished (empty) or `timeout`.
  std::vector<StepRecord> wait_records(size_t seen, std::chrono::milliseconds timeout, bool* finished) const;

  // What the controller waits for right now.
  WaitList& waits() { return waits_; }

  // Asks the loop to end after the running step. The first request counts.
  void request_stop(const StopRequest& request);
  std::optional<StopRequest> stop_requested() const;

  // Asks the loop for a checkpoint after the running step; taking the request forgets it.
  void request_checkpoint();
  bool take_checkpoint_request();

  // Asks the loop to compare all workers' weights with the ledger after the running step, and waits for that.
  // Errors: the check's own; kUnavailable when the run ends before, or `give_up` (asked a few times a
  // second).
  StatusOr<WeightCheck> wait_weight_check(const std::function<bool()>& give_up);
  // The loop's side: the newest request that is not answered yet, and the answer to it and all before it.
  std::optional<uint64_t> weight_check_requested() const;
  void answer_weight_check(uint64_t request, const StatusOr<WeightCheck>& answer);

  // The step after which a request made now takes effect.
  uint64_t effective_step() const;

 private:
  mutable std::mutex mutex_;
  mutable std::condition_variable changed_;
  WaitList waits_;
  RunSnapshot state_;
  std::vector<StepRecord> records_;
  std::optional<StopRequest> stop_;
  bool checkpoint_requested_ = false;
  uint64_t weight_checks_asked_ = 0;
  uint64_t weight_checks_answered_ = 0;
  StatusOr<WeightCheck> weight_check_ = WeightCheck();
  bool finished_ = false;
};

}  // namespace accord::controller
