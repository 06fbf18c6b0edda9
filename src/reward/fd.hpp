#pragma once
// File descriptors with an owner.
#include "base/status.hpp"

namespace accord::reward {

// An open file descriptor, closed with its scope.
class Fd {
 public:
  Fd() = default;
  explicit Fd(int fd) : fd_(fd) {}
  ~Fd() { reset(); }
  Fd(Fd&& other) noexcept : fd_(other.release()) {}
  Fd& operator=(Fd&& other) noexcept;
  int get() const { return fd_; }
  int release();
  void reset();

 private:
  int fd_ = -1;
};

struct Pipe {
  Fd read;
  Fd write;
};

// Both ends close on exec and are above the standard descriptors, whatever this process has closed of those.
StatusOr<Pipe> make_pipe();

}  // namespace accord::reward
