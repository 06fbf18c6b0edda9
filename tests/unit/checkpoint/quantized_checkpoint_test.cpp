// Quantized checkpoints as sources: what their configs may say, outer scales, decoded values, ignore lists.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "checkpoint/ignore_list.hpp"
#include "checkpoint/quantization_config.hpp"
#include "checkpoint/stored_weight.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "support/catch.hpp"
#include "temp_dir.hpp"

using namespace accord;
using namespace accord::checkpoint;

namespace {

std::string refusal(const std::string& json) {
  const auto config = parse_quantization_config(json, "config.json: quantization_config");
  REQUIRE_FALSE(config.ok());
  CHECK(exit_code(config.status()) == ExitCode::kBadData);
  return std::string(message_of(config.status()));
}

void has(const std::string& text, const std::string& part) {
  INFO(text << "\n  lacks: " << part);
  CHECK(text.find(part) != std::string::npos);
}

// [rows, cols] of values whose size varies over the rows.
std::vector<float> some_values(int64_t rows, int64_t cols) {
  std::vector<float> values(static_cast<size_t>(rows * cols));
  uint32_t state = 12345;
  for (size_t i = 0; i < values.size(); ++i) {
    state = state * 1664525U + 1013904223U;
    const float unit = static_cast<float>(state >> 8) / 8388608.0F - 1.0F;
    values[i] = to_float(to_bf16(std::ldexp(unit, static_cast<int>(i % 7) - 5)));
  }
  return values;
}

ModelConfig small_moe() {
  ModelConfig config;
  config.vocab_size = 64;
  config.hidden_size = 64;
  config.num_layers = 12;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 64;
  config.num_experts = 4;
  config.num_experts_per_token = 2;
  config.moe_intermediate_size = 32;
  config.layer_is_moe.assign(12, true);
  config.qk_norm = true;
  config.max_position_embeddings = 128;
  return config;
}

bool is_expert(const ParamSpec& spec) { return spec.expert >= 0; }

}  // namespace

TEST_CASE("a quantization_config that is not read is refused with its key and the remedy") {
  has(refusal(R"({"quant_method":"gptq","bits":4})"), "quant_method 'gptq'");
  has(refusal(R"({"quant_method":"fp8"})"), "weight_block_size must be [128, 128]");
  has(refusal(R"({"quant_method":"mxfp8","weight_block_size":[1,16]})"), "[1, 32]");
  has(refusal(R"({"quant_method":"mxfp8","fmt":"e5m2"})"), "fmt must be e4m3");
  has(refusal(R"({"quant_method":"fp8","activation_scheme":"static","weight_block_size":[128,128]})"),
      "dynamic");
  has(refusal(R"({"quant_method":"modelopt","quant_algo":"FP8"})"), "quant_algo must be NVFP4");
  has(refusal(R"({"quant_method":"modelopt","quant_algo":"NVFP4","group_size":32})"), "group_size");
  has(refusal(R"({"quant_method":"modelopt","quant_algo":"NVFP4","ignore":"lm_head"})"),
      "ignore must be a list");
  has(refusal(R"({"quant_method":"compressed-tensors","format":"pack-quantized"})"), "nvfp4-pack-quantized");
  has(refusal(
          R"({"quant_method":"compressed-tensors","format":"nvfp4-pack-quantized","config_groups":{"g":{"weights":{"num_bits":8}}}})"),
      "must be 4, float, 16");
  has(refusal(R"(["mxfp8"])"), "BF16 checkpoint");
  has(refusal(R"({"quant_method":"modelopt","quant_algo":"NVFP4","producer":{"name":"accord","range":256}})"),
      "256 with four_over_six");
}

TEST_CASE("what is written about a checkpoint is read back, and both files must agree") {
  Nvfp4Notes notes;
  notes.layout = "16x16";
  notes.four_over_six = "mse";
  notes.range = 256;
  const auto text =
      add_quantization_config(R"({"hidden_size":64})", QuantMethod::kModelopt, {"lm_head"}, notes);
  REQUIRE(text.ok());
  TempDir dir;
  spill(dir / "hf_quant_config.json", make_hf_quant_config({"lm_head"}, notes));
  const auto config = read_quantization_config(dir.path.string(), *text);
  INFO(message_of(config.status()));
  REQUIRE(config.ok());
  CHECK(config->method == QuantMethod::kModelopt);
  CHECK(config->by_accord);
  CHECK(config->nvfp4 == notes);
  CHECK_FALSE(config->claims_cache);
  CHECK(read_quantization_config(dir.path.string(), "{}")->nvfp4 ==
        notes);  // older writers have one file only
  const auto mxfp8 = add_quantization_config("{}", QuantMethod::kMxfp8, {"lm_head"}, {});
  const auto both = read_quantization_config(dir.path.string(), *mxfp8);
  REQUIRE_FALSE(both.ok());
  has(std::string(message_of(both.status())), "contradicts config.json");
}

