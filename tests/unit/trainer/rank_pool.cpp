#include "unit/trainer/rank_pool.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <cstring>
#include <string>

#include "comm/gloo_communicator.hpp"
#include "support/catch.hpp"
#include "support/group.hpp"
#include "trainer/packing.hpp"

namespace accord::trainer {

namespace {

using accord::testing::soon;

int64_t length_of(const TrainSample& sample) { return static_cast<int64_t>(sample.tokens.size()); }

}  // namespace

std::vector<Status> run_ranks(int32_t size,
                              const std::function<Status(int32_t rank, Communicator& communicator)>& body) {
  return accord::testing::run_group(
      size, "trainers", [&](Communicator& group) { return body(group.rank(), group); }, 1 << 16);
}

recipe::PrecisionPart everywhere(WeightFormat format) {
  recipe::PrecisionPart part = mxfp8_everywhere();
  part.configs[0].format = format;
  return part;
}

std::vector<TrainSample> uneven_samples(size_t count) {
  const auto recorded = recorded_samples("qwen3_moe", 2);
  std::vector<TrainSample> samples;
  for (size_t s = 0; s < count; ++s) {
    TrainSample sample = recorded[s % recorded.size()];
    const size_t length =
        std::max<size_t>(1, static_cast<size_t>(sample.response_length()) * (s + 1) / count);
    sample.tokens.resize(static_cast<size_t>(sample.prompt_length) + length);
    sample.rollout_logprobs.resize(length);
    sample.key.sample_index = static_cast<uint32_t>(s);
    samples.push_back(std::move(sample));
  }
  return samples;
}

double relative_frobenius(const std::vector<float>& mine, const std::vector<float>& reference) {
  REQUIRE(mine.size() == reference.size());
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < mine.size(); ++i) {
    error += std::pow(static_cast<double>(mine[i]) - reference[i], 2);
    norm += std::pow(static_cast<double>(reference[i]), 2);
  }
  return std::sqrt(error / norm);
}

RankPool::RankPool(const std::string& model, const TrainerOptions& options, int32_t size,
                   const recipe::PrecisionPart& precision)
    : expert_parallel(options.expert_parallel) {
  for (int32_t rank = 0; rank < size; ++rank) {
    TrainerOptions mine = options;
    mine.rank = rank;
    mine.size = size;
    ranks.push_back(std::make_unique<Fixture>(model, mine, precision, 1));
  }
  export_weights();
}

std::vector<Status> RankPool::run(const std::function<Status(int32_t rank, Trainer& trainer)>& body) {
  comm::InMemoryStore store;
  return run_ranks(size(), [&](int32_t rank, Communicator& communicator) -> Status {
    Trainer& trainer = *ranks[static_cast<size_t>(rank)]->trainer;
    ACCORD_RETURN_IF_ERROR(trainer.connect(communicator));
    if (expert_parallel == 1) return body(rank, trainer);
    comm::GlooOptions options;
    options.group = "experts" + std::to_string(rank / expert_parallel);
    options.rank = rank % expert_parallel;
    options.size = expert_parallel;
    ACCORD_ASSIGN_OR_RETURN(const auto experts, comm::GlooCommunicator::create(options, store, soon()));
    ACCORD_RETURN_IF_ERROR(trainer.connect_experts(*experts));
    return body(rank, trainer);
  });
}

RankPool::Step RankPool::train(const std::vector<TrainSample>& samples, const std::vector<int32_t>& assigned,
                               uint64_t step) {
  BatchTotals totals;
  for (const TrainSample& s : samples) totals.num_tokens += s.response_length();
  totals.num_samples = static_cast<int64_t>(samples.size());
  Step out;
  out.reports.resize(ranks.size());
  std::vector<std::vector<int64_t>> places(ranks.size());
  for (size_t s = 0; s < samples.size(); ++s)
    places[static_cast<size_t>(assigned[s])].push_back(static_cast<int64_t>(s));
  out.statuses = run([&](int32_t rank, Trainer& trainer) -> Status {
    const size_t r = static_cast<size_t>(rank);
    std::vector<TrainSample> mine;
    for (int64_t place : places[r]) mine.push_back(samples[static_cast<size_t>(place)]);
    ACCORD_ASSIGN_OR_RETURN(out.reports[r], trainer.train_step(mine, step, totals, places[r], soon()));
    return absl::OkStatus();
  });
  out.logprobs.resize(samples.size());
  for (size_t r = 0; r < ranks.size(); ++r) {
    for (size_t i = 0; i < out.reports[r].logprobs.size(); ++i)
      out.logprobs[static_cast<size_t>(places[r][i])] = out.reports[r].logprobs[i];
  }
  return out;
}

RankPool::Step RankPool::train(const std::vector<TrainSample>& samples, uint64_t step) {
  std::vector<int64_t> lengths;
  for (const TrainSample& s : samples) lengths.push_back(length_of(s));
  Step out = train(samples, assign_samples(lengths, size()), step);
  accord::testing::require_all_ok(out.statuses);
  return out;
}

std::vector<Metrics> RankPool::sft(const std::vector<SftSample>& samples, uint64_t step) {
  std::vector<Metrics> metrics(ranks.size());
  accord::testing::require_all_ok(run([&](int32_t rank, Trainer& trainer) -> Status {
    std::vector<SftSample> mine;
    std::vector<int64_t> places;
    for (size_t s = static_cast<size_t>(rank); s < samples.size(); s += ranks.size()) {
      mine.push_back(samples[s]);
      places.push_back(static_cast<int64_t>(s));
    }
    ACCORD_ASSIGN_OR_RETURN(SftReport report, trainer.sft_step(mine, step, {}, places, soon()));
    metrics[static_cast<size_t>(rank)] = std::move(report.metrics);
    return absl::OkStatus();
  }));
  return metrics;
}

void RankPool::export_weights() {
  for (const auto& fixture : ranks) {
    fixture->export_weights([this](const std::string& name) { return owner(name).master(name); });
    // Nobody reads an expert that another place holds.
    for (const WeightEntry& e : fixture->manifest.entries) {
      if (fixture->trainer->holds(e.name)) continue;
      std::byte* arena = fixture->arena->data();
      std::memset(arena + e.data_offset, 0xff, static_cast<size_t>(e.data_bytes));
      std::memset(arena + e.scale_offset, 0xff, static_cast<size_t>(e.scale_bytes));
      std::memset(arena + e.outer_offset, 0xff, static_cast<size_t>(e.outer_bytes));
    }
  }
  accord::testing::require_all_ok(
      run([](int32_t, Trainer& trainer) { return trainer.share_originals(soon()); }));
}

Trainer& RankPool::owner(const std::string& name) {
  const int32_t rank = ranks[0]->trainer->owner(name);
  REQUIRE(rank >= 0);
  return *ranks[static_cast<size_t>(rank)]->trainer;
}

std::vector<float> RankPool::masters() {
  std::vector<float> out;
  for (const ParamSpec& spec : ranks[0]->trainer->parameters()) {
    const auto master = owner(spec.name).master(spec.name);
    out.insert(out.end(), master.begin(), master.end());
  }
  return out;
}

std::vector<float> RankPool::gradients() {
  std::vector<float> out;
  for (const ParamSpec& spec : ranks[0]->trainer->parameters()) {
    const auto gradient = owner(spec.name).gradient(spec.name);
    out.insert(out.end(), gradient.begin(), gradient.end());
  }
  return out;
}

}  // namespace accord::trainer
