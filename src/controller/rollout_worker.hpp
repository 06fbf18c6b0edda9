#pragma once
// A rollout pool member: arena, model, engine, and the trajectories that the trainers have not fetched yet.
#include <memory>

#include "comm/store.hpp"
#include "controller/worker.hpp"
#include "device/device.hpp"

namespace accord::controller {

// `store` must outlive the worker; it is used from join() on.
std::unique_ptr<RolloutWorker> make_rollout_worker(int32_t rank, comm::Store& store,
                                                   const Device& device = {});

}  // namespace accord::controller
