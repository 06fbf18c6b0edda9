#include <map>
#include <set>

#include "checkpoint/quantization_config.hpp"
#include "checkpoint/strict_json.hpp"

namespace accord::checkpoint {
namespace {

constexpr int kIndent = 2;

// Of one group of weights in one layer.
struct Tally {
  int64_t high = 0;
  int64_t quantized = 0;
};

// Modules of a layer that share an entry: "self_attn", "mlp" (dense), "mlp.gate", "mlp.experts", ...
std::string group_of(const ParamSpec& spec, const std::string& prefix) {
  const std::string module = spec.name.substr(prefix.size(), spec.name.rfind('.') - prefix.size());
  if (spec.expert >= 0) {
    return "mlp.experts";
  }
  if (spec.role == ParamRole::kRouter) {
    return module;
  }
  return module.substr(0, module.rfind('.'));
}

struct LayerModules {
  std::map<std::string, Tally> groups;
  std::map<std::string, std::vector<std::string>> names;  // group -> high-precision modules, relative
  int64_t quantized = 0;
};

Json producer_json(QuantMethod method, const Nvfp4Notes& notes) {
  Json producer = {{"name", "accord"}, {"version", "1"}};
  if (method == QuantMethod::kModelopt) {
    producer["layout"] = notes.layout;
    producer["four_over_six"] = notes.four_over_six;
    producer["range"] = notes.range;
  }
  return producer;
}

}  // namespace

bool is_linear(const ParamSpec& spec) {
  return spec.role != ParamRole::kNorm && spec.role != ParamRole::kEmbedding &&
         spec.name.ends_with(".weight");
}

std::vector<std::string> high_precision_modules(const ModelConfig& config,
                                                const std::function<bool(const ParamSpec&)>& is_quantized,
                                                bool wildcards) {
  std::vector<LayerModules> layers(static_cast<size_t>(config.num_layers));
  std::map<std::string, int64_t> occurrences;  // of a module such as self_attn.kv_b_proj, over the layers
  std::map<std::string, int64_t> high_occurrences;
  std::vector<std::string> result = {"lm_head"};  // structure; also where it is tied
  for (const ParamSpec& spec : parameter_specs(config)) {
    if (!is_linear(spec) || spec.role == ParamRole::kLmHead) {
      continue;
    }
    const bool quantized = is_quantized(spec);
    LayerModules& layer = layers[static_cast<size_t>(spec.layer)];
    const std::string prefix = fmt::format("model.layers.{}.", spec.layer);
    const std::string group = group_of(spec, prefix);
    Tally& tally = layer.groups[group];
    ++(quantized ? tally.quantized : tally.high);
    layer.quantized += quantized ? 1 : 0;
    const std::string name = spec.name.substr(prefix.size(), spec.name.rfind('.') - prefix.size());
    ++occurrences[name];
    if (!quantized) {
      layer.names[group].push_back(name);
      ++high_occurrences[name];
    }
  }
  // A group that is in high precision wherever it occurs, in a layer or more that has quantized weights.
  std::map<std::string, bool> everywhere;
  for (const LayerModules& layer : layers) {
    for (const auto& [group, tally] : layer.groups) {
      const auto [place, added] = everywhere.emplace(group, true);
      place->second = place->second && tally.quantized == 0;
    }
  }
  const auto whole = [&](const std::string& group) {
    return group == "mlp.gate" ? group : group + "*";  // mlp.gate* would be gate_proj too
  };
  std::set<std::string> general;
  for (size_t i = 0; i < layers.size(); ++i) {
    const LayerModules& layer = layers[i];
    const std::string prefix = fmt::format("model.layers.{}.", i);
    if (wildcards && layer.quantized == 0) {
      result.push_back(prefix + "*");
      continue;
    }
    for (const auto& [group, tally] : layer.groups) {
      // "mlp*" would be the experts and the router as well: dense MLPs are named one by one.
      const bool may_be_whole = tally.quantized == 0 && group != "mlp";
      if (wildcards && may_be_whole && everywhere.at(group)) {
        general.insert("model.layers.*." + whole(group));
      } else if (wildcards && may_be_whole) {
        result.push_back(prefix + whole(group));
      } else if (group == "mlp.experts" && tally.quantized == 0) {
        result.push_back(prefix + group);
      } else if (const auto names = layer.names.find(group); names != layer.names.end()) {
        for (const std::string& name : names->second) {
          if (wildcards && high_occurrences.at(name) == occurrences.at(name)) {
            general.insert("model.layers.*." + name);
          } else {
            result.push_back(prefix + name);
          }
        }
      }
    }
  }
  result.insert(result.end(), general.begin(), general.end());
  return result;
}

StatusOr<std::string> add_quantization_config(std::string_view config_json, QuantMethod method,
                                              const std::vector<std::string>& high_precision,
                                              const Nvfp4Notes& notes) {
  ACCORD_ASSIGN_OR_RETURN(Json json, parse_json(config_json, "config.json"));
  Json quantization;
  if (method == QuantMethod::kMxfp8) {
    quantization["quant_method"] = "mxfp8";
    quantization["activation_scheme"] = "dynamic";
    quantization["fmt"] = "e4m3";
    quantization["weight_block_size"] = {1, 32};
    quantization["scale_fmt"] = "ue8m0";
    quantization["modules_to_not_convert"] = high_precision;
  } else if (method == QuantMethod::kModelopt) {
    quantization["quant_method"] = "modelopt";
    quantization["quant_algo"] = "NVFP4";
    quantization["group_size"] = 16;
    quantization["ignore"] = high_precision;
  } else {
    return internal_error("{} is not a layout that is written", name_of(method));
  }
  quantization["producer"] = producer_json(method, notes);
  json["quantization_config"] = quantization;
  return json.dump(kIndent) + "\n";
}

std::string make_hf_quant_config(const std::vector<std::string>& high_precision, const Nvfp4Notes& notes) {
  Json json;
  json["producer"] = producer_json(QuantMethod::kModelopt, notes);
  json["quantization"]["quant_algo"] = "NVFP4";
  json["quantization"]["kv_cache_quant_algo"] = nullptr;  // the cache is BF16
  json["quantization"]["group_size"] = 16;
  json["quantization"]["exclude_modules"] = high_precision;
  return json.dump(kIndent) + "\n";
}

}  // namespace accord::checkpoint
