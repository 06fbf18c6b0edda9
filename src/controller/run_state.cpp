#include "controller/run_state.hpp"

#include <algorithm>
#include <utility>

#include "base/log.hpp"

namespace accord::controller {
namespace {
constexpr size_t kMaxWarnings = 100;
}

RunSnapshot RunState::snapshot() const {
  const std::lock_guard lock(mutex_);
  return state_;
}

void RunState::describe(const std::string& run, const std::string& run_id, uint64_t epoch,
                        const std::string& directory, uint64_t steps) {
  const std::lock_guard lock(mutex_);
  state_.run = run;
  state_.run_id = run_id;
  state_.epoch = epoch;
  state_.directory = directory;
  state_.steps = steps;
}

void RunState::set_phase(const std::string& phase) {
  const std::lock_guard lock(mutex_);
  state_.phase = phase;
}

void RunState::set_version(uint64_t version) {
  const std::lock_guard lock(mutex_);
  state_.weight_version = version;
}

void RunState::set_worker(const WorkerState& worker) {
  const std::lock_guard lock(mutex_);
  const auto it = std::find_if(state_.workers.begin(), state_.workers.end(),
                               [&](const WorkerState& w) { return w.name == worker.name; });
  if (it == state_.workers.end()) {
    state_.workers.push_back(worker);
  } else {
    *it = worker;
  }
}

void RunState::update_worker(const std::string& name, const std::string& worker_state,
                             uint64_t weight_version) {
  const std::lock_guard lock(mutex_);
  for (WorkerState& worker : state_.workers) {
    if (worker.name == name) {
      worker.state = worker_state;
      worker.weight_version = weight_version;
    }
  }
}

void RunState::warn(const std::string& message) {
  log::warn("{}", message);
  const std::lock_guard lock(mutex_);
  if (state_.warnings.size() == kMaxWarnings) {
    state_.warnings.erase(state_.warnings.begin());
  }
  state_.warnings.push_back(message);
}

void RunState::commit(const StepRecord& record) {
  {
    const std::lock_guard lock(mutex_);
    state_.step = record.step;
    state_.last = record;
    records_.push_back(record);
  }
  changed_.notify_all();
}

void RunState::finish() {
  {
    const std::lock_guard lock(mutex_);
    finished_ = true;
  }
  changed_.notify_all();
}

std::vector<StepRecord> RunState::wait_records(size_t seen, std::chrono::milliseconds timeout,
                                               bool* finished) const {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [&] { return finished_ || records_.size() > seen; });
  *finished = finished_ && records_.size() <= seen;
  if (records_.size() <= seen) {
    return {};
  }
  return {records_.begin() + static_cast<std::ptrdiff_t>(seen), records_.end()};
}

void RunState::request_stop(const StopRequest& request) {
  const std::lock_guard lock(mutex_);
  if (!stop_) {
    stop_ = request;
  }
}

std::optional<StopRequest> RunState::stop_requested() const {
  const std::lock_guard lock(mutex_);
  return stop_;
}

void RunState::request_checkpoint() {
  const std::lock_guard lock(mutex_);
  checkpoint_requested_ = true;
}

bool RunState::take_checkpoint_request() {
  const std::lock_guard lock(mutex_);
  return std::exchange(checkpoint_requested_, false);
}

StatusOr<WeightCheck> RunState::wait_weight_check(const std::function<bool()>& give_up) {
  constexpr std::chrono::milliseconds kPoll{200};
  std::unique_lock lock(mutex_);
  const uint64_t mine = ++weight_checks_asked_;
  while (weight_checks_answered_ < mine) {
    if (finished_ || give_up()) {
      return unavailable_error("the run ended before its weights could be verified");
    }
    changed_.wait_for(lock, kPoll);
  }
  return weight_check_;
}

std::optional<uint64_t> RunState::weight_check_requested() const {
  const std::lock_guard lock(mutex_);
  return weight_checks_asked_ > weight_checks_answered_ ? std::optional(weight_checks_asked_) : std::nullopt;
}

void RunState::answer_weight_check(uint64_t request, const StatusOr<WeightCheck>& answer) {
  {
    const std::lock_guard lock(mutex_);
    weight_checks_answered_ = request;
    weight_check_ = answer;
  }
  changed_.notify_all();
}

uint64_t RunState::effective_step() const {
  const std::lock_guard lock(mutex_);
  // Between steps there is no running one to wait for.
  const bool between = state_.phase == "checkpoint" || state_.phase == "done" || state_.phase == "failed";
  return between ? state_.step : std::min(state_.step + 1, state_.steps);
}

}  // namespace accord::controller
