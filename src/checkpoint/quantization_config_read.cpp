#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/files.hpp"
#include "checkpoint/json_fields.hpp"
#include "checkpoint/quantization_config.hpp"

namespace accord::checkpoint {
namespace {

constexpr int64_t kMaxConfigBytes = 16 << 20;
constexpr int64_t kMaxBits = 64;
constexpr int64_t kMaxBlock = int64_t{1} << 31;
constexpr char kHfQuantConfig[] = "hf_quant_config.json";
constexpr std::string_view kReadable =
    "readable are mxfp8 [1, 32], fp8 [128, 128], modelopt NVFP4 and compressed-tensors nvfp4-pack-quantized; "
    "otherwise load the BF16 checkpoint";

void read_list(JsonFields& fields, std::string_view key, QuantizationConfig& config) {
  const Json* list = fields.find(key);
  if (list == nullptr) {
    return;
  }
  if (!list->is_array() ||
      !std::all_of(list->begin(), list->end(), [](const Json& x) { return x.is_string(); })) {
    fields.fail(key, "must be a list of module names");
    return;
  }
  IgnoreList result;
  result.where = fmt::format("{}: {}", fields.where(), key);
  for (const Json& entry : *list) {
    result.entries.push_back(entry.get<std::string>());
  }
  config.ignored.push_back(std::move(result));
}

bool is_pair(const Json* value, int64_t rows, int64_t cols) {
  return value != nullptr && value->is_array() && value->size() == 2 && (*value)[0] == rows &&
         (*value)[1] == cols;
}

std::string lower(std::string text) {
  std::transform(text.begin(), text.end(), text.begin(),
                 [](unsigned char c) { return static_cast<char>(c >= 'A' && c <= 'Z' ? c + 32 : c); });
  return text;
}

// A key that must be absent or have this value.
void expect_text(JsonFields& fields, std::string_view key, std::string_view value) {
  if (fields.has(key) && lower(fields.text(key, value)) != value) {
    fields.fail(key, fmt::format("must be {}; {}", value, kReadable));
  }
}

QuantizationConfig of_method(QuantMethod method) {
  QuantizationConfig config;
  config.method = method;
  return config;
}

QuantizationConfig read_block_scaled(JsonFields& fields, bool mxfp8) {
  expect_text(fields, "activation_scheme", "dynamic");
  expect_text(fields, "fmt", "e4m3");
  QuantizationConfig config = of_method(mxfp8 ? QuantMethod::kMxfp8 : QuantMethod::kFp8Block);
  read_list(fields, "modules_to_not_convert", config);
  read_list(fields, "ignored_layers", config);
  const Json* block = fields.find("weight_block_size");
  if (mxfp8) {
    expect_text(fields, "scale_fmt", "ue8m0");
    if (block != nullptr && !is_pair(block, 1, 32)) {
      fields.fail("weight_block_size", "must be [1, 32] for mxfp8");
    }
    return config;
  }
  if (!is_pair(block, 128, 128)) {
    fields.fail("weight_block_size", fmt::format("must be [128, 128] for fp8; {}", kReadable));
  }
  return config;
}

// {"name": "accord", ...}: what accord wrote about its own NVFP4 options.
void read_producer(JsonFields& outer, QuantizationConfig& config) {
  const Json* producer = outer.find("producer");
  if (producer == nullptr) {
    return;
  }
  if (!producer->is_object()) {
    outer.fail("producer", "must be an object");
    return;
  }
  JsonFields fields(*producer, outer.where() + ": producer");
  if (fields.text("name", "") != "accord") {
    return;
  }
  config.by_accord = true;
  if (config.method == QuantMethod::kModelopt) {
    config.nvfp4.layout = fields.text("layout", "1x16");
    config.nvfp4.four_over_six = fields.text("four_over_six", "none");
    config.nvfp4.range = fields.integer("range", 256, 448, 448);
    if (config.nvfp4.layout != "1x16" && config.nvfp4.layout != "16x16") {
      fields.fail("layout", "must be 1x16 or 16x16");
    }
    const std::string& choice = config.nvfp4.four_over_six;
    if (choice != "none" && choice != "mae" && choice != "mse") {
      fields.fail("four_over_six", "must be none, mae or mse");
    }
    if (config.nvfp4.range != 448 && (config.nvfp4.range != 256 || choice == "none")) {
      fields.fail("range", "must be 448, or 256 with four_over_six");
    }
  }
  if (!fields.status().ok()) {
    outer.fail("producer", message_of(fields.status()));
  }
}

void read_cache_claim(JsonFields& fields, QuantizationConfig& config) {
  config.claims_cache =
      fields.has("kv_cache_scheme") ||
      (fields.has("kv_cache_quant_algo") && lower(fields.text("kv_cache_quant_algo", "")) != "none");
}

QuantizationConfig read_modelopt(JsonFields& fields, std::string_view ignore_key) {
  QuantizationConfig config = of_method(QuantMethod::kModelopt);
  if (lower(fields.text("quant_algo", "")) != "nvfp4") {
    fields.fail("quant_algo", fmt::format("must be NVFP4; {}", kReadable));
  }
  if (fields.integer("group_size", 1, kMaxBlock, 16) != 16) {
    fields.fail("group_size", "must be 16 for NVFP4");
  }
  read_list(fields, ignore_key, config);
  read_cache_claim(fields, config);
  return config;
}

void check_group(JsonFields& outer, std::string_view name, const Json& group) {
  const std::string where = fmt::format("{}: config_groups: {}", outer.where(), printable(name));
  if (!group.is_object() || !group.contains("weights") || !group.at("weights").is_object()) {
    outer.fail("config_groups", fmt::format("{}: must be an object with weights", printable(name)));
    return;
  }
  JsonFields weights(group.at("weights"), where + ": weights");
  const bool four_bits = weights.integer("num_bits", 1, kMaxBits, 4) == 4;
  const bool floating = weights.text("type", "float") == "float";
  const bool groups_of_16 = weights.integer("group_size", -1, kMaxBlock, 16) == 16;
  if (weights.status().ok() && !(four_bits && floating && groups_of_16)) {
    weights.fail("num_bits, type, group_size", fmt::format("must be 4, float, 16; {}", kReadable));
  }
  if (!weights.status().ok()) {
    outer.fail("config_groups", message_of(weights.status()));
  }
}

QuantizationConfig read_compressed_tensors(JsonFields& fields) {
  QuantizationConfig config = of_method(QuantMethod::kCompressedTensors);
  if (fields.text("format", "") != "nvfp4-pack-quantized") {
    fields.fail("format", fmt::format("must be nvfp4-pack-quantized; {}", kReadable));
  }
  const Json* groups = fields.find("config_groups");
  if (groups == nullptr || !groups->is_object() || groups->empty()) {
    fields.fail("config_groups", "must be an object of groups");
    return config;
  }
  for (const auto& [name, group] : groups->items()) {
    check_group(fields, name, group);
  }
  read_list(fields, "ignore", config);
  read_cache_claim(fields, config);
  return config;
}

StatusOr<QuantizationConfig> read(const Json& json, const std::string& where) {
  if (!json.is_object()) {
    return data_error("{}: must be an object; {}", where, kReadable);
  }
  JsonFields fields(json, where);
  const std::string method = lower(fields.text("quant_method", ""));
  QuantizationConfig config;
  if (method == "mxfp8" || method == "fp8") {
    config = read_block_scaled(fields, method == "mxfp8");
  } else if (method == "modelopt" || method == "modelopt_fp4") {
    const Json* nested = fields.find("quantization");
    if (nested != nullptr && nested->is_object()) {
      JsonFields inner(*nested, where + ": quantization");
      config = read_modelopt(inner, "exclude_modules");
      ACCORD_RETURN_IF_ERROR(inner.status());
    } else {
      config = read_modelopt(fields, "ignore");
    }
  } else if (method == "compressed-tensors") {
    config = read_compressed_tensors(fields);
  } else {
    fields.fail("quant_method", fmt::format("'{}' is not supported; {}", printable(method), kReadable));
  }
  read_producer(fields, config);
  ACCORD_RETURN_IF_ERROR(fields.status());
  return config;
}

}  // namespace

std::string_view name_of(QuantMethod method) {
  switch (method) {
    case QuantMethod::kNone:
      return "no quantization";
    case QuantMethod::kMxfp8:
      return "mxfp8";
    case QuantMethod::kFp8Block:
      return "fp8 in blocks of 128x128";
    case QuantMethod::kModelopt:
      return "modelopt NVFP4";
    case QuantMethod::kCompressedTensors:
      return "compressed-tensors NVFP4";
  }
  return "?";
}

StatusOr<QuantizationConfig> parse_quantization_config(std::string_view json, const std::string& where) {
  ACCORD_ASSIGN_OR_RETURN(const Json value, parse_json(json, where));
  return read(value, where);
}

StatusOr<QuantizationConfig> parse_hf_quant_config(std::string_view text, const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(text, path));
  if (!json.is_object() || !json.contains("quantization") || !json.at("quantization").is_object()) {
    return data_error("{}: must be an object with an object quantization; download it again", path);
  }
  JsonFields outer(json, path);
  JsonFields inner(json.at("quantization"), path + ": quantization");
  QuantizationConfig config = read_modelopt(inner, "exclude_modules");
  ACCORD_RETURN_IF_ERROR(inner.status());
  read_producer(outer, config);
  ACCORD_RETURN_IF_ERROR(outer.status());
  return config;
}

