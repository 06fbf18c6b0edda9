// Refusals of bad manifests, batches and routings; routing replay; the tape's bookkeeping.
#include <cstring>
#include <numeric>

#include "fixture.hpp"
#include "support/catch.hpp"

namespace accord::model::testing {
namespace {

std::string bind_error(const ModelConfig& c, const WeightManifest& manifest, const Buffer& arena) {
  const auto bound = bind_weights(c, manifest, arena.data());
  REQUIRE(!bound.ok());
  return std::string(message_of(bound.status()));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

// One sequence of `rows` tokens on consecutive cache rows.
struct OneSequence {
  explicit OneSequence(int32_t rows) : tokens(static_cast<size_t>(rows)), positions(tokens.size()) {
    for (size_t i = 0; i < tokens.size(); ++i) tokens[i] = static_cast<int32_t>(i * 7 % 200);
    std::iota(positions.begin(), positions.end(), 0);
    for (int32_t p = 0; p < rows; p += kPageSize) pages.push_back(p);
    segment = {0, rows, 0, pages.data()};
  }
  Batch batch() const { return {tokens, positions, positions, std::span(&segment, 1)}; }

  std::vector<int32_t> tokens;
  std::vector<int32_t> positions;
  std::vector<int32_t> pages;
  Segment segment;
};

}  // namespace

TEST_CASE("Binding names what is wrong with a manifest") {
  const ModelConfig c = small_config(true);
  const TestWeights good = random_weights(c, WeightFormat::kMXFP8, 1);
  const std::string expert = "model.layers.1.mlp.experts.3.up_proj.weight";
  const auto entry = [&](WeightManifest& m, const std::string& name) -> WeightEntry& {
    for (WeightEntry& e : m.entries) {
      if (e.name == name) return e;
    }
    FAIL("no entry " << name);
    return m.entries[0];
  };
  WeightManifest m = good.manifest;
  entry(m, expert).name = "elsewhere";
  CHECK(contains(bind_error(c, m, good.arena), "'" + expert + "' is missing"));
  m = good.manifest;
  entry(m, expert).shape[0] += 1;
  CHECK(contains(bind_error(c, m, good.arena), expert));
  m = good.manifest;
  entry(m, expert).scale_bytes -= 1;
  CHECK(contains(bind_error(c, m, good.arena), "bytes of scales"));
  m = good.manifest;
  entry(m, expert).data_offset = m.arena_bytes;
  CHECK(contains(bind_error(c, m, good.arena), "outside the arena"));
  m = good.manifest;
  WeightEntry& norm = entry(m, "model.norm.weight");
  norm.format = WeightFormat::kMXFP8;
  norm.data_bytes /= 2;
  CHECK(contains(bind_error(c, m, good.arena), "must be BF16"));
}

TEST_CASE("Batches that do not fit the model or the cache are refused") {
  const ModelConfig c = small_config(true);
  const TestWeights weights = random_weights(c, WeightFormat::kBF16, 1);
  ThreadPool pool(1);
  const auto model = make_model(c, weights, Dtype::kF32, pool);
  const OneSequence good(20);
  CHECK(model->check(good.batch(), 32).ok());
  CHECK_FALSE(model->check(good.batch(), 16).ok());
  OneSequence bad = good;
  bad.segment.pages = bad.pages.data();
  bad.tokens[4] = static_cast<int32_t>(c.vocab_size);
  CHECK(contains(std::string(message_of(model->check(bad.batch(), 32))), "row 4"));
  bad.tokens[4] = -1;
  CHECK_FALSE(model->check(bad.batch(), 32).ok());
  bad.tokens[4] = 0;
  CHECK(model->check(bad.batch(), 32).ok());
  bad.positions[3] = 4;
  CHECK_FALSE(model->check(bad.batch(), 32).ok());
  bad.positions[3] = 3;
  bad.segment.num_rows = 19;
  CHECK(contains(std::string(message_of(model->check(bad.batch(), 32))), "in no segment"));
  bad.segment.num_rows = 21;
  CHECK_FALSE(model->check(bad.batch(), 32).ok());

  const std::vector<int32_t> ids = {0, 1, 2, 7, 3, 5};
  CHECK(model->check_replay(ids, 2).ok());
  CHECK_FALSE(model->check_replay(ids, 3).ok());
  CHECK_FALSE(model->check_replay(std::vector<int32_t>{0, 1, 8}, 1).ok());
  CHECK_FALSE(model->check_replay(std::vector<int32_t>{0, 1, 1}, 1).ok());
}

TEST_CASE("Replayed routing is taken as given and replaying one's own changes nothing") {
  const ModelConfig c = small_config(true);
  const TestWeights weights = random_weights(c, WeightFormat::kMXFP8, 2);
  ThreadPool pool(2);
  const auto model = make_model(c, weights, Dtype::kBF16, pool);
  constexpr int32_t kRows = 40;
  const OneSequence sequence(kRows);
  const Batch batch = sequence.batch();
  const int64_t width = c.num_kv_heads * c.head_dim;
  Buffer keys, values, x_buffer;
  const KvLayer kv{keys.matrix(Dtype::kBF16, 48, width), values.matrix(Dtype::kBF16, 48, width)};
  const auto run = [&](Routing routing, LayerTape* tape) {
    const MatrixView x = x_buffer.matrix(Dtype::kBF16, kRows, c.hidden_size);
    model->embed(batch, x);
    REQUIRE(model->layer_forward(0, batch, kv, x, routing, tape).ok());
    std::vector<uint16_t> out(static_cast<size_t>(kRows * c.hidden_size));
    std::memcpy(out.data(), x.data, out.size() * sizeof(uint16_t));
    return out;
  };
  std::vector<int32_t> recorded;
  const auto live = run({&recorded, {}}, nullptr);
  REQUIRE(recorded.size() == static_cast<size_t>(kRows * c.num_experts_per_token));
  LayerTape tape;
  CHECK(run({nullptr, recorded}, &tape) == live);
  CHECK(tape.topk_ids == recorded);

  std::vector<int32_t> other = recorded;
  for (int32_t& id : other) id = (id + 1) % static_cast<int32_t>(c.num_experts);
  std::vector<int32_t> seen;
  CHECK(run({&seen, other}, &tape) != live);
  CHECK(seen == other);
  const auto k = static_cast<size_t>(c.num_experts_per_token);
  CHECK(tape.expert_offsets.back() == static_cast<int32_t>(other.size()));
  for (size_t r = 0; r < tape.sorted_tokens.size(); ++r) {
    const auto expert = static_cast<size_t>(
        other[static_cast<size_t>(tape.sorted_tokens[r]) * k + static_cast<size_t>(tape.sorted_slots[r])]);
    CHECK(static_cast<int32_t>(r) >= tape.expert_offsets[expert]);
    CHECK(static_cast<int32_t>(r) < tape.expert_offsets[expert + 1]);
  }
  const float* weight = tape.topk_weights.as<float>();
  for (int32_t t = 0; t < kRows; ++t) {
    float sum = 0.0F;
    for (size_t s = 0; s < k; ++s) sum += weight[static_cast<size_t>(t) * k + s];
    CHECK(sum == Approx(1.0F));
  }
}

}  // namespace accord::model::testing
