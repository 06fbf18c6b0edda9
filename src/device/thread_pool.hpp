#pragma once
// A fixed set of threads that share an index range. Work is split into tasks whose results do not
// depend on which thread runs them, so the number of threads never changes a bit.
#include <condition_variable>
#include <cstdint>
#include <functional>
#include <mutex>
#include <thread>
#include <vector>

namespace accord {

class ThreadPool {
 public:
  explicit ThreadPool(int num_threads);  // the calling thread counts as one; at least 1
  ~ThreadPool();
  ThreadPool(const ThreadPool&) = delete;
  ThreadPool& operator=(const ThreadPool&) = delete;

  int num_threads() const { return static_cast<int>(threads_.size()) + 1; }

  // Calls task(i) once for every i in [0, count), on any thread; returns when all are done. Not reentrant.
  void parallel_for(int64_t count, const std::function<void(int64_t)>& task);

 private:
  void worker_loop();
  void run_tasks(const std::function<void(int64_t)>& task, int64_t count);

  std::vector<std::thread> threads_;
  std::mutex mutex_;
  std::condition_variable start_;
  std::condition_variable done_;
  const std::function<void(int64_t)>* task_ = nullptr;
  int64_t count_ = 0;
  int64_t next_ = 0;
  int active_ = 0;
  uint64_t generation_ = 0;
  bool stopping_ = false;
};

}  // namespace accord
