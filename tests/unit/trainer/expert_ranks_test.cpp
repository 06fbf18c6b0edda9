// Whole steps with experts spread over ranks, against one rank.
#include <algorithm>
#include <cmath>

#include "support/catch.hpp"
#include "unit/trainer/rank_pool.hpp"
#include "unit/trainer/tolerance.hpp"

namespace accord::trainer {
namespace {

using recipe::BackwardMode;

struct Mode {
  WeightFormat format;
  BackwardMode backward;
  Dtype dtype;
};

TrainerOptions options_of(const Mode& mode) {
  TrainerOptions options;
  options.compute_dtype = mode.dtype;
  options.backward = mode.backward;
  options.optimizer.lr = 1e-2;
  options.tokens_per_microbatch = 1;  // a sample each
  return options;
}

recipe::PrecisionPart precision_of(const Mode& mode) {
  if (mode.format == WeightFormat::kBF16) return {};
  recipe::PrecisionPart part = everywhere(mode.format);
  part.backward = mode.backward;
  return part;
}

void record_routing(std::vector<TrainSample>& samples, const ModelConfig& config) {
  const auto k = static_cast<size_t>(config.num_experts_per_token);
  for (TrainSample& s : samples) {
    std::vector<int32_t> ids((s.tokens.size() - 1) * static_cast<size_t>(routing_width(config)));
    for (size_t i = 0; i < ids.size(); ++i) {
      ids[i] = static_cast<int32_t>((i / k * 3 + i % k) % static_cast<size_t>(config.num_experts));
    }
    s.routing = pack_expert_ids(ids, config.num_experts);
  }
}

void require_all(const RankPool::Step& step) {
  for (const Status& status : step.statuses) {
    INFO(std::string(message_of(status)));
    REQUIRE(status.ok());
  }
}

constexpr Mode kModes[] = {
    {WeightFormat::kBF16, BackwardMode::kHighPrecision, Dtype::kF32},
    {WeightFormat::kMXFP8, BackwardMode::kHighPrecision, Dtype::kBF16},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized, Dtype::kBF16},
    {WeightFormat::kNVFP4, BackwardMode::kDequantized, Dtype::kBF16},
    {WeightFormat::kNVFP4, BackwardMode::kHighPrecision, Dtype::kBF16},
};

}  // namespace

TEST_CASE("ranks that share experts take the step of one rank") {
  const auto samples = uneven_samples(6);
  struct Pool {
    int32_t size, expert_parallel;
    std::vector<int32_t> assigned;  // rank of each sample
  };
  const std::vector<Pool> pools{
      {2, 2, {0, 1, 0, 0, 0, 1}}, {4, 2, {3, 1, 3, 0, 3, 3}}, {4, 4, {1, 0, 0, 2, 2, 2}}};
  for (const Mode& mode : kModes) {
    TrainerOptions options = options_of(mode);
    RankPool one("qwen3_moe", options, 1, precision_of(mode));
    const RankPool::Step reference = one.train(samples, 1);
    const auto gradients = one.gradients();
    for (const Pool& p : pools) {
      CAPTURE(static_cast<int>(mode.format), static_cast<int>(mode.backward), p.size, p.expert_parallel);
      options.expert_parallel = p.expert_parallel;
      RankPool pool("qwen3_moe", options, p.size, precision_of(mode));
      const RankPool::Step step = pool.train(samples, p.assigned, 1);
      require_all(step);
      CHECK(step.logprobs == reference.logprobs);
      for (const StepReport& report : step.reports) CHECK(report.metrics == step.reports[0].metrics);
      for (const auto& [name, value] : reference.reports[0].metrics) {
        CAPTURE(name);
        if (name != "train/grad_norm") CHECK(step.reports[0].metrics.at(name) == value);
      }
      const double error = relative_frobenius(pool.gradients(), gradients);
      CAPTURE(error);
      CHECK(error <= tolerance::kExchange);
    }
  }
}

