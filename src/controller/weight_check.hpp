#pragma once
// Weights verified on demand: what every arena of a live run holds, against the ledger.
#include <cstdint>
#include <optional>
#include <string>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "controller/pools.hpp"
#include "controller/run_state.hpp"
#include "device/thread_pool.hpp"
#include "weights/arena.hpp"

namespace accord::controller {

// A worker's answer: the digests of its arena's bytes as they are now.
HeldWeights hold_weights(std::optional<uint64_t> version, const WeightManifest& manifest,
                         const weights::Arena& arena, ThreadPool& pool);

// Asks all workers and compares with the last record of `version` in the ledger. Nothing may be
// synchronizing.
StatusOr<WeightCheck> check_weights(const Pools& pools, const std::string& ledger_path, uint64_t version);

}  // namespace accord::controller
