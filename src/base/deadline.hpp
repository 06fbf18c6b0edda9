#pragma once
// Waits that end. Every wait has a deadline and a reason ("rollout/2 to finish prompt 17"); a WaitList holds
// the ones in progress, so that status can show what a process is waiting for, and for how long.
#include <chrono>
#include <cstdint>
#include <list>
#include <mutex>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace accord {

// A point in time on the steady clock.
class Deadline {
 public:
  using Clock = std::chrono::steady_clock;

  static Deadline after(std::chrono::milliseconds duration) { return Deadline(Clock::now() + duration); }
  static Deadline at(Clock::time_point time) { return Deadline(time); }

  Clock::time_point time() const { return time_; }
  bool expired() const { return Clock::now() >= time_; }
  std::chrono::milliseconds remaining() const;  // 0 once expired
  // The earlier of this and `duration` from now: a step of a longer wait.
  Deadline within(std::chrono::milliseconds duration) const;

 private:
  explicit Deadline(Clock::time_point time) : time_(time) {}
  Clock::time_point time_;
};

// The waits in progress. Thread-safe.
class WaitList {
 public:
  struct Entry {
    std::string reason;
    double waited_s = 0;
    double remaining_s = 0;
  };
  // The waits in progress, the longest first.
  std::vector<Entry> snapshot() const;

 private:
  friend class Wait;
  struct Record {
    std::string reason;
    Deadline::Clock::time_point begin;
    Deadline deadline;
  };
  using Iterator = std::list<Record>::iterator;

  mutable std::mutex mutex_;
  std::list<Record> records_;
};

// One named wait, in the list while it lives. `list` (may be null) must outlive it.
class Wait {
 public:
  Wait(WaitList* list, std::string reason, Deadline deadline);
  ~Wait();
  Wait(const Wait&) = delete;
  Wait& operator=(const Wait&) = delete;

  const std::string& reason() const { return reason_; }
  const Deadline& deadline() const { return deadline_; }
  // kDeadlineExceeded, exit code 69: "waited 30.0 s for <reason>".
  Status timed_out() const;

 private:
  WaitList* list_;
  std::string reason_;
  Deadline deadline_;
  Deadline::Clock::time_point begin_;
  WaitList::Iterator record_;
};

}  // namespace accord
