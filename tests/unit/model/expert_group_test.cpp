// Experts spread over the places of a group: the same bits as on one place.
#include <algorithm>
#include <atomic>
#include <cstring>
#include <numeric>
#include <thread>

#include "checkpoint/hf_config.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"
#include "support/group.hpp"

namespace accord::model::testing {
namespace {

using accord::testing::require_all_ok;
using accord::testing::run_group;
using accord::testing::soon;

using Sequences = std::vector<std::vector<int32_t>>;

// One packed batch: each sequence on pages of its own.
struct Packed {
  explicit Packed(const Sequences& sequences) {
    for (const auto& sequence : sequences) {
      for (size_t i = 0; i < sequence.size(); i += kPageSize) {
        pages.push_back(static_cast<int32_t>(pages.size()) * static_cast<int32_t>(kPageSize));
      }
    }
    int32_t page = 0;
    for (const auto& sequence : sequences) {
      const auto count = static_cast<int32_t>(sequence.size());
      segments.push_back({static_cast<int32_t>(tokens.size()), count, 0, pages.data() + page});
      for (int32_t i = 0; i < count; ++i) {
        tokens.push_back(sequence[static_cast<size_t>(i)]);
        positions.push_back(i);
        kv_rows.push_back(pages[static_cast<size_t>(page + i / kPageSize)] + i % kPageSize);
      }
      page += (count + static_cast<int32_t>(kPageSize) - 1) / static_cast<int32_t>(kPageSize);
    }
  }
  Batch batch() const { return {tokens, positions, kv_rows, segments}; }
  int64_t cache_rows() const { return static_cast<int64_t>(pages.size()) * kPageSize; }

  std::vector<int32_t> tokens, positions, kv_rows, pages;
  std::vector<Segment> segments;
};

struct Output {
  std::vector<float> logits;
  std::vector<int32_t> routing;  // [layers, T, K]
  bool operator==(const Output& other) const {
    return routing == other.routing && logits.size() == other.logits.size() &&
           (logits.empty() ||
            std::memcmp(logits.data(), other.logits.data(), logits.size() * sizeof(float)) == 0);
  }
};

// The whole forward. `replay` [layers, T, K] may be empty.
StatusOr<Output> forward(Model& model, const Sequences& sequences, std::span<const int32_t> replay = {}) {
  const ModelConfig& c = model.config();
  const Packed packed(sequences);
  const Batch batch = packed.batch();
  const int64_t rows = batch.num_rows();
  const int64_t width = c.num_kv_heads * c.head_dim;
  Buffer x_buffer, keys, values, logits_buffer;
  const MatrixView x = x_buffer.matrix(model.compute_dtype(), rows, c.hidden_size);
  const KvLayer kv{keys.matrix(model.compute_dtype(), packed.cache_rows(), width),
                   values.matrix(model.compute_dtype(), packed.cache_rows(), width)};
  Output out;
  model.embed(batch, x);
  const auto ids = static_cast<size_t>(rows * c.num_experts_per_token);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    std::vector<int32_t> record;
    const Routing routing{&record,
                          replay.empty() ? replay : replay.subspan(static_cast<size_t>(layer) * ids, ids)};
    if (model.expert_exchange() != nullptr) {
      model.expert_exchange()->set_deadline(soon());
    }
    ACCORD_RETURN_IF_ERROR(model.layer_forward(layer, batch, kv, x, routing, nullptr));
    out.routing.insert(out.routing.end(), record.begin(), record.end());
  }
  std::vector<int32_t> all(static_cast<size_t>(rows));
  std::iota(all.begin(), all.end(), 0);
  const MatrixView logits = logits_buffer.matrix(Dtype::kF32, rows, c.vocab_size);
  if (rows > 0) {
    model.logits(x, all, logits);
    out.logits.assign(logits.row<float>(0), logits.row<float>(0) + rows * c.vocab_size);
  }
  return out;
}

// A copy of the weights in which the experts outside [first, first + held) are NaN bytes.
TestWeights poisoned(const ModelConfig& c, const TestWeights& weights, int64_t first, int64_t held) {
  TestWeights out;
  out.manifest = weights.manifest;
  out.arena.ensure(static_cast<size_t>(weights.manifest.arena_bytes));
  std::memcpy(out.arena.data(), weights.arena.data(), static_cast<size_t>(weights.manifest.arena_bytes));
  const std::vector<ParamSpec> specs = parameter_specs(c);
  for (size_t i = 0; i < specs.size(); ++i) {
    const int64_t expert = specs[i].expert;
    if (expert < 0 || (expert >= first && expert < first + held)) {
      continue;
    }
    const WeightEntry& e = out.manifest.entries[i];
    auto* arena = out.arena.as<uint8_t>();
    std::memset(arena + e.data_offset, 0xff, static_cast<size_t>(e.data_bytes));
    std::memset(arena + e.scale_offset, 0xff, static_cast<size_t>(e.scale_bytes));
    std::memset(arena + e.outer_offset, 0xff, static_cast<size_t>(e.outer_bytes));
  }
  return out;
}

StatusOr<std::unique_ptr<Model>> group_model(const ModelConfig& c, const TestWeights& weights, Dtype dtype,
                                             ThreadPool& pool, Communicator& group) {
  ACCORD_ASSIGN_OR_RETURN(PolicyWeights bound, bind_weights(c, weights.manifest, weights.arena.data()));
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<Model> model, Model::create(c, std::move(bound), dtype, pool));
  ACCORD_RETURN_IF_ERROR(model->set_expert_group(&group));
  return model;
}

