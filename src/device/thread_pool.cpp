#include "device/thread_pool.hpp"

#include <algorithm>

namespace accord {

ThreadPool::ThreadPool(int num_threads) {
  for (int i = 1; i < num_threads; ++i) {
    threads_.emplace_back([this] { worker_loop(); });
  }
}

ThreadPool::~ThreadPool() {
  {
    const std::lock_guard lock(mutex_);
    stopping_ = true;
  }
  start_.notify_all();
  for (std::thread& thread : threads_) {
    thread.join();
  }
}

void ThreadPool::run_tasks(const std::function<void(int64_t)>& task, int64_t count) {
  while (true) {
    int64_t index = 0;
    {
      const std::lock_guard lock(mutex_);
      if (next_ >= count) {
        return;
      }
      index = next_++;
    }
    task(index);
  }
}

void ThreadPool::parallel_for(int64_t count, const std::function<void(int64_t)>& task) {
  if (threads_.empty() || count <= 1) {
    for (int64_t i = 0; i < count; ++i) {
      task(i);
    }
    return;
  }
  {
    const std::lock_guard lock(mutex_);
    task_ = &task;
    count_ = count;
    next_ = 0;
    active_ = static_cast<int>(threads_.size());
    ++generation_;
  }
  start_.notify_all();
  run_tasks(task, count);
  std::unique_lock lock(mutex_);
  done_.wait(lock, [this] { return active_ == 0; });
  task_ = nullptr;
}

void ThreadPool::worker_loop() {
  uint64_t seen = 0;
  while (true) {
    const std::function<void(int64_t)>* task = nullptr;
    int64_t count = 0;
    {
      std::unique_lock lock(mutex_);
      start_.wait(lock, [&] { return stopping_ || generation_ != seen; });
      if (stopping_) {
        return;
      }
      seen = generation_;
      task = task_;
      count = count_;
    }
    run_tasks(*task, count);
    const std::lock_guard lock(mutex_);
    if (--active_ == 0) {
      done_.notify_one();
    }
  }
}

}  // namespace accord
