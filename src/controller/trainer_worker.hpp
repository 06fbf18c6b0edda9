#pragma once
// A trainer pool member: masters and optimizer, the arena it exports into and trains from, and the sending
// end of the weight broadcast.
#include <memory>

#include "comm/store.hpp"
#include "controller/worker.hpp"
#include "device/device.hpp"

namespace accord::controller {

// `store` and what `fetch` refers to must outlive the worker; both are used from join() on.
std::unique_ptr<TrainerWorker> make_trainer_worker(int32_t rank, comm::Store& store, FetchSamples fetch,
                                                   const Device& device = {});

}  // namespace accord::controller
