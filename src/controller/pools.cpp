#include "controller/pools.hpp"

#include <thread>

namespace accord::controller {

Worker& Pools::member(size_t index) const {
  return index < trainer.size() ? static_cast<Worker&>(*trainer[index]) : *rollout[index - trainer.size()];
}

std::string Pools::name(size_t index) const {
  return index < trainer.size() ? fmt::format("trainer/{}", index)
                                : fmt::format("rollout/{}", index - trainer.size());
}

Status for_all(size_t count, const std::function<Status(size_t)>& task) {
  std::vector<Status> results(count);
  std::vector<std::thread> threads;
  threads.reserve(count);
  for (size_t i = 0; i < count; ++i) {
    threads.emplace_back([&, i] { results[i] = task(i); });
  }
  for (std::thread& thread : threads) {
    thread.join();
  }
  // A failure that made the others' connections break says more than theirs.
  Status first;
  for (const Status& result : results) {
    if (!result.ok() && (first.ok() || (exit_code(first) == ExitCode::kUnavailable &&
                                        exit_code(result) != ExitCode::kUnavailable))) {
      first = result;
    }
  }
  return first;
}

}  // namespace accord::controller
