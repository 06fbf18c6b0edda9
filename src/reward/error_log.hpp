#pragma once
// What a child writes to its standard error, into a file of bounded size. A thread of its own reads it, so
// that a child that says much never waits for a batch, and one that floods fills no disk.
#include <cstdint>
#include <memory>
#include <string>
#include <thread>

#include "base/status.hpp"
#include "reward/fd.hpp"

namespace accord::reward {

// At this size the file becomes <path>.1 (replacing an older one) and a new one begins.
inline constexpr int64_t kMaxErrorLog = int64_t{32} << 20;

class ErrorLog {
 public:
  // Appends to `path`. Errors: the file cannot be opened, no pipe or thread can be made.
  static StatusOr<std::unique_ptr<ErrorLog>> open(const std::string& path, int64_t max_bytes = kMaxErrorLog);
  ~ErrorLog();
  ErrorLog(const ErrorLog&) = delete;
  ErrorLog& operator=(const ErrorLog&) = delete;

  int child_end() const { return write_.get(); }
  // After the fork: the child alone holds its end now.
  void started() { write_.reset(); }

  // Takes what the pipe still holds and stops, whoever has the other end.
  void finish();
  // The last whole lines, up to 2000 bytes; after finish().
  const std::string& tail() const { return tail_; }

 private:
  ErrorLog(std::string path, int64_t max_bytes) : path_(std::move(path)), max_bytes_(max_bytes) {}
  Status reopen();
  void pump();
  bool read_some();  // false: nothing more to read now, or ever
  void keep(std::string_view text);
  void write_file(std::string_view text);

  const std::string path_;
  const int64_t max_bytes_;
  Fd file_;
  int64_t size_ = 0;
  Fd read_;
  Fd write_;
  Fd stop_read_;
  Fd stop_write_;  // closed: stop
  bool ended_ = false;
  bool broken_ = false;  // the file takes no more
  std::string tail_;
  std::thread thread_;
};

}  // namespace accord::reward
