#include "comm/store.hpp"

namespace accord::comm {

Status InMemoryStore::set(const std::string& key, const std::string& value) {
  {
    const std::lock_guard lock(mutex_);
    if (!values_.emplace(key, value).second) {
      return internal_error("rendezvous key '{}' is set twice: is a rank or group name in use already?", key);
    }
  }
  changed_.notify_all();
  return absl::OkStatus();
}

StatusOr<std::string> InMemoryStore::get(const std::string& key, Deadline deadline) {
  const Wait wait(nullptr, "rendezvous key '" + key + "'", deadline);
  std::unique_lock lock(mutex_);
  if (!changed_.wait_until(lock, deadline.time(), [&] { return values_.count(key) > 0; })) {
    return wait.timed_out();
  }
  return values_.at(key);
}

}  // namespace accord::comm
