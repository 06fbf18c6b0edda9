#pragma once
// How a checkpoint's weights are stored: quantization_config of config.json, hf_quant_config.json, read and
// written as vLLM and SGLang read them (docs/checkpoints.md). Read are
//   quant_method mxfp8, weight_block_size [1, 32]              weight F8_E4M3, weight_scale_inv U8 (E8M0)
//   quant_method fp8, weight_block_size [128, 128]             weight F8_E4M3, weight_scale_inv F32
//   quant_method modelopt or modelopt_fp4, quant_algo NVFP4    weight U8, weight_scale, weight_scale_2
//   quant_method compressed-tensors, nvfp4-pack-quantized      weight_packed, weight_scale,
//   weight_global_scale
// Anything else is an error that names the key and the remedy.
#include <cstdint>
#include <functional>
#include <string>
#include <string_view>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"

namespace accord::checkpoint {

enum class QuantMethod : uint8_t { kNone, kMxfp8, kFp8Block, kModelopt, kCompressedTensors };

std::string_view name_of(QuantMethod method);

// What accord notes about an NVFP4 checkpoint of its own, so that it can be read and checked exactly.
struct Nvfp4Notes {
  std::string layout = "1x16";         // 1x16 | 16x16
  std::string four_over_six = "none";  // none | mae | mse
  int64_t range = 448;                 // 448 | 256: S = 6*range/A
  bool operator==(const Nvfp4Notes&) const = default;
};

// The modules that stay in high precision, as one file lists them.
struct IgnoreList {
  std::string where;  // file and key
  std::vector<std::string> entries;
  bool operator==(const IgnoreList&) const = default;
};

struct QuantizationConfig {
  QuantMethod method = QuantMethod::kNone;
  bool by_accord = false;           // its own producer entry: A is bf16(6*range*weight_scale_2)
  Nvfp4Notes nvfp4;                 // defaults unless by_accord
  bool claims_cache = false;        // an FP8 KV cache, which accord does not use
  std::vector<IgnoreList> ignored;  // of config.json, then of hf_quant_config.json
  bool operator==(const QuantizationConfig&) const = default;
};

// The value of quantization_config; `where` is named in errors.
StatusOr<QuantizationConfig> parse_quantization_config(std::string_view json, const std::string& where);
// A whole hf_quant_config.json.
StatusOr<QuantizationConfig> parse_hf_quant_config(std::string_view text, const std::string& path);

// Of a directory whose config.json is `config_json`: its quantization_config (or compression_config), or else
// hf_quant_config.json. An error if both are there and disagree.
StatusOr<QuantizationConfig> read_quantization_config(const std::string& dir, std::string_view config_json);

// ---- written ----

// A weight of a linear module, router and head included: what lists of modules are about.
bool is_linear(const ParamSpec& spec);

// The linear modules, router and head that stay in high precision, as short as readers allow. `is_quantized`
// gets each weight. `wildcards`: modelopt's patterns ("model.layers.7.*", "model.layers.*.self_attn*",
// "model.layers.*.mlp.gate"), which precision patterns understand too; without them plain module names, all
// experts of a layer as one ("model.layers.7.mlp.experts"). Every pattern matches high-precision modules
// only.
std::vector<std::string> high_precision_modules(const ModelConfig& config,
                                                const std::function<bool(const ParamSpec&)>& is_quantized,
                                                bool wildcards);

// `config_json` (a normalized one) with quantization_config added. kMxfp8 and kModelopt are written.
StatusOr<std::string> add_quantization_config(std::string_view config_json, QuantMethod method,
                                              const std::vector<std::string>& high_precision,
                                              const Nvfp4Notes& notes);
// hf_quant_config.json (kModelopt only).
std::string make_hf_quant_config(const std::vector<std::string>& high_precision, const Nvfp4Notes& notes);

}  // namespace accord::checkpoint
