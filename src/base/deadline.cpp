#include "base/deadline.hpp"

#include <algorithm>
#include <utility>

namespace accord {

std::chrono::milliseconds Deadline::remaining() const {
  // Rounded up: a wait of the remaining time never ends early.
  const auto left = std::chrono::ceil<std::chrono::milliseconds>(time_ - Clock::now());
  return std::max(left, std::chrono::milliseconds(0));
}

Deadline Deadline::within(std::chrono::milliseconds duration) const {
  return Deadline(std::min(time_, Clock::now() + duration));
}

std::vector<WaitList::Entry> WaitList::snapshot() const {
  const std::lock_guard lock(mutex_);
  const auto now = Deadline::Clock::now();
  std::vector<Entry> entries;
  entries.reserve(records_.size());
  for (const Record& record : records_) {  // in order of their beginning
    entries.push_back({record.reason, std::chrono::duration<double>(now - record.begin).count(),
                       std::chrono::duration<double>(record.deadline.remaining()).count()});
  }
  return entries;
}

Wait::Wait(WaitList* list, std::string reason, Deadline deadline)
    : list_(list), reason_(std::move(reason)), deadline_(deadline), begin_(Deadline::Clock::now()) {
  if (list_ != nullptr) {
    const std::lock_guard lock(list_->mutex_);
    record_ = list_->records_.insert(list_->records_.end(), {reason_, begin_, deadline_});
  }
}

Wait::~Wait() {
  if (list_ != nullptr) {
    const std::lock_guard lock(list_->mutex_);
    list_->records_.erase(record_);
  }
}

Status Wait::timed_out() const {
  const double waited = std::chrono::duration<double>(Deadline::Clock::now() - begin_).count();
  return make_error(absl::StatusCode::kDeadlineExceeded, ExitCode::kUnavailable,
                    fmt::format("waited {:.1f} s for {}", waited, reason_));
}

}  // namespace accord
