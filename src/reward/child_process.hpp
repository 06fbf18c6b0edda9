#pragma once
// A child in a process group of its own, talked to through pipes. Nothing of the group outlives this object,
// nor this process: a watcher within the group kills it when this process is gone, however it ended.
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

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

class ChildProcess {
 public:
  // The file that argv[0] names: a path, or looked up in PATH. kBadRecipe where it cannot be executed.
  static StatusOr<std::string> find_program(const std::string& name);

  // stderr goes to the end of `log_path`; empty: to this process's. Errors: the program cannot be started.
  static StatusOr<std::unique_ptr<ChildProcess>> start(const std::vector<std::string>& argv,
                                                       const std::string& log_path);
  ~ChildProcess();  // kills the group
  ChildProcess(const ChildProcess&) = delete;
  ChildProcess& operator=(const ChildProcess&) = delete;

  pid_t pid() const { return pid_; }
  int input() const { return input_.get(); }    // its stdin, does not block
  int output() const { return output_.get(); }  // its stdout, does not block
  void close_input() { input_.reset(); }

  // "ended with exit code 3"; empty if it still runs after `grace`. What remains of its group is killed then.
  std::string wait_end(std::chrono::milliseconds grace);
  void kill_group();

  // The last lines of what it wrote to the log; empty where there is none.
  std::string error_tail() const;

 private:
  ChildProcess() = default;

  pid_t pid_ = -1;
  bool ended_ = false;
  int wait_status_ = 0;
  Fd input_;
  Fd output_;
  Fd life_;  // closes with this process: the watcher's signal
  std::string log_path_;
  int64_t log_begin_ = 0;  // size of the log before the child
};

}  // namespace accord::reward
