#include "weights/manifest.hpp"

#include <algorithm>

#include "fixture.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::weights;
using namespace accord::weights::testing;

namespace {

WeightManifest manifest_of(const ModelConfig& config, const precision::PrecisionPlan& plan) {
  auto manifest = build_manifest(config, plan);
  INFO(message_of(manifest.status()));
  REQUIRE(manifest.ok());
  return *std::move(manifest);
}

}  // namespace

TEST_CASE("entries follow the canonical order, aligned and without overlap") {
  const ModelConfig config = small_config();
  for (const WeightFormat format : {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4}) {
    const WeightManifest manifest = manifest_of(config, plan_with(config, config_of(format)));
    const auto specs = parameter_specs(config);
    REQUIRE(manifest.entries.size() == specs.size());
    int64_t end = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      const WeightEntry& e = manifest.entries[i];
      CAPTURE(e.name);
      CHECK(e.name == specs[i].name);
      CHECK(e.shape == specs[i].shape);
      const int64_t n = specs[i].numel();
      const bool expert = e.name.find(".mlp.experts.") != std::string::npos;
      CHECK(e.format == (expert ? format : WeightFormat::kBF16));
      const auto check = [&](int64_t offset, int64_t bytes) {
        if (bytes > 0) {
          CHECK(offset % kArenaAlignment == 0);
          CHECK(offset >= end);
          CHECK(offset - end < kArenaAlignment);
          end = offset + bytes;
        }
      };
      check(e.data_offset, e.data_bytes);
      check(e.scale_offset, e.scale_bytes);
      check(e.outer_offset, e.outer_bytes);
      switch (e.format) {
        case WeightFormat::kF32:
          CHECK(false);  // no weight of this model
          break;
        case WeightFormat::kBF16:
          CHECK(payload_bytes(e) == 2 * n);
          break;
        case WeightFormat::kMXFP8:
          CHECK(e.data_bytes == n);
          CHECK(e.scale_bytes == n / 32);
          CHECK(e.outer_bytes == 0);
          break;
        case WeightFormat::kNVFP4:
          CHECK(e.data_bytes == n / 2);
          CHECK(e.scale_bytes == n / 16);
          CHECK(e.outer_bytes == 4);
          break;
      }
    }
    CHECK(manifest.arena_bytes >= end);
    CHECK(manifest.arena_bytes % kArenaAlignment == 0);
    CHECK(payload_bytes(manifest) <= manifest.arena_bytes);
  }
}

TEST_CASE("a tied lm_head has no entry") {
  const ModelConfig config = small_config(/*tied=*/true);
  const WeightManifest manifest = manifest_of(config, plan_with(config, config_of(WeightFormat::kMXFP8)));
  CHECK(find_entry(manifest, "lm_head.weight") == nullptr);
  REQUIRE(find_entry(manifest, "model.embed_tokens.weight") != nullptr);
  CHECK(find_entry(manifest, "model.embed_tokens.weight")->name == "model.embed_tokens.weight");
}

TEST_CASE("the manifest's digest identifies what determines bytes") {
  const ModelConfig config = small_config();
  recipe::PrecisionConfig nvfp4 = config_of(WeightFormat::kNVFP4);
  const WeightManifest first = manifest_of(config, plan_with(config, nvfp4));
  CHECK(first.digest.size() == 32);
  CHECK(manifest_of(config, plan_with(config, nvfp4)).digest == first.digest);
  std::vector<std::string> digests = {first.digest};
  nvfp4.layout = recipe::ScaleLayout::k16x16;  // same offsets, other bytes
  digests.push_back(manifest_of(config, plan_with(config, nvfp4)).digest);
  digests.push_back(manifest_of(config, plan_with(config, config_of(WeightFormat::kMXFP8))).digest);
  ModelConfig wider = config;
  wider.vocab_size += 1;
  digests.push_back(manifest_of(wider, plan_with(wider, config_of(WeightFormat::kMXFP8))).digest);
  std::sort(digests.begin(), digests.end());
  CHECK(std::unique(digests.begin(), digests.end()) == digests.end());
}

TEST_CASE("a plan that does not fit the model is an error with the tensor's name") {
  const ModelConfig config = small_config();
  precision::PrecisionPlan plan = plan_with(config, config_of(WeightFormat::kMXFP8));
  ModelConfig other = config;
  other.vocab_size = 400;
  const Status status = build_manifest(other, plan).status();
  CHECK(std::string(message_of(status)).find("model.embed_tokens.weight") == 0);
  SECTION("a shape that the block does not divide") {
    for (precision::PlanRow& row : plan.rows) {
      if (row.name == "model.norm.weight") {
        row.format = WeightFormat::kMXFP8;
        row.shape = {257};
      }
    }
    CHECK_FALSE(build_manifest(config, plan).ok());
  }
}
