// A pass whose experts are spread over the places of a group, against the pass of one place.
#include <algorithm>
#include <cmath>
#include <cstring>

#include "base/philox.hpp"
#include "support/catch.hpp"
#include "support/group.hpp"
#include "trainer/pass.hpp"
#include "unit/trainer/fixture.hpp"
#include "unit/trainer/tolerance.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace accord::trainer {
namespace {

using accord::testing::require_all_ok;
using accord::testing::run_group;
using accord::testing::soon;
using recipe::BackwardMode;

struct Mode {
  WeightFormat format;
  BackwardMode backward;
  Dtype dtype;
};

constexpr Mode kModes[] = {
    {WeightFormat::kBF16, BackwardMode::kHighPrecision, Dtype::kF32},
    {WeightFormat::kBF16, BackwardMode::kHighPrecision, Dtype::kBF16},
    {WeightFormat::kMXFP8, BackwardMode::kHighPrecision, Dtype::kF32},
    {WeightFormat::kMXFP8, BackwardMode::kHighPrecision, Dtype::kBF16},
    {WeightFormat::kMXFP8, BackwardMode::kDequantized, Dtype::kBF16},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized, Dtype::kF32},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized, Dtype::kBF16},
    {WeightFormat::kNVFP4, BackwardMode::kHighPrecision, Dtype::kBF16},
    {WeightFormat::kNVFP4, BackwardMode::kDequantized, Dtype::kF32},
};

using Lengths = std::vector<int32_t>;               // of a place's sequences
using Gradients = std::vector<std::vector<float>>;  // per parameter

std::vector<std::vector<int32_t>> sequences_of(const ModelConfig& c, const Lengths& lengths) {
  std::vector<std::vector<int32_t>> out;
  for (const int32_t length : lengths) {
    PhiloxStream random(11, static_cast<uint64_t>(length));
    out.emplace_back();
    for (int32_t i = 0; i < length; ++i) {
      out.back().push_back(static_cast<int32_t>(random.next_below(static_cast<uint64_t>(c.vocab_size))));
    }
  }
  return out;
}

// What a place's pass left.
struct Outcome {
  Gradients gradients;
  std::vector<float> logprobs;  // of the response tokens
};

// A policy with random masters: its arena and one pass. Without Catch's macros, for threads.
class Place {
 public:
  Place(const ModelConfig& model, const Mode& mode) : config(model), mode_(mode) {}

  // `first_held` < 0: all experts. Others' weights become NaN, in the arena and among the masters.
  Status build(int64_t activation_bytes, Communicator* group) {
    recipe::PrecisionPart precision = mxfp8_everywhere();
    precision.configs[0].format = mode_.format;
    precision.backward = mode_.backward;
    if (mode_.format == WeightFormat::kBF16) precision = {};
    ACCORD_ASSIGN_OR_RETURN(const auto plan, precision::build_plan(config, precision));
    ACCORD_ASSIGN_OR_RETURN(manifest, weights::build_manifest(config, plan));
    ACCORD_ASSIGN_OR_RETURN(arena, weights::Arena::create(manifest.arena_bytes));
    ACCORD_ASSIGN_OR_RETURN(Parameters made, Parameters::create(config, {}));
    parameters = std::make_unique<Parameters>(std::move(made));
    PhiloxStream random(7, 0);
    for (int64_t i = 0; i < parameters->count(); ++i) {
      const bool norm = parameters->specs()[static_cast<size_t>(i)].role == ParamRole::kNorm;
      for (float& value : parameters->master(i)) {
        value = static_cast<float>(random.next_normal() * 0.1) + (norm ? 1.0F : 0.0F);
      }
    }
    const auto masters = [&](const std::string& name) -> StatusOr<weights::Master> {
      return weights::Master(std::span<const float>(parameters->master(parameters->index(name))));
    };
    ACCORD_RETURN_IF_ERROR(weights::export_weights(manifest, plan, masters, *arena, pool).status());
    if (group != nullptr) poison(group->rank(), group->size());
    ACCORD_ASSIGN_OR_RETURN(auto bound, model::bind_weights(config, manifest, arena->data()));
    ACCORD_ASSIGN_OR_RETURN(model_, model::Model::create(config, std::move(bound), mode_.dtype, pool));
    ACCORD_RETURN_IF_ERROR(model_->set_expert_group(group));
    workspace = std::make_unique<Workspace>(config, *parameters, pool, mode_.dtype,
                                            BackwardOptions{mode_.backward, {}});
    pass = std::make_unique<Pass>(*workspace, *model_, activation_bytes);
    return absl::OkStatus();
  }

  void renew() {
    if (model_->expert_exchange() != nullptr) model_->expert_exchange()->set_deadline(soon());
  }

