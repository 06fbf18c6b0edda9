#pragma once
// The key-value store through which the members of a communicator find each other.
#include <condition_variable>
#include <map>
#include <mutex>
#include <string>

#include "base/deadline.hpp"
#include "base/status.hpp"

namespace accord::comm {

// Thread-safe. Keys are set once.
class Store {
 public:
  virtual ~Store() = default;
  virtual Status set(const std::string& key, const std::string& value) = 0;
  // Waits until the key is set. Errors: kDeadlineExceeded with the key's name.
  virtual StatusOr<std::string> get(const std::string& key, Deadline deadline) = 0;
};

// For members that are threads of one process.
class InMemoryStore : public Store {
 public:
  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, std::string> values_;
};

}  // namespace accord::comm