StatusOr<QuantizationConfig> read_quantization_config(const std::string& dir, std::string_view config_json) {
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(config_json, dir + "/config.json"));
  QuantizationConfig config;
  if (json.is_object()) {
    for (const char* key : {"quantization_config", "compression_config"}) {
      if (json.contains(key) && !json.at(key).is_null()) {
        ACCORD_ASSIGN_OR_RETURN(config, read(json.at(key), fmt::format("{}/config.json: {}", dir, key)));
        break;
      }
    }
  }
  const std::string path = dir + "/" + kHfQuantConfig;
  std::error_code ignored;
  if (!std::filesystem::exists(path, ignored)) {
    return config;
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxConfigBytes));
  ACCORD_ASSIGN_OR_RETURN(QuantizationConfig other, parse_hf_quant_config(text, path));
  if (config.method == QuantMethod::kNone) {
    return other;
  }
  if (other.method != config.method || other.nvfp4 != config.nvfp4 || other.by_accord != config.by_accord) {
    return data_error(
        "{}: contradicts config.json, whose quantization_config is {}; remove the one that does "
        "not belong to these weights",
        path, name_of(config.method));
  }
  config.claims_cache = config.claims_cache || other.claims_cache;
  config.ignored.insert(config.ignored.end(), other.ignored.begin(), other.ignored.end());
  return config;
}

}  // namespace accord::checkpoint
