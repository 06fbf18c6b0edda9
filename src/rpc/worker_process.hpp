#pragma once
// The life of a worker process: serve, register, stay attached, leave when told to or when the controller
// is gone.
#include <string>

#include "base/status.hpp"
#include "controller/worker.hpp"
#include "rpc/grpc_store.hpp"

namespace accord::rpc {

struct WorkerProcessOptions {
  bool trainer = false;  // which pool
  int32_t rank = 0;
  std::string controller;  // HOST:PORT
  std::string build;
  controller::Millis register_timeout{0};
};

// Filled in once the worker has registered; given to the pool member when it is made.
struct WorkerLinks {
  GrpcStore store;  // the communicators' rendezvous
  controller::FetchSamples fetch;
};

// Exactly one of `rollout` and `trainer` is given. Returns when the controller says so (OK), refuses the
// registration, or cannot be reached within the timeout. If the controller disappears later, the process
// ends at once with exit code 71: it has nothing to save, and its call in progress cannot finish.
Status run_worker(const WorkerProcessOptions& options, WorkerLinks& links, controller::RolloutWorker* rollout,
                  controller::TrainerWorker* trainer, std::string* served_address);

}  // namespace accord::rpc
