#include "reward/error_log.hpp"

#include <fcntl.h>
#include <poll.h>
#include <sys/stat.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstdio>
#include <cstring>
#include <system_error>

#include "base/log.hpp"

namespace accord::reward {
namespace {

constexpr size_t kTail = 2000;  // bytes that an error shows
constexpr int kLastReads = 64;  // of 64 KiB, after the end: the pipe holds less, but someone may still write

}  // namespace

StatusOr<std::unique_ptr<ErrorLog>> ErrorLog::open(const std::string& path, int64_t max_bytes) {
  std::unique_ptr<ErrorLog> log(new ErrorLog(path, max_bytes));
  ACCORD_RETURN_IF_ERROR(log->reopen());
  ACCORD_ASSIGN_OR_RETURN(Pipe text, make_pipe());
  ACCORD_ASSIGN_OR_RETURN(Pipe stop, make_pipe());
  fcntl(text.read.get(), F_SETFL, O_NONBLOCK);
  log->read_ = std::move(text.read);
  log->write_ = std::move(text.write);
  log->stop_read_ = std::move(stop.read);
  log->stop_write_ = std::move(stop.write);
  try {
    log->thread_ = std::thread([raw = log.get()] { raw->pump(); });
  } catch (const std::system_error& error) {
    return unavailable_error("cannot start a thread: {}", error.what());
  }
  return log;
}

ErrorLog::~ErrorLog() { finish(); }

void ErrorLog::finish() {
  write_.reset();
  stop_write_.reset();
  if (thread_.joinable()) {
    thread_.join();
  }
}

Status ErrorLog::reopen() {
  file_ = Fd(::open(path_.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  struct stat status {};
  if (file_.get() < 0 || fstat(file_.get(), &status) != 0) {
    return io_error("{}: {}", path_, std::strerror(errno));
  }
  size_ = status.st_size;
  return absl::OkStatus();
}

void ErrorLog::pump() {
  bool stopping = false;
  while (!ended_ && !stopping) {
    std::array<pollfd, 2> fds{{{read_.get(), POLLIN, 0}, {stop_read_.get(), POLLIN, 0}}};
    if (poll(fds.data(), fds.size(), -1) < 0) {
      if (errno == EINTR) {
        continue;
      }
      log::warn("{}: poll: {}", path_, std::strerror(errno));
      break;
    }
    stopping = fds[1].revents != 0;
    if (fds[0].revents != 0) {
      read_some();
    }
  }
  for (int i = 0; i < kLastReads && !ended_ && read_some(); ++i) {
  }
  while (tail_.ends_with('\n')) {
    tail_.pop_back();
  }
}

bool ErrorLog::read_some() {
  std::array<char, 65536> buffer;
  const ssize_t got = read(read_.get(), buffer.data(), buffer.size());
  if (got > 0) {
    const std::string_view text(buffer.data(), static_cast<size_t>(got));
    keep(text);
    write_file(text);
    return true;
  }
  ended_ = got == 0 || (errno != EAGAIN && errno != EINTR);
  return false;
}

void ErrorLog::keep(std::string_view text) {
  tail_ += text.substr(text.size() - std::min(text.size(), 2 * kTail));
  if (tail_.size() > kTail) {
    tail_.erase(0, tail_.size() - kTail);
    const size_t line = tail_.find('\n');  // whole lines, unless the last one is longer
    tail_.erase(0, line + 1 < tail_.size() ? line + 1 : 0);
  }
}

void ErrorLog::write_file(std::string_view text) {
  if (broken_) {
    return;
  }
  if (size_ > 0 && size_ + static_cast<int64_t>(text.size()) > max_bytes_) {
    const std::string older = path_ + ".1";
    const Status reopened = std::rename(path_.c_str(), older.c_str()) == 0
                                ? reopen()
                                : io_error("{}: {}", older, std::strerror(errno));
    if (!reopened.ok()) {
      broken_ = true;
      log::warn("{}; further output of the scorer is not kept", message_of(reopened));
      return;
    }
  }
  while (!text.empty()) {
    const ssize_t wrote = write(file_.get(), text.data(), text.size());
    if (wrote < 0 && errno == EINTR) {
      continue;
    }
    if (wrote <= 0) {
      broken_ = true;
      log::warn("{}: {}; further output of the scorer is not kept", path_, std::strerror(errno));
      return;
    }
    size_ += wrote;
    text.remove_prefix(static_cast<size_t>(wrote));
  }
}

}  // namespace accord::reward
