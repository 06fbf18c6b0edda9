#pragma once
// A child in a process group of its own, talked to through pipes. Nothing of the group outlives this object,
// nor this process: a watcher within the group kills it when this process is gone, however it ended. A
// program that leaves its group on purpose (setsid) also leaves this protection.
#include <sys/types.h>

#include <chrono>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "reward/error_log.hpp"
#include "reward/fd.hpp"

namespace accord::reward {

class ChildProcess {
 public:
  // The file that argv[0] names: a path, or looked up in PATH. kBadRecipe where it cannot be executed.
  static StatusOr<std::string> find_program(const std::string& name);

  // stderr goes to the end of `log_path` (error_log.hpp); empty: to this process's. It gets no other open
  // file. Errors: the program cannot be started.
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
  void kill_group();  // and reaps it

  // The last lines of what it wrote to the log, once it ended; empty where there is none.
  std::string error_tail() const;

 private:
  ChildProcess() = default;

  pid_t pid_ = -1;
  bool ended_ = false;
  int wait_status_ = 0;
  Fd input_;
  Fd output_;
  Fd life_;                        // closes with this process: the watcher's signal
  std::unique_ptr<ErrorLog> log_;  // null: this process's standard error
};

}  // namespace accord::reward
