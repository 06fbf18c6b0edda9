#pragma once
// Expert-tensor parallelism and the plan (docs/contract.md, section 6). Where an expert's matrices are cut
// into shards and a rank sees its own shard only, the outer scale of an NVFP4 weight is taken inside the
// shard: other bytes than for the whole unit. So both pools must cut alike, and the number of shards is part
// of the identity that a handshake compares.
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "precision/plan.hpp"

namespace accord::precision {

// The rollout pool holds whole experts in this version.
inline constexpr int64_t kRolloutExpertShards = 1;

// `plan_digest` for a pool with experts in `shards`; the digest itself for 1.
std::string digest_with_expert_shards(const std::string& plan_digest, int64_t shards);

// Refuses (kBadRecipe, names both counts and the first weight) pools that cut unequally while the plan has
// NVFP4 experts. Reads no weight.
Status check_expert_shards(const PrecisionPlan& plan, int64_t trainer_shards, int64_t rollout_shards);

}  // namespace accord::precision