TEST_CASE("the outer scale of an own NVFP4 checkpoint is recovered exactly") {
  for (const int range : {448, 256}) {
    QuantizationConfig config;
    config.method = QuantMethod::kModelopt;
    config.by_accord = true;
    config.nvfp4.range = range;
    TensorInfo data;
    TensorInfo scales;
    const std::byte one_block{0x38};
    scales.data = &one_block;
    scales.bytes = 1;
    int64_t wrong = 0;
    for (uint32_t bits = 0; bits < 0x7f80; ++bits) {  // every finite bf16
      const float amax = to_float(BF16{static_cast<uint16_t>(bits)});
      if (amax < 8e-36F) {
        continue;
      }
      StoredWeight weight;
      weight.encoding = Encoding::kNvfp4;
      weight.data = &data;
      weight.scales = &scales;
      weight.range = range;
      weight.stored_outer = formats::outer_scale(amax, range).inverse;
      const Status status = settle_outer_scale(config, {&weight});
      wrong += !status.ok() || std::bit_cast<uint32_t>(weight.outer) != std::bit_cast<uint32_t>(amax) ? 1 : 0;
    }
    CHECK(wrong == 0);
  }
}

TEST_CASE("a unit of zeros has the outer scale 0 and a foreign outer scale is widened") {
  QuantizationConfig config;
  config.method = QuantMethod::kModelopt;
  TensorInfo data;
  TensorInfo scales;
  std::byte code{0};
  scales.data = &code;
  scales.bytes = 1;
  StoredWeight weight;
  weight.encoding = Encoding::kNvfp4;
  weight.data = &data;
  weight.scales = &scales;
  weight.stored_outer = 1.0F;
  config.by_accord = true;
  REQUIRE(settle_outer_scale(config, {&weight}).ok());
  CHECK(weight.outer == 0.0F);
  code = std::byte{0x7e};  // 448: a unit whose A is 2688
  REQUIRE(settle_outer_scale(config, {&weight}).ok());
  CHECK(weight.outer == 2688.0F);
  config.by_accord = false;
  weight.stored_outer = 1.1e-3F;
  REQUIRE(settle_outer_scale(config, {&weight}).ok());
  CHECK(weight.outer == 2688.0F * 1.1e-3F);
  config.method = QuantMethod::kCompressedTensors;
  weight.stored_outer = 900.0F;
  REQUIRE(settle_outer_scale(config, {&weight}).ok());
  CHECK(weight.outer == 2688.0F / 900.0F);
  for (const float bad : {0.0F, -1.0F, INFINITY, NAN}) {
    weight.stored_outer = bad;
    CHECK_FALSE(settle_outer_scale(config, {&weight}).ok());
  }
}

TEST_CASE("any part of a quantized weight decodes to the same values") {
  constexpr int64_t kRows = 48;
  constexpr int64_t kCols = 96;
  std::vector<float> values = some_values(kRows, kCols);
  std::vector<uint8_t> data(values.size());
  std::vector<uint8_t> scales(values.size());
  const MatrixView view = matrix_view(values.data(), kRows, kCols);
  TensorInfo data_info;
  data_info.data = reinterpret_cast<const std::byte*>(data.data());
  TensorInfo scale_info;
  scale_info.data = reinterpret_cast<const std::byte*>(scales.data());
  StoredWeight weight;
  weight.data = &data_info;
  weight.scales = &scale_info;
  weight.rows = kRows;
  weight.cols = kCols;
  std::vector<float> expected(values.size());
  SECTION("mxfp8") {
    weight.encoding = Encoding::kMxfp8;
    formats::quantize_mxfp8_rows(view, data.data(), scales.data(), formats::Element::kE4M3);
    formats::dequantize_mxfp8(data.data(), scales.data(), kRows, kCols, formats::Axis::kRow,
                              formats::Element::kE4M3, expected.data());
  }
  SECTION("nvfp4") {
    weight.encoding = Encoding::kNvfp4;
    formats::quantize_nvfp4(view, {}, {data.data(), scales.data(), &weight.outer});
    formats::dequantize_nvfp4(data.data(), scales.data(), &weight.outer, kRows, kCols,
                              formats::Nvfp4Scope::kTensor, 448, expected.data());
  }
  SECTION("fp8 in blocks") {
    weight.encoding = Encoding::kFp8Block;
    scale_info.dtype = Dtype::kF32;
    const float scale = 0.3F;
    std::memcpy(scales.data(), &scale, sizeof(scale));
    for (size_t i = 0; i < values.size(); ++i) {
      data[i] = formats::to_e4m3(values[i]);
      expected[i] = formats::from_e4m3(data[i]) * scale;
    }
  }
  for (const auto& [first, count] : {std::pair<int64_t, int64_t>{0, kRows * kCols},
                                     {5, 1},
                                     {17, 300},
                                     {95, 2},
                                     {kRows * kCols - 1, 1},
                                     {32, 64},
                                     {96, 96}}) {
    std::vector<float> part(static_cast<size_t>(count));
    REQUIRE(decode(weight, first, part).ok());
    CHECK(std::memcmp(part.data(), expected.data() + first, part.size() * sizeof(float)) == 0);
  }
}

