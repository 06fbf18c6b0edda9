// Plain and absorbed latent attention are one function, as long as kv_b_proj is BF16.
#include <cmath>

#include "base/philox.hpp"
#include "fixture.hpp"
#include "support/catch.hpp"

namespace accord::model::testing {
namespace {

constexpr int32_t kLength = 120;

std::vector<float> logits_of(MlaForm form, const TestWeights& weights, Dtype dtype) {
  const ModelConfig c = latent_config(form);
  PhiloxStream random(3, 9);
  std::vector<int32_t> text;
  for (int32_t i = 0; i < kLength; ++i) {
    text.push_back(static_cast<int32_t>(random.next_below(static_cast<uint64_t>(c.vocab_size))));
  }
  ThreadPool pool(2);
  const auto model = make_model(c, weights, dtype, pool);
  Runner runner(*model, {text}, 5);
  runner.run({{0, 0, kLength}});
  return runner.logits(0);
}

// Root mean square of the difference over that of `a`.
double distance(const std::vector<float>& a, const std::vector<float>& b) {
  REQUIRE(a.size() == b.size());
  double difference = 0.0;
  double size = 0.0;
  for (size_t i = 0; i < a.size(); ++i) {
    difference += (double{a[i]} - b[i]) * (double{a[i]} - b[i]);
    size += double{a[i]} * a[i];
  }
  REQUIRE(size > 0.0);
  return std::sqrt(difference / size);
}

}  // namespace

TEST_CASE("Plain and absorbed forms agree when kv_b_proj is BF16") {
  const ModelConfig c = latent_config(MlaForm::kPlain);
  for (const auto format : {WeightFormat::kBF16, WeightFormat::kMXFP8}) {
    const TestWeights weights = random_weights(c, format, 17);
    const std::vector<float> exact = logits_of(MlaForm::kPlain, weights, Dtype::kF32);
    const double forms_f32 = distance(exact, logits_of(MlaForm::kAbsorbed, weights, Dtype::kF32));
    const std::vector<float> plain = logits_of(MlaForm::kPlain, weights, Dtype::kBF16);
    const double forms_bf16 = distance(plain, logits_of(MlaForm::kAbsorbed, weights, Dtype::kBF16));
    const double rounding = distance(exact, plain);
    CAPTURE(forms_f32, forms_bf16, rounding);
    if (format == WeightFormat::kBF16) {
      CHECK(forms_f32 < 1e-5);
      CHECK(forms_bf16 < 2.0 * rounding);  // no further apart than BF16 is from fp32
    } else {
      // Activations that land on the other side of a quantizer's boundary move the rest.
      CHECK(forms_bf16 < 3.0 * rounding);
    }
  }
}

// The plain form quantizes the latent and reads kv_b_proj along the latent; the absorbed form can at best
// decode those bytes, and multiplies a query that nobody quantized. With the same bytes they are two
// functions.
TEST_CASE("Plain and absorbed forms part when kv_b_proj is quantized") {
  const ModelConfig c = latent_config(MlaForm::kPlain);
  const TestWeights bf16 = random_weights(c, WeightFormat::kBF16, 17);
  const TestWeights quantized = with_kv_b(c, bf16, WeightFormat::kMXFP8);
  const TestWeights decoded = with_kv_b(c, quantized, WeightFormat::kBF16);
  const double same = distance(logits_of(MlaForm::kPlain, decoded, Dtype::kF32),
                               logits_of(MlaForm::kAbsorbed, decoded, Dtype::kF32));
  const double parted = distance(logits_of(MlaForm::kPlain, quantized, Dtype::kF32),
                                 logits_of(MlaForm::kAbsorbed, decoded, Dtype::kF32));
  CAPTURE(same, parted);
  CHECK(same < 1e-5);
  CHECK(parted > 1e-2);

  const auto refused =
      bind_weights(latent_config(MlaForm::kAbsorbed), quantized.manifest, quantized.arena.data());
  REQUIRE_FALSE(refused.ok());
  CHECK(std::string(message_of(refused.status())).find("kv_b_proj of layer 0 is quantized") !=
        std::string::npos);
}

TEST_CASE("The absorbed form caches one latent for all heads") {
  ModelConfig c = latent_config(MlaForm::kPlain);
  CHECK(kv_row_bytes(c, 2) == 2 * 3 * 5 * (24 + 16 + 32));
  c.mla.form = MlaForm::kAbsorbed;
  CHECK(kv_row_bytes(c, 2) == 2 * 3 * (64 + 16));
}

}  // namespace accord::model::testing