// Sequences of each place, of these lengths.
std::vector<Sequences> places_of(const ModelConfig& c, const std::vector<std::vector<int32_t>>& lengths) {
  std::vector<Sequences> out;
  int32_t token = 5;
  for (const auto& place : lengths) {
    out.emplace_back();
    for (const int32_t length : place) {
      out.back().emplace_back();
      for (int32_t i = 0; i < length; ++i) {
        token = (token * 31 + 7) % static_cast<int32_t>(c.vocab_size);
        out.back().back().push_back(token);
      }
    }
  }
  return out;
}

// All experts of a row in [first, first + K), for every row of every layer.
std::vector<int32_t> same_experts(const ModelConfig& c, const Sequences& sequences, int32_t first) {
  size_t rows = 0;
  for (const auto& sequence : sequences) rows += sequence.size();
  std::vector<int32_t> ids;
  for (size_t i = 0; i < rows * static_cast<size_t>(c.num_layers); ++i) {
    for (int32_t k = 0; k < c.num_experts_per_token; ++k) ids.push_back(first + k);
  }
  return ids;
}

void check_places(const ModelConfig& c, const TestWeights& weights, Dtype dtype,
                  const std::vector<Sequences>& places, int32_t replayed_first = -1) {
  const auto num_places = static_cast<int64_t>(places.size());
  ThreadPool pool(2);
  const auto alone = make_model(c, weights, dtype, pool);
  std::vector<std::vector<int32_t>> replays;
  std::vector<Output> expected, got(places.size());
  for (const Sequences& sequences : places) {
    replays.push_back(replayed_first < 0 ? std::vector<int32_t>()
                                         : same_experts(c, sequences, replayed_first));
    auto out = forward(*alone, sequences, replays.back());
    REQUIRE(out.ok());
    expected.push_back(std::move(*out));
  }
  require_all_ok(run_group(static_cast<int>(num_places), "forward", [&](Communicator& group) -> Status {
    const auto place = static_cast<size_t>(group.rank());
    const int64_t held = c.num_experts / num_places;
    const TestWeights mine = poisoned(c, weights, group.rank() * held, held);
    ThreadPool threads(1 + group.rank() % 2);
    ACCORD_ASSIGN_OR_RETURN(const auto model, group_model(c, mine, dtype, threads, group));
    // Twice: buffers of an earlier call do not matter.
    for (int i = 0; i < 2; ++i) {
      ACCORD_ASSIGN_OR_RETURN(got[place], forward(*model, places[place], replays[place]));
    }
    return absl::OkStatus();
  }));
  for (size_t p = 0; p < places.size(); ++p) {
    CAPTURE(p, num_places);
    CHECK((got[p] == expected[p]));
  }
}

constexpr WeightFormat kFormats[] = {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4};
constexpr Dtype kDtypes[] = {Dtype::kF32, Dtype::kBF16};

}  // namespace

TEST_CASE("Experts on one and two and four places give the same bits and read no other weights") {
  const ModelConfig c = small_config(true);
  for (const WeightFormat format : kFormats) {
    const TestWeights weights = random_weights(c, format, 3);
    for (const Dtype dtype : kDtypes) {
      CAPTURE(static_cast<int>(format), static_cast<int>(dtype));
      check_places(c, weights, dtype, places_of(c, {{23, 40, 1}}));
      check_places(c, weights, dtype, places_of(c, {{23, 1}, {}}));
      check_places(c, weights, dtype, places_of(c, {{3}, {70, 2, 19}}));
      check_places(c, weights, dtype, places_of(c, {{1}, {}, {31, 17}, {90}}));
      check_places(c, weights, dtype, places_of(c, {{}, {}, {}, {}}));
    }
  }
}

TEST_CASE("Experts without a row and replayed experts of one place only") {
  const ModelConfig c = small_config(true);
  const TestWeights weights = random_weights(c, WeightFormat::kMXFP8, 4);
  for (const int32_t first : {0, 3, 5}) {
    CAPTURE(first);
    check_places(c, weights, Dtype::kBF16, places_of(c, {{9, 33}, {}, {5}, {2}}), first);
    check_places(c, weights, Dtype::kBF16, places_of(c, {{300}, {1}}), first);
  }
}

TEST_CASE("A checkpoint's experts on two places give the same bits") {
  const std::string dir = std::string(ACCORD_TEST_DATA) + "/hf/qwen3_moe";
  const auto config = checkpoint::read_hf_config(dir);
  REQUIRE(config.ok());
  const TestWeights weights = checkpoint_weights(config->model, dir, WeightFormat::kBF16);
  check_places(config->model, weights, Dtype::kF32, places_of(config->model, {{40}, {7, 21}}));
}

