#include "controller/verification_metadata.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <set>

#include "base/files.hpp"
#include "base/strict_json.hpp"

namespace accord::controller {
namespace {

using checkpoint::HfCheckpoint;
using checkpoint::QuantizationConfig;
using checkpoint::QuantMethod;
using checkpoint::StoredWeight;

constexpr std::string_view kPassedOver[] = {"quantization_config", "compression_config",   "dtype",
                                            "torch_dtype",         "transformers_version", "_name_or_path",
                                            "_from_model_config"};
constexpr size_t kMaxText = 100;

StatusOr<std::map<std::string, Json>> keys_of(const std::string& text, const std::string& path) {
  const StatusOr<Json> json = parse_json(text);
  if (!json.ok() || !json->is_object()) {
    return data_error("{}: {}", path, json.ok() ? "must be an object" : message_of(json.status()));
  }
  std::map<std::string, Json> keys;
  for (const auto& [key, value] : json->items()) {
    const bool passed =
        std::find(std::begin(kPassedOver), std::end(kPassedOver), key) != std::end(kPassedOver);
    if (!passed && !value.is_null()) {
      keys.emplace(key, value);
    }
  }
  return keys;
}

std::string text_of(const std::map<std::string, Json>& keys, const std::string& key) {
  const auto found = keys.find(key);
  if (found == keys.end()) {
    return "absent";
  }
  std::string text = found->second.dump(-1, ' ', false, Json::error_handler_t::replace);
  return text.size() > kMaxText ? text.substr(0, kMaxText) + "..." : text;
}

void compare_keys(const std::string& file, const std::map<std::string, Json>& a,
                  const std::map<std::string, Json>& b, std::vector<OtherDifference>& out) {
  std::set<std::string> names;
  for (const auto* side : {&a, &b}) {
    for (const auto& [key, value] : *side) {
      names.insert(key);
    }
  }
  for (const std::string& key : names) {
    const auto x = a.find(key);
    const auto y = b.find(key);
    // Order of members is not content.
    if (x == a.end() || y == b.end() || nlohmann::json(x->second) != nlohmann::json(y->second)) {
      out.push_back({fmt::format("{}: {}", file, printable(key)),
                     fmt::format("{} against {}", text_of(a, key), text_of(b, key))});
    }
  }
}

Status compare_configs(const HfCheckpoint& a, const HfCheckpoint& b, std::vector<OtherDifference>& out) {
  std::map<std::string, Json> keys[2];
  std::map<std::string, Json> generation[2];
  for (const auto& [side, number] : {std::pair{&a, 0}, {&b, 1}}) {
    const std::string path = side->dir() + "/config.json";
    ACCORD_ASSIGN_OR_RETURN(const std::string text,
                            checkpoint::config_json_to_write(side->hf_config(), path));
    ACCORD_ASSIGN_OR_RETURN(keys[number], keys_of(text, path));
    ACCORD_ASSIGN_OR_RETURN(generation[number],
                            keys_of(checkpoint::generation_config_json_to_write(side->hf_config()),
                                    side->dir() + "/generation_config.json"));
  }
  compare_keys("config.json", keys[0], keys[1], out);
  compare_keys("generation_config.json", generation[0], generation[1], out);
  return absl::OkStatus();
}

Status compare_tokenizers(const HfCheckpoint& a, const HfCheckpoint& b, std::vector<OtherDifference>& out) {
  for (const std::string& name : checkpoint::tokenizer_file_names()) {
    const std::string x = a.dir() + "/" + name;
    const std::string y = b.dir() + "/" + name;
    std::error_code ignored;
    const bool has_x = std::filesystem::exists(x, ignored);
    const bool has_y = std::filesystem::exists(y, ignored);
    if (has_x != has_y) {
      out.push_back({name, fmt::format("only {} has it", has_x ? a.dir() : b.dir())});
      continue;
    }
    if (!has_x) {
      continue;
    }
    ACCORD_ASSIGN_OR_RETURN(const MappedFile left, MappedFile::open(x));
    ACCORD_ASSIGN_OR_RETURN(const MappedFile right, MappedFile::open(y));
    if (left.size() != right.size()) {
      out.push_back({name, fmt::format("{} bytes against {}", left.size(), right.size())});
    } else if (const auto* bad = std::mismatch(left.data(), left.data() + left.size(), right.data()).first;
               bad != left.data() + left.size()) {
      out.push_back({name, fmt::format("differs from byte {} on", bad - left.data())});
    }
  }
  return absl::OkStatus();
}

std::string input_scale_text(const StoredWeight& weight) {
  if (weight.input_scale == nullptr) {
    return "absent";
  }
  const checkpoint::TensorInfo& tensor = *weight.input_scale;
  float value = 0.0F;
  if (tensor.dtype != Dtype::kF32 || tensor.bytes != static_cast<int64_t>(sizeof(value))) {
    return fmt::format("{} {}", checkpoint::dtype_name(tensor.dtype), checkpoint::shape_text(tensor.shape));
  }
  std::memcpy(&value, tensor.data, sizeof(value));
  return fmt::format("{}", value);
}

// accord quantizes activations by what they are, so the input scales that it writes are 1; others' are their
// own, and count where both sides have some.
std::string expected_input_scale(const HfCheckpoint& side, const StoredWeight& other, bool both) {
  if (side.quantization().method == QuantMethod::kModelopt && side.quantization().by_accord) {
    return "1";
  }
  return both ? input_scale_text(other) : "";
}

std::string producer_of(const QuantizationConfig& config) {
  return config.by_accord ? fmt::format("accord ({}, four_over_six {}, range {})", config.nvfp4.layout,
                                        config.nvfp4.four_over_six, config.nvfp4.range)
                          : "not accord";
}

void compare_quantization(const HfCheckpoint& a, const HfCheckpoint& b, std::vector<OtherDifference>& out) {
  const QuantizationConfig& x = a.quantization();
  const QuantizationConfig& y = b.quantization();
  if (x.method == y.method && x.method != QuantMethod::kNone) {
    if (x.by_accord != y.by_accord || x.nvfp4 != y.nvfp4) {
      out.push_back(
          {"quantization_config: producer", fmt::format("{} against {}", producer_of(x), producer_of(y))});
    }
    if (x.claims_cache != y.claims_cache) {
      out.push_back({"quantization_config: KV cache",
                     fmt::format("only {} claims a quantized one", (x.claims_cache ? a : b).dir())});
    }
  }
  for (const ParamSpec& spec : a.specs()) {
    const StoredWeight& left = *a.stored(spec.name);
    const StoredWeight& right = *b.stored(spec.name);
    const bool both = left.encoding == checkpoint::Encoding::kNvfp4 && right.encoding == left.encoding;
    const std::string name = spec.name.substr(0, spec.name.rfind('.')) + ": input scale";
    for (const auto& [side, weight, other] : {std::tuple{&a, &left, &right}, std::tuple{&b, &right, &left}}) {
      if (weight->encoding != checkpoint::Encoding::kNvfp4) {
        continue;
      }
      const std::string expected = expected_input_scale(*side, *other, both);
      const std::string found = input_scale_text(*weight);
      if (!expected.empty() && expected != found) {
        out.push_back({name, fmt::format("{} in {}, {} is expected", found, side->dir(), expected)});
        break;
      }
    }
  }
}

}  // namespace

StatusOr<std::vector<OtherDifference>> compare_metadata(const HfCheckpoint& a, const HfCheckpoint& b) {
  std::vector<OtherDifference> differences;
  ACCORD_RETURN_IF_ERROR(compare_configs(a, b, differences));
  ACCORD_RETURN_IF_ERROR(compare_tokenizers(a, b, differences));
  compare_quantization(a, b, differences);
  return differences;
}

}  // namespace accord::controller
