#include "reward/fd.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <cerrno>
#include <cstring>
#include <utility>

namespace accord::reward {
namespace {

Fd above_standard(Fd fd) {
  return fd.get() > STDERR_FILENO ? std::move(fd) : Fd(fcntl(fd.get(), F_DUPFD_CLOEXEC, STDERR_FILENO + 1));
}

}  // namespace

Fd& Fd::operator=(Fd&& other) noexcept {
  if (this != &other) {
    reset();
    fd_ = other.release();
  }
  return *this;
}

int Fd::release() { return std::exchange(fd_, -1); }

void Fd::reset() {
  if (fd_ >= 0) {
    close(std::exchange(fd_, -1));
  }
}

StatusOr<Pipe> make_pipe() {
  int ends[2];
  if (pipe2(ends, O_CLOEXEC) != 0) {
    return unavailable_error("cannot make a pipe: {}", std::strerror(errno));
  }
  Pipe made{above_standard(Fd(ends[0])), above_standard(Fd(ends[1]))};
  if (made.read.get() < 0 || made.write.get() < 0) {
    return unavailable_error("cannot make a pipe: {}", std::strerror(errno));
  }
  return made;
}

}  // namespace accord::reward
