#pragma once
// The run directory: one run, one controller. The lock is held for the life of the object.
//   recipe.yaml plan.json metrics.jsonl ledger.jsonl samples/ logs/ checkpoints/ LATEST lock
#include <string>

#include "base/status.hpp"

namespace accord::controller {

class RunDirectory {
 public:
  // Creates the directory and takes its lock. Errors: kRunLocked names the holder (pid, host, address).
  // A directory that already holds a run is refused unless `resume` (kUsage): nothing saved is overwritten.
  static StatusOr<RunDirectory> open(const std::string& path, bool resume);
  // The same refusals, without creating or keeping anything: for what must be known before the first write.
  static Status check(const std::string& path, bool resume);

  RunDirectory(RunDirectory&& other) noexcept;
  RunDirectory& operator=(RunDirectory&& other) noexcept;
  ~RunDirectory();

  const std::string& path() const { return path_; }
  std::string file(const std::string& name) const { return path_ + "/" + name; }
  Status create(const std::string& name) const;  // a directory below, if it is not there
  std::string checkpoints() const { return path_ + "/checkpoints"; }

  // Writes who holds the lock and where its status service listens, for the next one who tries.
  Status describe_holder(const std::string& address);

 private:
  RunDirectory(std::string path, int lock_fd) : path_(std::move(path)), lock_fd_(lock_fd) {}
  std::string path_;
  int lock_fd_ = -1;
};

}  // namespace accord::controller