  // One micro-batch, forward and backward (or forward alone), from gradients of zero.
  StatusOr<Outcome> run(const Lengths& lengths, const PassRouting& routing = {}, bool backward = true) {
    const auto tokens = sequences_of(config, lengths);
    std::vector<Sequence> sequences;
    for (const auto& t : tokens) sequences.push_back({t, 2});
    PackedBatch packed;
    packed.build(sequences);
    const std::vector<float> temperatures(sequences.size(), 0.9F);
    Outcome out;
    out.logprobs.resize(packed.response_rows().size());
    const TokenLossFn loss = [&](int64_t token, const TokenValue& value) {
      const size_t t = static_cast<size_t>(token);
      out.logprobs[t] = value.logprob;
      return TokenGradient{0.01 * (packed.response_tokens()[t] % 13 - 6), 0.001};
    };
    parameters->clear_gradients();
    renew();
    ACCORD_RETURN_IF_ERROR(backward ? pass->forward_backward(packed, temperatures, routing, loss)
                                    : pass->forward(packed, temperatures, routing, loss));
    for (int64_t i = 0; i < parameters->count(); ++i) {
      const auto g = parameters->gradient(i);
      out.gradients.emplace_back(g.begin(), g.end());
    }
    return out;
  }

  int64_t expert_of(int64_t parameter) const {
    return parameters->specs()[static_cast<size_t>(parameter)].expert;
  }

  const ModelConfig config;
  ThreadPool pool{2};
  WeightManifest manifest;
  std::unique_ptr<weights::Arena> arena;
  std::unique_ptr<Parameters> parameters;
  std::unique_ptr<Workspace> workspace;
  std::unique_ptr<Pass> pass;

 private:
  void poison(int64_t place, int64_t places) {
    const int64_t held = config.num_experts / places;
    for (int64_t i = 0; i < parameters->count(); ++i) {
      if (expert_of(i) < 0 || expert_of(i) / held == place) continue;
      for (float& value : parameters->master(i)) value = NAN;
      const WeightEntry& e = manifest.entries[static_cast<size_t>(i)];
      std::byte* bytes = arena->data();
      std::memset(bytes + e.data_offset, 0xff, static_cast<size_t>(e.data_bytes));
      std::memset(bytes + e.scale_offset, 0xff, static_cast<size_t>(e.scale_bytes));
      std::memset(bytes + e.outer_offset, 0xff, static_cast<size_t>(e.outer_bytes));
    }
  }

  const Mode mode_;
  std::unique_ptr<model::Model> model_;
};

constexpr int64_t kKeepAll = int64_t{1} << 30;

Outcome alone(const ModelConfig& c, const Mode& mode, const Lengths& lengths,
              int64_t activation_bytes = kKeepAll) {
  Place place(c, mode);
  REQUIRE(place.build(activation_bytes, nullptr).ok());
  return value_of(place.run(lengths));
}

std::vector<Outcome> together(const ModelConfig& c, const Mode& mode, const std::vector<Lengths>& lengths,
                              int64_t activation_bytes = kKeepAll) {
  std::vector<Outcome> out(lengths.size());
  require_all_ok(run_group(static_cast<int>(lengths.size()), "pass", [&](Communicator& group) -> Status {
    const auto p = static_cast<size_t>(group.rank());
    Place place(c, mode);
    ACCORD_RETURN_IF_ERROR(place.build(activation_bytes, &group));
    ACCORD_ASSIGN_OR_RETURN(out[p], place.run(lengths[p]));
    return absl::OkStatus();
  }));
  return out;
}

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() &&
         (a.empty() || std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0);
}

bool is_zero(const std::vector<float>& a) {
  return std::all_of(a.begin(), a.end(), [](float value) { return value == 0.0F; });
}

