// Whole steps on several ranks against one rank.
#include <algorithm>
#include <cmath>
#include <limits>
#include <map>
#include <set>

#include "support/catch.hpp"
#include "trainer/packing.hpp"
#include "trainer/updates.hpp"
#include "unit/trainer/rank_pool.hpp"
#include "unit/trainer/tolerance.hpp"

namespace accord::trainer {
namespace {

using recipe::BackwardMode;

// One sample per micro-batch: every sample's gradient has the same bits on any rank, so that the ranks'
// results differ by the order of fp32 sums alone.
TrainerOptions rank_options() {
  TrainerOptions options;
  options.compute_dtype = Dtype::kBF16;
  options.optimizer.lr = 1e-2;
  options.tokens_per_microbatch = 1;
  return options;
}

// Where the gradient is far from AdamW's epsilon the update does not amplify its rounding.
double worst_master(const std::vector<float>& mine, const std::vector<float>& reference,
                    const std::vector<float>& gradient) {
  double worst = 0.0;
  for (size_t i = 0; i < mine.size(); ++i) {
    if (std::abs(gradient[i]) > 1e-5F)
      worst = std::max(worst, std::abs(static_cast<double>(mine[i]) - reference[i]));
  }
  return worst;
}

void check_metrics_agree(const Metrics& mine, const Metrics& reference, bool same_weights) {
  REQUIRE(mine.size() == reference.size());
  for (const auto& [name, value] : reference) {
    CAPTURE(name, value, mine.at(name));
    if (name == "train/grad_norm") {
      CHECK(std::abs(mine.at(name) - value) <= tolerance::kRankGradient * value);
    } else if (same_weights) {
      CHECK(mine.at(name) == value);
    }
  }
}

void check_ranks(const std::string& model, const TrainerOptions& options,
                 const recipe::PrecisionPart& precision, const std::vector<int32_t>& sizes) {
  const auto samples = uneven_samples(5);
  RankPool one(model, options, 1, precision);
  const RankPool::Step reference = one.train(samples, 1);
  const auto gradients = one.gradients();
  const auto masters = one.masters();
  for (const int32_t size : sizes) {
    CAPTURE(model, size);
    RankPool pool(model, options, size, precision);
    const RankPool::Step step = pool.train(samples, 1);
    CHECK(step.logprobs == reference.logprobs);
    for (const StepReport& report : step.reports) {
      CHECK(report.metrics == step.reports[0].metrics);
      CHECK(report.num_tokens == reference.reports[0].num_tokens);
    }
    check_metrics_agree(step.reports[0].metrics, reference.reports[0].metrics, true);
    const double error = relative_frobenius(pool.gradients(), gradients);
    const double worst = worst_master(pool.masters(), masters, gradients);
    CAPTURE(error, worst);
    CHECK(error <= tolerance::kRankGradient);
    CHECK(worst <= tolerance::kStepUpdate);
  }
}

}  // namespace

TEST_CASE("1, 2, 3 and 4 ranks take the same step") {
  for (const char* model : {"qwen3_moe", "qwen3_dense_tied", "llama_tied"})
    check_ranks(model, rank_options(), everywhere(WeightFormat::kMXFP8), {1, 2, 3, 4});
}

TEST_CASE("2 and 4 ranks take the same step in every backward mode") {
  TrainerOptions options = rank_options();
  for (const auto format : {WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    for (const auto mode :
         {BackwardMode::kHighPrecision, BackwardMode::kDequantized, BackwardMode::kQuantized}) {
      if (format == WeightFormat::kNVFP4 && mode == BackwardMode::kQuantized) continue;
      CAPTURE(static_cast<int>(format), static_cast<int>(mode));
      options.backward = mode;
      check_ranks("qwen3_moe", options, everywhere(format), {2, 4});
    }
  }
}

TEST_CASE("several ranks give the same bytes every time") {
  const auto samples = uneven_samples(7);
  const auto run = [&](int32_t size) {
    TrainerOptions options = rank_options();
    options.tokens_per_microbatch = 60;
    RankPool pool("qwen3_moe", options, size, everywhere(WeightFormat::kMXFP8));
    std::vector<Metrics> metrics;
    for (uint64_t step = 1; step <= 3; ++step) {
      metrics.push_back(pool.train(samples, step).reports[0].metrics);
      pool.export_weights();
    }
    return std::pair(pool.masters(), metrics);
  };
  for (const int32_t size : {2, 4}) CHECK(run(size) == run(size));
}

TEST_CASE("state is sharded: every tensor lies on exactly one rank") {
  for (const char* model : {"qwen3_moe", "llama_tied"}) {
    for (const int32_t size : {1, 2, 4}) {
      CAPTURE(model, size);
      RankPool pool(model, rank_options(), size);
      std::set<std::string> names;
      size_t total = 0, expected = 0, count = 0;
      std::vector<size_t> per_rank;
      for (const auto& fixture : pool.ranks) {
        per_rank.push_back(0);
        for (const StateTensor& tensor : fixture->trainer->state()) {
          CHECK(names.insert(tensor.name).second);
          per_rank.back() += static_cast<size_t>(tensor.numel);
        }
        total += per_rank.back();
      }
      for (const ParamSpec& spec : pool.ranks[0]->trainer->parameters()) {
        expected += 3 * static_cast<size_t>(spec.numel());
        ++count;
        for (const auto& fixture : pool.ranks) {
          const Trainer& trainer = *fixture->trainer;
          CHECK(trainer.holds(spec.name));
          CHECK(trainer.owns(spec.name) == !fixture->trainer->master(spec.name).empty());
          CHECK(trainer.owner(spec.name) == pool.ranks[0]->trainer->owner(spec.name));
        }
      }
      CHECK(total == expected);
      CHECK(names.size() == 3 * count);
      CHECK(*std::max_element(per_rank.begin(), per_rank.end()) < 2 * total / pool.ranks.size() + 1);
      CHECK(pool.ranks[0]->trainer->owner("no.such.weight") == -1);
      CHECK_FALSE(pool.ranks[0]->trainer->owns("no.such.weight"));
      CHECK_FALSE(pool.ranks[0]->trainer->holds("no.such.weight"));
    }
  }
}

TEST_CASE("ranks without samples take part") {
  const auto samples = uneven_samples(3);
  RankPool one("qwen3_moe", rank_options(), 1);
  const RankPool::Step reference = one.train(samples, 1);
  RankPool pool("qwen3_moe", rank_options(), 4);
  const RankPool::Step step = pool.train(samples, {2, 0, 2}, 1);
  for (const Status& status : step.statuses) {
    INFO(std::string(message_of(status)));
    REQUIRE(status.ok());
  }
  CHECK(step.logprobs == reference.logprobs);
  for (const StepReport& report : step.reports) CHECK(report.metrics == step.reports[0].metrics);
  check_metrics_agree(step.reports[0].metrics, reference.reports[0].metrics, true);
  CHECK(relative_frobenius(pool.gradients(), one.gradients()) <= tolerance::kRankGradient);
  // Nobody has one.
  const RankPool::Step empty = pool.train({}, {}, 2);
  for (const Status& status : empty.statuses) CHECK(exit_code(status) == ExitCode::kBadData);
}

TEST_CASE("several updates and recorded routing on several ranks") {
  TrainerOptions options = rank_options();
  options.algorithm.routing_replay = true;
  auto samples = uneven_samples(6);
  const auto run = [&](int32_t size) {
    RankPool pool("qwen3_moe", options, size, everywhere(WeightFormat::kMXFP8));
    const ModelConfig& config = pool.ranks[0]->config;
    for (TrainSample& s : samples) {
      std::vector<int32_t> ids((s.tokens.size() - 1) * static_cast<size_t>(routing_width(config)));
      for (size_t id = 0; id < ids.size(); ++id) {
        ids[id] = static_cast<int32_t>(id % static_cast<size_t>(config.num_experts_per_token));
      }
      s.routing = pack_expert_ids(ids, config.num_experts);
    }
    std::vector<StepReport> reports;
    for (const SampleRange& range : split_updates(static_cast<int64_t>(samples.size()), 2, 2)) {
      if (!reports.empty()) pool.export_weights();
      const auto begin = samples.begin() + static_cast<int64_t>(range.begin);
      const RankPool::Step step = pool.train({begin, begin + static_cast<int64_t>(range.count)}, 1);
      for (const StepReport& report : step.reports) CHECK(report.metrics == step.reports[0].metrics);
      reports.push_back(step.reports.back());
    }
    return std::pair(combine_updates(reports), pool.masters());
  };
  const auto [reference, masters] = run(1);
  for (const int32_t size : {2, 4}) {
    CAPTURE(size);
    const auto [mine, mine_masters] = run(size);
    REQUIRE(mine.size() == reference.size());
    CHECK(mine.at("train/microbatches") == reference.at("train/microbatches"));
    CHECK(mine.at("mismatch/expert_overlap") == reference.at("mismatch/expert_overlap"));
    CHECK(mine.at("mismatch/kl_k3") == reference.at("mismatch/kl_k3"));
    // The second update's policy differs by the first one's rounding.
    CHECK(std::abs(mine.at("train/loss") - reference.at("train/loss")) < 1e-2);
    CHECK(relative_frobenius(mine_masters, masters) < 1e-3);
  }
}

TEST_CASE("supervised steps on several ranks") {
  std::vector<SftSample> samples;
  for (const TrainSample& s : uneven_samples(5)) samples.push_back({s.tokens, s.prompt_length});
  RankPool one("qwen3_dense_tied", rank_options(), 1, everywhere(WeightFormat::kMXFP8));
  const auto reference = one.sft(samples, 1);
  const auto gradients = one.gradients();
  for (const int32_t size : {2, 4}) {
    CAPTURE(size);
    RankPool pool("qwen3_dense_tied", rank_options(), size, everywhere(WeightFormat::kMXFP8));
    const auto metrics = pool.sft(samples, 1);
    for (const Metrics& m : metrics) CHECK(m == metrics[0]);
    check_metrics_agree(metrics[0], reference[0], true);
    CHECK(relative_frobenius(pool.gradients(), gradients) <= tolerance::kRankGradient);
    CHECK(worst_master(pool.masters(), one.masters(), gradients) <= tolerance::kStepUpdate);
  }
}

TEST_CASE("one rank's fault fails the step on all ranks and changes nothing") {
  RankPool pool("qwen3_moe", rank_options(), 3);
  const auto good = uneven_samples(6);
  const std::vector<int32_t> assigned{0, 1, 2, 0, 1, 2};
  const auto before = pool.masters();
  const auto refused = [&](const std::vector<TrainSample>& samples, const std::string& word) {
    const RankPool::Step step = pool.train(samples, assigned, 9);
    for (const Status& status : step.statuses) {
      const std::string message(message_of(status));
      CAPTURE(message, word);
      CHECK(message.find(word) != std::string::npos);
      CHECK(status == step.statuses[0]);
      CHECK(exit_code(status) == ExitCode::kBadData);
    }
    CHECK(pool.masters() == before);
    for (const auto& fixture : pool.ranks) CHECK(fixture->trainer->optimizer_steps() == 0);
  };
  auto samples = good;
  samples[4].advantage = std::numeric_limits<double>::quiet_NaN();
  refused(samples, "step 9: the loss of sample 4");
  samples = good;
  samples[5].tokens[3] = 320;
  refused(samples, "sample 5 of prompt");
  samples = good;
  samples[2].ref_logprobs = samples[2].rollout_logprobs;
  refused(samples, "for all samples of a step or for none");
  // Finite losses whose gradient is not: the owner of the tensor names it.
  samples = good;
  samples[1].advantage = 1e300;
  refused(samples, "step 9: the gradient of ");
  const RankPool::Step step = pool.train(good, assigned, 9);
  for (const Status& status : step.statuses) CHECK(status.ok());
  CHECK(pool.masters() != before);
}

TEST_CASE("ranks that disagree about the step refuse it") {
  RankPool pool("llama_tied", rank_options(), 2);
  const auto samples = uneven_samples(2);
  const Deadline deadline = Deadline::after(std::chrono::seconds(60));
  const auto check = [&](const std::string& word,
                         const std::function<StatusOr<StepReport>(int32_t, Trainer&)>& step) {
    for (const Status& status : pool.run([&](int32_t rank, Trainer&t) { return step(rank, t).status(); })) {
      const std::string message(message_of(status));
      CAPTURE(message, word);
      CHECK(exit_code(status) == ExitCode::kInternal);
      CHECK(message.find(word) != std::string::npos);
    }
  };
  const auto mine = [&](int32_t rank) { return std::span(samples).subspan(static_cast<size_t>(rank), 1); };
  check("takes step", [&](int32_t rank, Trainer& t) {
    const std::vector<int64_t> places{rank};
    return t.train_step(mine(rank), static_cast<uint64_t>(rank), {}, places, deadline);
  });
  check("have place 5", [&](int32_t rank, Trainer& t) {
    return t.train_step(mine(rank), 1, {}, std::vector<int64_t>{5}, deadline);
  });
  check("places in the step",
        [&](int32_t rank, Trainer& t) { return t.train_step(mine(rank), 1, {}, {}, deadline); });
  check("the step has 7 samples", [&](int32_t rank, Trainer& t) {
    const std::vector<int64_t> places{rank};
    return t.train_step(mine(rank), 1, {0, 7}, places, deadline);
  });
  // Alone and unconnected.
  TrainerOptions options = rank_options();
  options.size = 2;
  Fixture f("llama_tied", options);
  const auto report = f.trainer->train_step(samples, 1, {}, std::vector<int64_t>{0, 1});
  CHECK(std::string(message_of(report.status())).find("not connected") != std::string::npos);
}

TEST_CASE("a lost rank is an error on the others") {
  RankPool pool("llama_tied", rank_options(), 3);
  const auto samples = uneven_samples(3);
  const auto before = pool.masters();
  const auto statuses = pool.run([&](int32_t rank, Trainer& trainer) -> Status {
    if (rank == 1) return absl::OkStatus();
    const std::vector<int64_t> places{rank};
    return trainer
        .train_step(std::span(samples).subspan(static_cast<size_t>(rank), 1), 1, {}, places,
                    Deadline::after(std::chrono::seconds(20)))
        .status();
  });
  CHECK(exit_code(statuses[0]) == ExitCode::kUnavailable);
  CHECK(exit_code(statuses[2]) == ExitCode::kUnavailable);
  CHECK(pool.masters() == before);
}

TEST_CASE("state saved by 4 ranks continues on 1, 2 and 4") {
  const auto samples = uneven_samples(4);
  TrainerOptions options = rank_options();
  RankPool four("qwen3_moe", options, 4, everywhere(WeightFormat::kMXFP8));
  four.train(samples, 1);
  four.export_weights();
  std::map<std::string, std::vector<float>> saved;
  for (const auto& fixture : four.ranks) {
    for (const StateTensor& tensor : fixture->trainer->state()) saved[tensor.name] = values_of(tensor);
  }
  const auto masters = four.masters();
  four.train(samples, 2);
  for (const int32_t size : {1, 2, 4}) {
    CAPTURE(size);
    RankPool pool("qwen3_moe", options, size, everywhere(WeightFormat::kMXFP8));
    for (const auto& fixture : pool.ranks) {
      for (const StateTensor& tensor : fixture->trainer->state()) {
        const auto& values = saved.at(tensor.name);
        REQUIRE(values.size() == static_cast<size_t>(tensor.numel));
        REQUIRE(tensor.write(values).ok());
      }
      fixture->trainer->set_optimizer_steps(1);
    }
    pool.export_weights();
    CHECK(pool.masters() == masters);
    pool.train(samples, 2);
    if (size == 4) {
      CHECK(pool.masters() == four.masters());
    } else {
      CHECK(worst_master(pool.masters(), four.masters(), four.gradients()) < 1e-5);
    }
  }
}

}  // namespace accord::trainer
