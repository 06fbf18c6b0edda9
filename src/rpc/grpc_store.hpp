#pragma once
// The communicators' rendezvous store, kept by the controller and reached over its one port.
#include <memory>
#include <string>

#include "comm/store.hpp"
#include "rpc/identity.hpp"

namespace accord::rpc {

class GrpcStore : public comm::Store {
 public:
  GrpcStore();
  ~GrpcStore() override;

  // Before the first use.
  void connect(const std::string& controller, const Identity& identity);

  Status set(const std::string& key, const std::string& value) override;
  StatusOr<std::string> get(const std::string& key, Deadline deadline) override;

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::rpc