TEST_CASE("ignore lists are short and name what is in high precision") {
  const ModelConfig config = small_moe();
  const auto experts_of_first_ten = [](const ParamSpec& spec) { return is_expert(spec) && spec.layer < 10; };
  const std::vector<std::string> expected = {"lm_head", "model.layers.10.*", "model.layers.11.*",
                                             "model.layers.*.mlp.gate", "model.layers.*.self_attn*"};
  CHECK(high_precision_modules(config, experts_of_first_ten, true) == expected);
  const auto names = high_precision_modules(config, experts_of_first_ten, false);
  CHECK(std::find(names.begin(), names.end(), "model.layers.1.mlp.gate") != names.end());
  CHECK(std::find(names.begin(), names.end(), "model.layers.1.self_attn.q_proj") != names.end());
  CHECK(std::find(names.begin(), names.end(), "model.layers.11.mlp.experts") != names.end());
  CHECK(std::find(names.begin(), names.end(), "model.layers.1.mlp.experts") == names.end());
  CHECK(names.size() == 1 + 12 * 5 + 2);
}

TEST_CASE("ignore lists of latent attention name kv_b_proj and shared experts once") {
  ModelConfig config = small_moe();
  config.architecture = Architecture::kDeepseekV3;
  config.num_kv_heads = config.num_heads;
  config.qk_norm = false;
  config.router_bias = true;
  config.num_shared_experts = 1;
  config.layer_is_moe[0] = false;
  config.mla.kv_lora_rank = 32;
  config.mla.q_lora_rank = 32;
  config.mla.qk_nope_head_dim = 16;
  config.mla.qk_rope_head_dim = 16;
  config.mla.v_head_dim = 16;
  const auto but_kept = [](const ParamSpec& spec) {
    return spec.role != ParamRole::kKvB && spec.role != ParamRole::kRouter && !spec.shared;
  };
  const std::vector<std::string> expected = {"lm_head", "model.layers.*.mlp.gate",
                                             "model.layers.*.mlp.shared_experts*",
                                             "model.layers.*.self_attn.kv_b_proj"};
  CHECK(high_precision_modules(config, but_kept, true) == expected);
  const auto names = high_precision_modules(config, but_kept, false);
  CHECK(names.size() == 1 + 12 + 11 * 4);
  CHECK(std::find(names.begin(), names.end(), "model.layers.1.mlp.shared_experts.up_proj") != names.end());
}

namespace {

// The outcome of the lists for a model whose experts are stored quantized.
std::string ignore_outcome(bool by_accord, const std::vector<std::string>& entries,
                           bool claims_cache = false) {
  static const std::vector<ParamSpec> specs = parameter_specs(small_moe());
  std::vector<StoredFormat> weights;
  for (const ParamSpec& spec : specs) {
    weights.push_back({&spec, is_expert(spec) ? "nvfp4" : "bf16", is_expert(spec)});
  }
  QuantizationConfig config;
  config.method = QuantMethod::kModelopt;
  config.by_accord = by_accord;
  config.claims_cache = claims_cache;
  config.ignored = {{"config.json: ignore", {"lm_head"}}, {"hf_quant_config.json: exclude_modules", entries}};
  config.ignored[0].entries = high_precision_modules(small_moe(), is_expert, true);
  const Status status = check_ignore_lists("model", config, weights);
  return status.ok() ? "" : std::string(message_of(status));
}

}  // namespace

