#pragma once
// A bounded queue between threads that can be closed. Producers wait while it is full, consumers while it is
// empty; both waits are named and end (base/deadline.hpp). After close() consumers still get what is inside,
// then the status it was closed with.
#include <absl/status/status.h>

#include <condition_variable>
#include <cstddef>
#include <deque>
#include <mutex>
#include <optional>
#include <utility>

#include "base/deadline.hpp"
#include "base/status.hpp"

namespace accord {

template <class T>
class Queue {
 public:
  explicit Queue(size_t capacity) : capacity_(capacity) {}  // at least 1
  Queue(const Queue&) = delete;
  Queue& operator=(const Queue&) = delete;

  // Errors: kDeadlineExceeded; the closing status once closed (the item is dropped then).
  Status push(T item, const Wait& wait) {
    std::unique_lock lock(mutex_);
    if (!not_full_.wait_until(lock, wait.deadline().time(),
                              [this] { return closed_ || items_.size() < capacity_; })) {
      return wait.timed_out();
    }
    if (closed_) {
      return closing_status_;
    }
    items_.push_back(std::move(item));
    lock.unlock();
    not_empty_.notify_one();
    return absl::OkStatus();
  }

  // The oldest item. Errors: kDeadlineExceeded; the closing status once closed and empty.
  StatusOr<T> pop(const Wait& wait) {
    std::unique_lock lock(mutex_);
    if (!not_empty_.wait_until(lock, wait.deadline().time(), [this] { return closed_ || !items_.empty(); })) {
      return wait.timed_out();
    }
    if (items_.empty()) {
      return closing_status_;
    }
    T item = std::move(items_.front());
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }

  std::optional<T> try_pop() {
    std::unique_lock lock(mutex_);
    if (items_.empty()) {
      return std::nullopt;
    }
    std::optional<T> item(std::move(items_.front()));
    items_.pop_front();
    lock.unlock();
    not_full_.notify_one();
    return item;
  }

  // Ends all waits. `reason` (not OK) is what later calls return; the first close wins.
  void close(Status reason = absl::CancelledError("the queue is closed")) {
    {
      const std::lock_guard lock(mutex_);
      if (closed_) {
        return;
      }
      closed_ = true;
      closing_status_ = std::move(reason);
    }
    not_full_.notify_all();
    not_empty_.notify_all();
  }

  // Drops what is inside and returns it: nobody will want it after a failure.
  std::deque<T> drain() {
    std::deque<T> items;
    {
      const std::lock_guard lock(mutex_);
      items.swap(items_);
    }
    not_full_.notify_all();
    return items;
  }

  size_t size() const {
    const std::lock_guard lock(mutex_);
    return items_.size();
  }
  bool closed() const {
    const std::lock_guard lock(mutex_);
    return closed_;
  }

 private:
  const size_t capacity_;
  mutable std::mutex mutex_;
  std::condition_variable not_full_;
  std::condition_variable not_empty_;
  std::deque<T> items_;
  bool closed_ = false;
  Status closing_status_;
};

}  // namespace accord
