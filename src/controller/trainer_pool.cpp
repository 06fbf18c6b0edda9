#include "controller/trainer_pool.hpp"

#include <bit>

#include "trainer/packing.hpp"
#include "trainer/updates.hpp"

namespace accord::controller {
namespace {

bool same_bits(double a, double b) { return std::bit_cast<uint64_t>(a) == std::bit_cast<uint64_t>(b); }

}  // namespace

Status join_groups(const Pools& pools, const recipe::Recipe& recipe) {
  const Millis timeout = std::chrono::seconds(recipe.deadlines.register_);
  ACCORD_RETURN_IF_ERROR(for_all(pools.size(), [&](size_t i) {
    return pools.member(i).join({GroupRole::kWeights, "weights", static_cast<int32_t>(i),
                                 static_cast<int32_t>(pools.size()), timeout});
  }));
  const size_t trainers = pools.trainer.size();
  if (trainers == 1) {
    return absl::OkStatus();
  }
  ACCORD_RETURN_IF_ERROR(for_all(trainers, [&](size_t i) {
    return pools.trainer[i]->join(
        {GroupRole::kTrainers, "trainers", static_cast<int32_t>(i), static_cast<int32_t>(trainers), timeout});
  }));
  const auto places = static_cast<size_t>(std::max<int64_t>(recipe.trainer.expert_parallel, 1));
  if (places == 1) {
    return absl::OkStatus();
  }
  return for_all(trainers, [&](size_t i) {
    return pools.trainer[i]->join({GroupRole::kExperts, fmt::format("experts-{}", i / places),
                                   static_cast<int32_t>(i % places), static_cast<int32_t>(places), timeout});
  });
}

Status check_arithmetic(const Pools& pools, std::span<const SetupReport> reports) {
  for (size_t i = 1; i < reports.size(); ++i) {
    if (reports[i].arithmetic != reports[0].arithmetic) {
      return recipe_error(
          "{} computes on {} ({}) and {} on {} ({}): their sums differ in the last bits, so rollout and "
          "trainer would not agree on log-probabilities; give all workers devices of one kind (--device) "
          "and, where it is named, one cuBLASLt (ACCORD_CUBLASLT)",
          pools.name(0), reports[0].device, reports[0].arithmetic, pools.name(i), reports[i].device,
          reports[i].arithmetic);
    }
  }
  return absl::OkStatus();
}

void assign_ranks(const recipe::Recipe& recipe, int32_t num_ranks, std::span<TrainSampleRef> samples) {
  for (const trainer::SampleRange& range :
       trainer::split_updates(static_cast<int64_t>(samples.size()), recipe.rollout.samples_per_prompt,
                              recipe.trainer.updates_per_step)) {
    const auto update = samples.subspan(range.begin, range.count);
    std::vector<int64_t> tokens;
    for (const TrainSampleRef& sample : update) {
      tokens.push_back(sample.num_tokens);
    }
    const std::vector<int32_t> ranks = trainer::assign_samples(tokens, num_ranks);
    for (size_t i = 0; i < update.size(); ++i) {
      update[i].rank = ranks[i];
    }
  }
}

bool same_answer(const Metrics& a, const Metrics& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const auto& x, const auto& y) {
    return x.first == y.first && same_bits(x.second, y.second);
  });
}

bool same_answer(const std::vector<TensorRecord>& a, const std::vector<TensorRecord>& b) {
  return std::equal(a.begin(), a.end(), b.begin(), b.end(), [](const TensorRecord& x, const TensorRecord& y) {
    return x.name == y.name && x.digest == y.digest && same_bits(x.amax, y.amax) &&
           same_bits(x.saturated, y.saturated) && same_bits(x.flushed, y.flushed);
  });
}

}  // namespace accord::controller
