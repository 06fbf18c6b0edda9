// A row's bits never depend on chunking, packing, pages, other rows or threads (docs/contract.md, section 9).
#include <cmath>
#include <cstring>
#include <limits>

#include "base/philox.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace accord::model::testing {
namespace {

bool same_bits(const std::vector<float>& a, const std::vector<float>& b) {
  return a.size() == b.size() && std::memcmp(a.data(), b.data(), a.size() * sizeof(float)) == 0;
}

std::vector<int32_t> random_tokens(int64_t vocab, int32_t length, uint64_t seed) {
  PhiloxStream random(seed, 5);
  std::vector<int32_t> out;
  for (int32_t i = 0; i < length; ++i) {
    out.push_back(static_cast<int32_t>(random.next_below(static_cast<uint64_t>(vocab))));
  }
  return out;
}

void check_arrangements(const ModelConfig& c, WeightFormat format, Dtype dtype) {
  const TestWeights weights = random_weights(c, format, 11);
  const std::vector<int32_t> text = random_tokens(c.vocab_size, 150, 1);
  const auto length = static_cast<int32_t>(text.size());
  std::vector<float> reference;
  {
    ThreadPool pool(1);
    const auto model = make_model(c, weights, dtype, pool);
    Runner runner(*model, {text}, 0);
    runner.run({{0, 0, length}});
    reference = runner.logits(0);
  }
  for (const float x : reference) REQUIRE(std::isfinite(x));
  for (const int threads : {1, 2, 3}) {
    CAPTURE(threads);
    ThreadPool pool(threads);
    const auto model = make_model(c, weights, dtype, pool);
    {
      Runner runner(*model, {text}, 21);
      for (int32_t at = 0, i = 0; at < length; ++i) {
        const int32_t sizes[] = {1, 7, 3, 33, 2, 64, 19};
        const int32_t count = std::min(sizes[i % 7], length - at);
        runner.run({{0, at, count}});
        at += count;
      }
      INFO("chunked prefill");
      CHECK(same_bits(runner.logits(0), reference));
    }
    {
      Runner runner(*model, {text}, 22);
      for (int32_t at = 0; at < length; ++at) {
        runner.run({{0, at, 1}});
      }
      INFO("token by token");
      CHECK(same_bits(runner.logits(0), reference));
    }
    {
      Runner runner(*model,
                    {random_tokens(c.vocab_size, 31, 2), text, random_tokens(c.vocab_size, 77, 3), text}, 23);
      LayerTape tape;
      runner.run({{2, 0, 70}, {0, 0, 31}, {1, 0, 17}, {3, 0, length}}, &tape);
      runner.run({{1, 17, 40}, {2, 70, 7}});
      runner.run({{2, 0, 77}, {1, 57, length - 57}}, &tape);
      INFO("packed with others");
      CHECK(same_bits(runner.logits(1), reference));
      CHECK(same_bits(runner.logits(3), reference));
    }
  }
}

}  // namespace

TEST_CASE("Logits keep their bits (plain latent attention)") {
  check_arrangements(latent_config(MlaForm::kPlain), WeightFormat::kMXFP8, Dtype::kBF16);
  check_arrangements(latent_config(MlaForm::kPlain), WeightFormat::kNVFP4, Dtype::kBF16);
}
TEST_CASE("Logits keep their bits (absorbed latent attention)") {
  check_arrangements(latent_config(MlaForm::kAbsorbed), WeightFormat::kMXFP8, Dtype::kBF16);
  check_arrangements(latent_config(MlaForm::kAbsorbed), WeightFormat::kNVFP4, Dtype::kBF16);
  check_arrangements(latent_config(MlaForm::kAbsorbed), WeightFormat::kBF16, Dtype::kF32);
}
TEST_CASE("Logits keep their bits (MoE MXFP8 bfloat16)") {
  check_arrangements(small_config(true), WeightFormat::kMXFP8, Dtype::kBF16);
}
TEST_CASE("Logits keep their bits (MoE BF16 bfloat16)") {
  check_arrangements(small_config(true), WeightFormat::kBF16, Dtype::kBF16);
}
TEST_CASE("Logits keep their bits (MoE NVFP4 bfloat16)") {
  check_arrangements(small_config(true), WeightFormat::kNVFP4, Dtype::kBF16);
}
TEST_CASE("Logits keep their bits (MoE MXFP8 float32)") {
  check_arrangements(small_config(true), WeightFormat::kMXFP8, Dtype::kF32);
}
TEST_CASE("Logits keep their bits (dense MXFP8 bfloat16)") {
  check_arrangements(small_config(false), WeightFormat::kMXFP8, Dtype::kBF16);
}
TEST_CASE("Logits keep their bits (dense BF16 float32)") {
  check_arrangements(small_config(false), WeightFormat::kBF16, Dtype::kF32);
}

TEST_CASE("A context of several splits keeps its bits") {
  ModelConfig c = small_config(false);
  c.num_layers = 1;
  c.layer_is_moe = {false};
  const TestWeights weights = random_weights(c, WeightFormat::kBF16, 4);
  const std::vector<int32_t> text = random_tokens(c.vocab_size, 1090, 6);
  ThreadPool pool(2);
  const auto model = make_model(c, weights, Dtype::kBF16, pool);
  Runner whole(*model, {text}, 0);
  whole.run({{0, 0, 1090}});
  Runner parts(*model, {text}, 9);
  parts.run({{0, 0, 500}});
  parts.run({{0, 500, 12}});
  for (int32_t at = 512; at < 530; ++at) parts.run({{0, at, 1}});
  parts.run({{0, 530, 555}});
  for (int32_t at = 1085; at < 1090; ++at) parts.run({{0, at, 1}});
  CHECK(same_bits(parts.logits(0), whole.logits(0)));
}

TEST_CASE("A NaN row disturbs no other row") {
  const ModelConfig c = small_config(true);
  TestWeights weights = random_weights(c, WeightFormat::kMXFP8, 12);
  const std::vector<int32_t> good = {5, 9, 17, 4, 22, 8, 91, 3, 44, 60, 71, 2};
  std::vector<int32_t> bad = good;
  constexpr int32_t kPoisoned = 100;
  bad[6] = kPoisoned;
  auto* embedding =
      reinterpret_cast<BF16*>(weights.arena.as<uint8_t>() + weights.manifest.entries[0].data_offset);
  embedding[kPoisoned * c.hidden_size + 3] = to_bf16(std::numeric_limits<float>::quiet_NaN());
  ThreadPool pool(1);
  const auto model = make_model(c, weights, Dtype::kBF16, pool);
  Runner alone(*model, {good}, 0);
  alone.run({{0, 0, 12}});
  Runner mixed(*model, {bad, good}, 4);
  mixed.run({{0, 0, 12}, {1, 0, 12}});
  CHECK(same_bits(mixed.logits(1), alone.logits(0)));
  const auto v = static_cast<size_t>(c.vocab_size);
  const std::vector<float> before(mixed.logits(0).begin(), mixed.logits(0).begin() + 6 * c.vocab_size);
  CHECK(std::memcmp(before.data(), alone.logits(0).data(), before.size() * sizeof(float)) == 0);
  for (size_t i = 6 * v; i < 12 * v; ++i) REQUIRE(std::isnan(mixed.logits(0)[i]));
  for (const auto& ids : mixed.expert_ids()) {
    for (const int32_t id : ids) CHECK((id >= 0 && id < c.num_experts));
  }
}

}  // namespace accord::model::testing