TEST_CASE("Experts of different formats give the same bits on any number of places") {
  const ModelConfig c = small_config(true);
  const TestWeights plain = random_weights(c, WeightFormat::kBF16, 5);
  const TestWeights quantized = random_weights(c, WeightFormat::kMXFP8, 5);
  const auto mixed = [&](Communicator* group, ThreadPool& pool) -> StatusOr<std::unique_ptr<Model>> {
    ACCORD_ASSIGN_OR_RETURN(PolicyWeights a, bind_weights(c, plain.manifest, plain.arena.data()));
    ACCORD_ASSIGN_OR_RETURN(PolicyWeights b, bind_weights(c, quantized.manifest, quantized.arena.data()));
    a.layers[0].mlp[1] = b.layers[0].mlp[1];
    a.layers[1].mlp[6].up = b.layers[1].mlp[6].up;
    ACCORD_ASSIGN_OR_RETURN(auto model, Model::create(c, std::move(a), Dtype::kBF16, pool));
    ACCORD_RETURN_IF_ERROR(model->set_expert_group(group));
    return model;
  };
  const auto places = places_of(c, {{30, 2}, {11}});
  ThreadPool pool(2);
  const auto alone = mixed(nullptr, pool);
  REQUIRE(alone.ok());
  std::vector<Output> got(2);
  require_all_ok(run_group(2, "mixed", [&](Communicator& group) -> Status {
    ThreadPool threads(2);
    ACCORD_ASSIGN_OR_RETURN(const auto model, mixed(&group, threads));
    const auto place = static_cast<size_t>(group.rank());
    ACCORD_ASSIGN_OR_RETURN(got[place], forward(*model, places[place]));
    return absl::OkStatus();
  }));
  for (size_t p = 0; p < places.size(); ++p) {
    const auto expected = forward(**alone, places[p]);
    REQUIRE(expected.ok());
    CHECK((got[p] == *expected));
  }
}

TEST_CASE("A lost place ends the forward of the others") {
  const ModelConfig c = small_config(true);
  const TestWeights weights = random_weights(c, WeightFormat::kBF16, 6);
  const auto places = places_of(c, {{12}, {5}, {}, {8}});
  const auto begin = Deadline::Clock::now();
  const auto results = run_group(4, "lost", [&](Communicator& group) -> Status {
    if (group.rank() == 2) {
      return absl::OkStatus();  // its connections close
    }
    ThreadPool threads(1);
    ACCORD_ASSIGN_OR_RETURN(const auto model, group_model(c, weights, Dtype::kF32, threads, group));
    return forward(*model, places[static_cast<size_t>(group.rank())]).status();
  });
  CHECK(Deadline::Clock::now() - begin < std::chrono::seconds(20));
  bool named = false;
  for (const size_t rank : {0, 1, 3}) {
    const std::string message(message_of(results[rank]));
    CAPTURE(rank, message);
    CHECK(exit_code(results[rank]) == ExitCode::kUnavailable);
    CHECK(message.find("experts of layer 0: communicator 'lost', rank") == 0);
    named = named || message.find("with rank 2") != std::string::npos;
  }
  CHECK(named);
}

TEST_CASE("A place that does not take part is a missed deadline that names it") {
  const ModelConfig c = small_config(true);
  const TestWeights weights = random_weights(c, WeightFormat::kBF16, 6);
  const auto places = places_of(c, {{12}, {5}});
  std::atomic<bool> over{false};
  const auto results = run_group(2, "hang", [&](Communicator& group) -> Status {
    ThreadPool threads(1);
    ACCORD_ASSIGN_OR_RETURN(const auto model, group_model(c, weights, Dtype::kF32, threads, group));
    if (group.rank() == 1) {
      while (!over) {
        std::this_thread::sleep_for(std::chrono::milliseconds(1));
      }
      return absl::OkStatus();
    }
    Buffer x;
    model->expert_exchange()->set_deadline(soon(200));
    const Batch empty;
    const Status status =
        model->layer_forward(0, empty, {}, x.matrix(Dtype::kF32, 0, c.hidden_size), {}, nullptr);
    over = true;
    return status;
  });
  const std::string message(message_of(results[0]));
  CAPTURE(message);
  CHECK(results[0].code() == absl::StatusCode::kDeadlineExceeded);
  CHECK(message.find("experts of layer 0: communicator 'hang', rank 0 of 2: all_gather with rank 1 missed") ==
        0);
}

TEST_CASE("A group that the experts do not divide into is refused") {
  const ModelConfig c = small_config(true);
  const TestWeights weights = random_weights(c, WeightFormat::kBF16, 6);
  const auto results = run_group(3, "three", [&](Communicator& group) -> Status {
    ThreadPool threads(1);
    return group_model(c, weights, Dtype::kF32, threads, group).status();
  });
  for (const Status& status : results) {
    CHECK(exit_code(status) == ExitCode::kBadRecipe);
    CHECK(std::string(message_of(status)).find("expert_parallel is 3, but the model has 8 experts") !=
          std::string::npos);
  }
}

}  // namespace accord::model::testing