TEST_CASE("a list of ignored modules that contradicts the stored tensors is refused") {
  const std::vector<std::string> own = high_precision_modules(small_moe(), is_expert, true);
  const auto with = [&](const std::string& entry) {
    std::vector<std::string> entries = own;
    entries.push_back(entry);
    return entries;
  };
  for (const bool by_accord : {true, false}) {
    CHECK(ignore_outcome(by_accord, own) == "");
    CHECK(ignore_outcome(by_accord, high_precision_modules(small_moe(), is_expert, false)) == "");
    CHECK(ignore_outcome(by_accord, with("model.layers.99.mlp.experts")) == "");  // names nothing
    CHECK(ignore_outcome(by_accord, with("model.layers.1.mlp.experts.0.gate")) == "");
    for (const char* entry :
         {"model.layers.1.mlp.experts", "model.layers.11.mlp.experts.2.up_proj", "down_proj"}) {
      const std::string text = ignore_outcome(by_accord, with(entry));
      has(text, fmt::format("hf_quant_config.json: exclude_modules: lists '{}'", entry));
      has(text, "in nvfp4");
    }
  }
  has(ignore_outcome(true, with("model.layers.0*")), "lists 'model.layers.0*'");
  CHECK(ignore_outcome(false, with("model.layers.0*")) == "");  // a warning
  has(ignore_outcome(true, {}), "does not list 'model.layers.0.self_attn.q_proj.weight'");
  CHECK(ignore_outcome(false, {}) == "");  // a warning
  CHECK(ignore_outcome(false, own, true) == "");
  has(ignore_outcome(true, own, true), "KV cache");
}

TEST_CASE("a block scale that is negative or not a number is refused with its place") {
  constexpr int64_t kRows = 130;
  constexpr int64_t kCols = 256;
  const std::vector<uint8_t> data(static_cast<size_t>(kRows * kCols), 0);
  TensorInfo data_info;
  data_info.data = reinterpret_cast<const std::byte*>(data.data());
  TensorInfo scale_info;
  scale_info.name = "m.weight_scale";
  StoredWeight weight;
  weight.data = &data_info;
  weight.scales = &scale_info;
  weight.rows = kRows;
  weight.cols = kCols;
  std::vector<float> out(kCols);
  const auto check = [&](const std::string& row_and_column, const std::string& what) {
    CHECK(decode(weight, 128 * kCols, out).ok());  // another row
    const Status status = decode(weight, 129 * kCols, out);
    REQUIRE_FALSE(status.ok());
    const std::string text(message_of(status));
    has(text, "'m.weight_scale'");
    has(text, row_and_column);
    has(text, what);
  };
  SECTION("nvfp4") {
    weight.encoding = Encoding::kNvfp4;
    weight.outer = 1.0F;
    for (const auto& [code, what] :
         {std::pair{0xb8, "negative (0xb8)"}, {0x80, "negative"}, {0xff, "NaN"}, {0x7f, "NaN"}}) {
      std::vector<uint8_t> scales(static_cast<size_t>(kRows * kCols / 16), 0x38);
      scales[129 * 16 + 5] = static_cast<uint8_t>(code);
      scale_info.data = reinterpret_cast<const std::byte*>(scales.data());
      check("row 129, column 5", what);
    }
  }
  SECTION("mxfp8") {
    weight.encoding = Encoding::kMxfp8;
    std::vector<uint8_t> scales(static_cast<size_t>(kRows * kCols / 32), 127);
    scales[129 * 8 + 5] = 0xff;
    scale_info.data = reinterpret_cast<const std::byte*>(scales.data());
    check("row 129, column 5", "NaN");
  }
  SECTION("fp8 blocks") {
    weight.encoding = Encoding::kFp8Block;
    scale_info.dtype = Dtype::kF32;
    for (const float bad : {-1.0F, NAN, INFINITY}) {
      const std::vector<float> scales = {1, 1, 0, bad};
      scale_info.data = reinterpret_cast<const std::byte*>(scales.data());
      const Status status = decode(weight, 128 * kCols, out);
      REQUIRE_FALSE(status.ok());
      has(std::string(message_of(status)), "row 1, column 1");
      CHECK(decode(weight, 127 * kCols, out).ok());
      CHECK(decode(weight, 128 * kCols, std::span(out).first(128)).ok());
    }
  }
}