TEST_CASE("ranks that share experts replay recorded routing and give log-probs and go on") {
  TrainerOptions options = options_of({WeightFormat::kMXFP8, BackwardMode::kHighPrecision, Dtype::kBF16});
  options.algorithm.routing_replay = true;
  options.activation_bytes = 0;
  const recipe::PrecisionPart precision = mxfp8_everywhere();
  auto samples = uneven_samples(5);
  const auto run = [&](int32_t size, int32_t expert_parallel, const std::vector<int32_t>& assigned) {
    options.expert_parallel = expert_parallel;
    RankPool pool("qwen3_moe", options, size, precision);
    record_routing(samples, pool.ranks[0]->config);
    const RankPool::Step first = pool.train(samples, assigned, 1);
    require_all(first);
    pool.export_weights();
    std::vector<std::vector<float>> logprobs(samples.size());
    const auto statuses = pool.run([&](int32_t rank, Trainer& trainer) -> Status {
      std::vector<TrainSample> mine;
      std::vector<size_t> places;
      for (size_t s = 0; s < samples.size(); ++s) {
        if (assigned[s] != rank) continue;
        mine.push_back(samples[s]);
        places.push_back(s);
      }
      ACCORD_ASSIGN_OR_RETURN(const auto out,
                              trainer.logprobs(mine, Deadline::after(std::chrono::seconds(60))));
      for (size_t i = 0; i < places.size(); ++i) logprobs[places[i]] = out[i];
      return absl::OkStatus();
    });
    for (const Status& status : statuses) {
      INFO(std::string(message_of(status)));
      REQUIRE(status.ok());
    }
    const RankPool::Step second = pool.train(samples, assigned, 2);
    require_all(second);
    CHECK(second.logprobs == logprobs);
    return std::tuple(first, logprobs, second);
  };
  const auto [first, logprobs, second] = run(1, 1, {0, 0, 0, 0, 0});
  const auto [mine_first, mine_logprobs, mine_second] = run(4, 2, {1, 1, 2, 1, 3});
  CHECK(mine_first.logprobs == first.logprobs);
  CHECK(mine_first.reports[0].metrics.at("mismatch/expert_overlap") ==
        first.reports[0].metrics.at("mismatch/expert_overlap"));
  // The second step's weights differ by the rounding of the first one's gradient.
  for (size_t s = 0; s < samples.size(); ++s) CHECK(relative_frobenius(mine_logprobs[s], logprobs[s]) < 0.02);
}

TEST_CASE("a trainer whose experts are spread wants its expert group") {
  TrainerOptions options = options_of({WeightFormat::kBF16, BackwardMode::kHighPrecision, Dtype::kBF16});
  options.expert_parallel = 2;
  RankPool pool("qwen3_moe", options, 2);
  const auto samples = uneven_samples(2);
  for (const Status& status : run_ranks(2, [&](int32_t rank, Communicator&communicator) -> Status {
         TrainerOptions mine = options;
         mine.rank = rank;
         mine.size = 2;
         ThreadPool threads(1);
         ACCORD_ASSIGN_OR_RETURN(auto trainer, Trainer::create(pool.ranks[0]->config, mine, threads,
                                                               [](const ParamSpec&, std::span<float> values) {
                                                                 std::fill(values.begin(), values.end(),
                                                                           0.0F);
                                                                 return absl::OkStatus();
                                                               }));
         ACCORD_RETURN_IF_ERROR(trainer->connect(communicator));
         const Fixture& f = *pool.ranks[static_cast<size_t>(rank)];
         ACCORD_RETURN_IF_ERROR(trainer->bind_arena(f.manifest, f.arena->data()));
         return trainer
             ->train_step(std::span(samples).subspan(static_cast<size_t>(rank), 1), 1, {},
                          std::vector<int64_t>{rank}, Deadline::after(std::chrono::seconds(60)))
             .status();
       })) {
    CHECK(std::string(message_of(status)).find("connect_experts was not called") != std::string::npos);
  }
  for (const Status& status : run_ranks(3, [&](int32_t rank, Communicator&communicator) -> Status {
         return pool.ranks[static_cast<size_t>(rank % 2)]->trainer->connect_experts(communicator);
       })) {
    CHECK(std::string(message_of(status)).find(" of 3 for place ") != std::string::npos);
  }
}

}  // namespace accord::trainer
