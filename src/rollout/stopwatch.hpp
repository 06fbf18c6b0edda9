#pragma once
// Adds the time of its scope to a statistic.
#include <chrono>

namespace accord::rollout {

class Stopwatch {
 public:
  explicit Stopwatch(double& seconds) : seconds_(seconds), start_(Clock::now()) {}
  ~Stopwatch() { seconds_ += std::chrono::duration<double>(Clock::now() - start_).count(); }
  Stopwatch(const Stopwatch&) = delete;
  Stopwatch& operator=(const Stopwatch&) = delete;

 private:
  using Clock = std::chrono::steady_clock;
  double& seconds_;
  Clock::time_point start_;
};

}  // namespace accord::rollout
