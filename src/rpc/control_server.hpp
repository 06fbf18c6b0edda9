#pragma once
// The controller's gRPC server: Control (for workers), Status (for users), health and reflection.
//
//   worker --Register--> members_ --(all there)--> wait_registered() returns
//   worker --Attach----> one thread per worker; its end is the worker's death -> on_lost (a worker that
//                        leaves before all are there is only forgotten)
#include <chrono>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "controller/run_state.hpp"
#include "rpc/identity.hpp"

namespace accord::rpc {

struct Member {
  std::string name;  // rollout/0
  std::string address;
  int64_t pid = 0;
};

class ControlServer {
 public:
  struct Options {
    std::string listen;  // HOST:PORT, port 0 picks one
    std::string build;   // workers of another build are refused
    Identity identity;
    std::vector<std::string> expected;  // names of all members
    // A worker that registered and did not attach within this time is taken for dead: another may register.
    std::chrono::milliseconds attach_within{10'000};
  };
  using OnLost = std::function<void(const std::string& name)>;

  // `state` must outlive the server. `on_lost` is called at most once per member, from a server thread.
  static StatusOr<std::unique_ptr<ControlServer>> start(const Options& options, controller::RunState& state,
                                                        OnLost on_lost);
  ~ControlServer();

  const std::string& address() const;

  // All expected members, or an error that names the missing ones. `give_up` is asked a few times a second: a
  // non-OK status (a local worker died, say) ends the wait early.
  StatusOr<std::map<std::string, Member>> wait_registered(std::chrono::milliseconds timeout,
                                                          const std::function<Status()>& give_up);

  // Tells every attached worker to leave; losses are no longer reported.
  void shut_down_workers(const std::string& reason);

 private:
  struct Impl;
  explicit ControlServer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::rpc
