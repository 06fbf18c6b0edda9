#pragma once
// Child processes on this machine, for `accord run`. None outlives its owner: they are told to end, then
// killed, and the kernel kills them should the owner die without a word.
#include <sys/types.h>

#include <chrono>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace accord::controller {

class LocalProcesses {
 public:
  LocalProcesses() = default;
  ~LocalProcesses();  // stop(0 s)
  LocalProcesses(const LocalProcesses&) = delete;
  LocalProcesses& operator=(const LocalProcesses&) = delete;

  // Starts this program with `arguments`; its stdout and stderr go to `log_path` (appended).
  Status start(const std::string& name, const std::vector<std::string>& arguments,
               const std::string& log_path);

  // An error (kWorkerLost) that names a child that has ended, how, and the last lines of its log.
  Status check();

  // Waits up to `grace` for children to leave by themselves, then kills the rest and reaps them.
  void stop(std::chrono::milliseconds grace);

 private:
  struct Child {
    std::string name;
    std::string log_path;
    pid_t pid = -1;
    bool ended = false;
    int wait_status = 0;
  };
  void reap();

  std::vector<Child> children_;
};

// To be called by a child started with start(): it dies with its parent. Error: the parent is gone already.
Status die_with_parent();

}  // namespace accord::controller
