// Logits, log-probabilities, routing and greedy text of small checkpoints against transformers in fp32.
#include <algorithm>
#include <cmath>
#include <string>

#include "checkpoint/hf_config.hpp"
#include "checkpoint/safetensors.hpp"
#include "fixture.hpp"
#include "kernels/logprob/logprob.hpp"
#include "support/catch.hpp"

namespace accord::model::testing {
namespace {

constexpr double kLogitTolerance = 2e-4;
constexpr double kLatentTolerance = 5e-6;

struct Golden {
  ModelConfig config;
  checkpoint::SafetensorsFile file;

  std::vector<float> f32(const std::string& name) const {
    const auto info = file.require(name);
    REQUIRE(info.ok());
    std::vector<float> out(static_cast<size_t>((*info)->numel()));
    REQUIRE(file.read_f32(name, out).ok());
    return out;
  }
  std::vector<int32_t> i32(const std::string& name) const {
    const auto info = file.require(name);
    REQUIRE(info.ok());
    std::vector<int32_t> out(static_cast<size_t>((*info)->numel()));
    REQUIRE(file.read_i32(name, out).ok());
    return out;
  }
};

void check_model(const std::string& name, double tolerance = kLogitTolerance,
                 MlaForm form = kDefaultMlaForm) {
  const std::string dir = std::string(ACCORD_TEST_DATA) + "/hf/" + name;
  auto config = checkpoint::read_hf_config(dir);
  REQUIRE(config.ok());
  auto file = checkpoint::SafetensorsFile::open(dir + "/golden.safetensors");
  REQUIRE(file.ok());
  config->model.mla.form = form;
  const Golden golden{config->model, std::move(*file)};
  const ModelConfig& c = golden.config;
  const TestWeights weights = checkpoint_weights(c, dir, WeightFormat::kBF16);
  ThreadPool pool(2);
  const auto model = make_model(c, weights, Dtype::kF32, pool);

  constexpr int32_t kBatch = 3;
  constexpr int32_t kLength = 40;
  const std::vector<int32_t> ids = golden.i32("input_ids");
  std::vector<std::vector<int32_t>> sequences;
  std::vector<Piece> pieces;
  for (int32_t b = 0; b < kBatch; ++b) {
    sequences.emplace_back(ids.begin() + b * kLength, ids.begin() + (b + 1) * kLength);
    pieces.push_back({b, 0, kLength});
  }
  Runner runner(*model, sequences, 7);
  runner.run(pieces);

  SECTION("logits and log-probabilities") {
    const std::vector<float> logits = golden.f32("logits");
    const std::vector<float> logprobs = golden.f32("logprobs");
    double worst_logit = 0.0;
    double worst_logprob = 0.0;
    for (int32_t b = 0; b < kBatch; ++b) {
      const std::vector<float>& mine = runner.logits(b);
      for (size_t i = 0; i < mine.size(); ++i) {
        const double diff = std::abs(double{mine[i]} - logits[static_cast<size_t>(b) * mine.size() + i]);
        worst_logit = std::max(worst_logit, std::isnan(diff) ? 1e9 : diff);
      }
      for (int32_t t = 0; t + 1 < kLength; ++t) {
        const float lp =
            kernels::token_logprob(mine.data() + t * c.vocab_size, c.vocab_size,
                                   sequences[static_cast<size_t>(b)][static_cast<size_t>(t) + 1], 1.0F);
        const double diff = std::abs(double{lp} - logprobs[static_cast<size_t>(b * (kLength - 1) + t)]);
        worst_logprob = std::max(worst_logprob, std::isnan(diff) ? 1e9 : diff);
      }
    }
    CAPTURE(worst_logit, worst_logprob);
    CHECK(worst_logit < tolerance);
    CHECK(worst_logprob < tolerance);
  }

  SECTION("routing") {
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      if (c.layer_is_moe[static_cast<size_t>(layer)]) {
        const std::string key = "router.model.layers." + std::to_string(layer) + ".mlp.gate.2";
        CHECK(runner.expert_ids()[static_cast<size_t>(layer)] == golden.i32(key));
      }
    }
  }

  SECTION("greedy continuation") {
    const std::vector<int32_t> greedy = golden.i32("greedy");
    constexpr int32_t kPrompt = 8;
    Runner decoder(*model, {{greedy.begin(), greedy.begin() + kPrompt}}, 3);
    decoder.run({{0, 0, kPrompt}});
    std::vector<int32_t> text(greedy.begin(), greedy.begin() + kPrompt);
    while (text.size() < greedy.size()) {
      const float* last = decoder.logits(0).data() + (static_cast<int64_t>(text.size()) - 1) * c.vocab_size;
      const auto next = static_cast<int32_t>(std::max_element(last, last + c.vocab_size) - last);
      text.push_back(next);
      decoder.append(0, next);
      decoder.run({{0, decoder.length(0) - 1, 1}});
    }
    CHECK(text == greedy);
  }
}

}  // namespace

TEST_CASE("qwen3_moe agrees with transformers") { check_model("qwen3_moe"); }
TEST_CASE("qwen3_dense_tied agrees with transformers") { check_model("qwen3_dense_tied"); }
TEST_CASE("deepseek_v3_mla agrees with transformers in the plain form") {
  check_model("deepseek_v3_mla", kLatentTolerance, MlaForm::kPlain);
}
TEST_CASE("deepseek_v3_mla agrees with transformers in the absorbed form") {
  check_model("deepseek_v3_mla", kLatentTolerance, MlaForm::kAbsorbed);
}
TEST_CASE("llama_tied agrees with transformers") { check_model("llama_tied"); }

}  // namespace accord::model::testing
