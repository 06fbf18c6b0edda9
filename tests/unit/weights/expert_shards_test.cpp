// What unequal expert-tensor parallelism of the two pools would do to bytes, and that it is refused.
#include "precision/expert_shards.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <vector>

#include "kernels/formats/amax.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "support/catch.hpp"

using namespace accord;

namespace {

constexpr int64_t kRows = 64;  // of gate_proj; up_proj is its equal
constexpr int64_t kCols = 64;

std::vector<BF16> half(uint32_t seed, float size) {
  std::vector<BF16> values(kRows * kCols);
  for (BF16& value : values) {
    seed = seed * 1664525U + 1013904223U;
    value = to_bf16(size * (static_cast<float>(seed >> 8) / 8388608.0F - 1.0F));
  }
  return values;
}

struct Quantized {
  std::vector<uint8_t> data = std::vector<uint8_t>(kRows * kCols / 2);
  std::vector<uint8_t> scales = std::vector<uint8_t>(kRows * kCols / 16);
  std::vector<float> decoded = std::vector<float>(kRows * kCols);
};

// gate cut by rows into `shards`, each with the outer scale of its own rows of gate and up.
Quantized quantize_gate(std::vector<BF16>& gate, std::vector<BF16>& up, int64_t shards) {
  Quantized out;
  const int64_t rows = kRows / shards;
  for (int64_t begin = 0; begin < kRows; begin += rows) {
    const MatrixView g = matrix_view(gate.data() + begin * kCols, rows, kCols);
    const MatrixView u = matrix_view(up.data() + begin * kCols, rows, kCols);
    const float outer = std::max(formats::amax(g), formats::amax(u));
    float unused = 0.0F;
    uint8_t* data = out.data.data() + begin * kCols / 2;
    uint8_t* scales = out.scales.data() + begin * kCols / 16;
    formats::quantize_nvfp4(g, {}, {data, scales, &unused}, &outer);
    formats::dequantize_nvfp4(data, scales, &outer, rows, kCols, formats::Nvfp4Scope::kTensor, 448,
                              out.decoded.data() + begin * kCols);
  }
  return out;
}

precision::PrecisionPlan plan_with_experts(WeightFormat format) {
  precision::PrecisionPlan plan;
  precision::PlanRow row;
  row.name = "model.layers.0.mlp.experts.0.gate_proj.weight";
  row.format = format;
  plan.rows.push_back(row);
  return plan;
}

}  // namespace

TEST_CASE("an outer scale taken inside shards gives other bytes and other weights") {
  std::vector<BF16> gate = half(1, 0.7F);
  std::vector<BF16> up = half(2, 0.4F);
  up[5] = to_bf16(1.9F);  // the largest of the unit lies in the first shard
  const Quantized whole = quantize_gate(gate, up, 1);
  const Quantized again = quantize_gate(gate, up, 1);
  const Quantized halves = quantize_gate(gate, up, 2);
  const Quantized quarters = quantize_gate(gate, up, 4);
  CHECK(whole.scales == again.scales);
  CHECK(whole.data == again.data);
  const auto differing = [](const Quantized& a, const Quantized& b) {
    int64_t count = 0;
    for (size_t i = 0; i < a.decoded.size(); ++i) {
      count += std::memcmp(&a.decoded[i], &b.decoded[i], sizeof(float)) != 0 ? 1 : 0;
    }
    return count;
  };
  // The shard with the largest value keeps its bytes; the other has another scale.
  const size_t first_half = whole.scales.size() / 2;
  CHECK(std::equal(whole.scales.begin(), whole.scales.begin() + static_cast<std::ptrdiff_t>(first_half),
                   halves.scales.begin()));
  CHECK_FALSE(whole.scales == halves.scales);
  CHECK_FALSE(halves.scales == quarters.scales);
  CHECK(differing(whole, halves) > kRows * kCols / 10);
  CHECK(differing(halves, quarters) > 0);
}

TEST_CASE("pools that cut NVFP4 experts unequally are refused with both counts") {
  const precision::PrecisionPlan nvfp4 = plan_with_experts(WeightFormat::kNVFP4);
  const Status status = precision::check_expert_shards(nvfp4, 2, 1);
  REQUIRE_FALSE(status.ok());
  CHECK(exit_code(status) == ExitCode::kBadRecipe);
  const std::string message(message_of(status));
  for (const char* part :
       {"2 shards", "rollout pool in 1", "experts.0.gate_proj", "expert_tensor_parallel"}) {
    INFO(message << " lacks " << part);
    CHECK(message.find(part) != std::string::npos);
  }
  CHECK(precision::check_expert_shards(nvfp4, 2, 2).ok());
  CHECK(precision::check_expert_shards(plan_with_experts(WeightFormat::kMXFP8), 2, 1).ok());
}

TEST_CASE("the handshake digest tells shard counts apart and keeps that of one") {
  const std::string digest = "0123456789abcdef0123456789abcdef";
  CHECK(precision::digest_with_expert_shards(digest, 1) == digest);
  const std::string two = precision::digest_with_expert_shards(digest, 2);
  CHECK(two.size() == digest.size());
  CHECK(two != digest);
  CHECK(two != precision::digest_with_expert_shards(digest, 4));
}