// Relative Frobenius norm of the difference; NaN when either holds one.
double distance(const std::vector<float>& mine, const std::vector<double>& reference) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < mine.size(); ++i) {
    error += (mine[i] - reference[i]) * (mine[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return norm == 0.0 ? std::sqrt(error) : std::sqrt(error / norm);
}

}  // namespace

TEST_CASE("one place's rows alone give the gradients of one place bit for bit") {
  const ModelConfig c = moe_config();
  const std::vector<ParamSpec> specs = parameter_specs(c);
  const Lengths lengths{23, 41, 6};
  for (const Mode& mode : kModes) {
    CAPTURE(static_cast<int>(mode.format), static_cast<int>(mode.backward), static_cast<int>(mode.dtype));
    const Outcome expected = alone(c, mode, lengths);
    for (const size_t places : {2, 4}) {
      const size_t home = places - 1;
      std::vector<Lengths> all(places);
      all[home] = lengths;
      const std::vector<Outcome> got = together(c, mode, all);
      CAPTURE(places);
      CHECK(same_bits(got[home].logprobs, expected.logprobs));
      for (size_t p = 0; p < places; ++p) {
        const int64_t held = c.num_experts / static_cast<int64_t>(places);
        for (size_t i = 0; i < specs.size(); ++i) {
          const bool here =
              specs[i].expert < 0 ? p == home : specs[i].expert / held == static_cast<int64_t>(p);
          CAPTURE(p, specs[i].name);
          if (here) {
            CHECK(same_bits(got[p].gradients[i], expected.gradients[i]));
          } else {
            CHECK(is_zero(got[p].gradients[i]));
          }
        }
      }
    }
  }
}

TEST_CASE("gradients of rows on several places are those of one place") {
  const ModelConfig c = moe_config();
  const std::vector<ParamSpec> specs = parameter_specs(c);
  const std::vector<std::vector<Lengths>> arrangements{{{30, 7}, {18}}, {{12}, {}, {33, 21}, {3}}};
  for (const Mode& mode : kModes) {
    CAPTURE(static_cast<int>(mode.format), static_cast<int>(mode.backward), static_cast<int>(mode.dtype));
    for (const std::vector<Lengths>& lengths : arrangements) {
      const std::vector<Outcome> got = together(c, mode, lengths);
      // Each place's micro-batch on one place, and all of them as one: there an expert's rows have the order
      // that they have at its owner.
      std::vector<Outcome> each;
      Lengths joined;
      for (const Lengths& mine : lengths) {
        each.push_back(alone(c, mode, mine));
        joined.insert(joined.end(), mine.begin(), mine.end());
      }
      const Outcome all = alone(c, mode, joined);
      const int64_t held = c.num_experts / static_cast<int64_t>(lengths.size());
      for (size_t p = 0; p < lengths.size(); ++p) {
        CAPTURE(p);
        CHECK(same_bits(got[p].logprobs, each[p].logprobs));
      }
      double worst_dense = 0.0, worst_expert = 0.0;
      for (size_t i = 0; i < specs.size(); ++i) {
        CAPTURE(specs[i].name);
        if (specs[i].expert < 0) {
          for (size_t p = 0; p < lengths.size(); ++p) {
            const auto& mine = each[p].gradients[i];
            worst_dense = std::max(worst_dense, distance(got[p].gradients[i], {mine.begin(), mine.end()}));
          }
          continue;
        }
        const auto& reference = all.gradients[i];
        const auto owner = static_cast<size_t>(specs[i].expert / held);
        worst_expert =
            std::max(worst_expert, distance(got[owner].gradients[i], {reference.begin(), reference.end()}));
        for (size_t p = 0; p < lengths.size(); ++p) {
          if (p != owner) CHECK(is_zero(got[p].gradients[i]));
        }
      }
      CAPTURE(worst_dense, worst_expert);
      CHECK(worst_dense <= tolerance::kExchange);
      CHECK(worst_expert <= tolerance::kExchange);
    }
  }
}

TEST_CASE("layers that keep their tape and recomputed ones give the same bits in a group") {
  const ModelConfig c = moe_config();
  const Mode mode{WeightFormat::kMXFP8, BackwardMode::kQuantized, Dtype::kBF16};
  const std::vector<Lengths> lengths{{12, 40}, {}, {33}, {5}};
  const std::vector<Outcome> kept = together(c, mode, lengths);
  for (const int64_t bytes : {0, 100000, 200000, 300000, 500000}) {
    const std::vector<Outcome> got = together(c, mode, lengths, bytes);
    for (size_t p = 0; p < lengths.size(); ++p) {
      CAPTURE(bytes, p);
      CHECK(same_bits(got[p].logprobs, kept[p].logprobs));
      for (size_t i = 0; i < kept[p].gradients.size(); ++i) {
        CHECK(same_bits(got[p].gradients[i], kept[p].gradients[i]));
      }
    }
  }
}

TEST_CASE("replayed experts and observed routers in a group") {
  const ModelConfig c = moe_config();
  const Mode mode{WeightFormat::kMXFP8, BackwardMode::kDequantized, Dtype::kBF16};
  const Lengths lengths{20, 9};
  const int64_t rows = 19 + 8;
  // All rows to a few experts; the others get none.
  std::vector<int32_t> replay;
  for (int64_t i = 0; i < c.num_layers * rows; ++i) {
    for (int64_t k = 0; k < c.num_experts_per_token; ++k) {
      replay.push_back(static_cast<int32_t>((i % 2 * 3 + k) % c.num_experts));
    }
  }
  const auto run = [&](Place& place, const Lengths& mine, bool backward) -> StatusOr<Outcome> {
    std::vector<float> probs;
    PassRouting routing;
    if (!mine.empty()) {
      routing.replay = replay;
      routing.observe = [&](int64_t, const float* probs_TE, const float*) {
        probs.insert(probs.end(), probs_TE, probs_TE + rows * c.num_experts);
      };
    }
    ACCORD_ASSIGN_OR_RETURN(Outcome out, place.run(mine, routing, backward));
    out.gradients.push_back(probs);
    return out;
  };
  for (const bool backward : {true, false}) {
    CAPTURE(backward);
    Place one(c, mode);
    REQUIRE(one.build(0, nullptr).ok());
    const Outcome expected = value_of(run(one, lengths, backward));
    REQUIRE(!expected.gradients.back().empty());
    CHECK_FALSE(same_bits(expected.logprobs, alone(c, mode, lengths).logprobs));
    std::vector<Outcome> got(2);
    require_all_ok(run_group(2, "replay", [&](Communicator& group) -> Status {
      const auto p = static_cast<size_t>(group.rank());
      Place place(c, mode);
      ACCORD_RETURN_IF_ERROR(place.build(0, &group));
      ACCORD_ASSIGN_OR_RETURN(got[p], run(place, p == 0 ? lengths : Lengths{}, backward));
      return absl::OkStatus();
    }));
    CHECK(same_bits(got[0].logprobs, expected.logprobs));
    CHECK(same_bits(got[0].gradients.back(), expected.gradients.back()));
    const std::vector<ParamSpec> specs = parameter_specs(c);
    for (size_t i = 0; i < specs.size(); ++i) {
      const size_t p = specs[i].expert < 0 ? 0 : static_cast<size_t>(specs[i].expert / (c.num_experts / 2));
      CAPTURE(specs[i].name);
      CHECK(same_bits(got[p].gradients[i], expected.gradients[i]));
    }
  }
}

namespace {

// Passes `calls` collectives on, then the place is gone.
class Leaving final : public Communicator {
 public:
  Leaving(Communicator& group, int calls) : group_(group), left_(calls) {}
  int rank() const override { return group_.rank(); }
  int size() const override { return group_.size(); }
  Status broadcast(void* data, int64_t bytes, int root, Deadline deadline) override {
    return gone() ? lost() : group_.broadcast(data, bytes, root, deadline);
  }
  Status all_reduce_sum(float* data, int64_t count, Deadline deadline) override {
    return gone() ? lost() : group_.all_reduce_sum(data, count, deadline);
  }
  Status all_gather(const void* in, int64_t bytes, void* out, Deadline deadline) override {
    return gone() ? lost() : group_.all_gather(in, bytes, out, deadline);
  }
  Status all_to_all(const void* in, std::span<const int64_t> in_bytes, void* out,
                    std::span<const int64_t> out_bytes, Deadline deadline) override {
    return gone() ? lost() : group_.all_to_all(in, in_bytes, out, out_bytes, deadline);
  }
  Status barrier(Deadline deadline) override { return gone() ? lost() : group_.barrier(deadline); }
  int left() const { return left_; }

 private:
  bool gone() { return left_-- <= 0; }
  static Status lost() { return unavailable_error("this place left"); }

  Communicator& group_;
  int left_;
};

}  // namespace

TEST_CASE("a place lost at any point of a pass ends the others with an error that names it") {
  const ModelConfig c = moe_config();
  const Mode mode{WeightFormat::kBF16, BackwardMode::kHighPrecision, Dtype::kBF16};
  const auto run = [&](int calls, int& left) {
    return run_group(2, "lost", [&](Communicator& group) -> Status {
      Leaving leaving(group, calls);
      Place place(c, mode);
      ACCORD_RETURN_IF_ERROR(place.build(0, group.rank() == 1 ? &leaving : &group));
      const Status status = place.run({9}).status();
      if (group.rank() == 1) left = leaving.left();
      return status;
    });
  };
  constexpr int kMany = 1000;
  int left = 0;
  require_all_ok(run(kMany, left));
  const int calls = kMany - left;
  // The size; per layer a plan and two moves in the forward; those again for its recomputation, and two
  // moves.
  CHECK(calls == 1 + static_cast<int>(c.num_layers) * 8);
  const auto begin = Deadline::Clock::now();
  for (const int stop : {0, 1, 2, 3, calls / 2, calls - 2, calls - 1}) {
    const std::vector<Status> results = run(stop, left);
    const std::string message(message_of(results[0]));
    CAPTURE(stop, message);
    CHECK(exit_code(results[0]) == ExitCode::kUnavailable);
    CHECK(message.find("communicator 'lost', rank 0 of 2: ") != std::string::npos);
    CHECK(message.find("with rank 1 failed") != std::string::npos);
    CHECK((message.find("backward of the experts of layer 0: ") == 0) == (stop >= calls - 2));
  }
  CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(30));
}

}  // namespace accord::trainer
