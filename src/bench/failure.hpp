#pragma once
// Inside of this room an error ends the benchmark under way: must() throws it, guarded() turns it back into
// the value that other rooms get. Header only.
#include <exception>
#include <utility>

#include "base/status.hpp"

namespace accord::bench {

class Failure : public std::exception {
 public:
  explicit Failure(Status status) : status_(std::move(status)) {}
  const Status& status() const { return status_; }
  const char* what() const noexcept override { return "a benchmark failed"; }

 private:
  Status status_;
};

inline void must(const Status& status) {
  if (!status.ok()) throw Failure(status);
}
template <class T>
T must(StatusOr<T> value) {
  must(value.status());
  return std::move(value).value();
}

// `run` returns a Status or a StatusOr.
template <class Run>
auto guarded(const Run& run) -> decltype(run()) {
  try {
    return run();
  } catch (const Failure& failure) {
    return failure.status();
  }
}

}  // namespace accord::bench
