#pragma once
// The controller's (and, for trajectories, the trainer's) side of accord.v1.Worker.
#include <memory>
#include <string>

#include "base/deadline.hpp"
#include "controller/worker.hpp"
#include "rpc/canceller.hpp"
#include "rpc/identity.hpp"

namespace accord::rpc {

struct ClientOptions {
  std::string name;  // rollout/0: for messages and named waits
  std::string address;
  Identity identity;
  controller::Millis setup_timeout{0};
  controller::Millis save_timeout{0};
};

// `waits` and `canceller` must outlive the clients.
std::unique_ptr<controller::RolloutWorker> make_rollout_client(const ClientOptions& options, WaitList& waits,
                                                               Canceller& canceller);
std::unique_ptr<controller::TrainerWorker> make_trainer_client(const ClientOptions& options, WaitList& waits,
                                                               Canceller& canceller);

// Fetches trajectories from rollout workers, one channel per address, kept open.
controller::FetchSamples make_sample_fetcher(const Identity& identity, controller::Millis timeout);

}  // namespace accord::rpc
