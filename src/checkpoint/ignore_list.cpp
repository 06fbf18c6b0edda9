#include "checkpoint/ignore_list.hpp"

#include <fnmatch.h>

#include <algorithm>

#include "base/log.hpp"
#include "checkpoint/strict_json.hpp"

namespace accord::checkpoint {
namespace {

constexpr std::string_view kExpression = "re:";

bool is_pattern(std::string_view entry) { return entry.find_first_of("*?[") != std::string_view::npos; }

std::string_view module_of(const ParamSpec& spec) {
  return std::string_view(spec.name).substr(0, spec.name.rfind('.'));
}

// Modules that writers of quantized checkpoints leave in high precision without saying so.
bool is_structure(const ParamSpec& spec) {
  return spec.role == ParamRole::kRouter || spec.role == ParamRole::kLmHead;
}

Status check_list(const std::string& dir, const QuantizationConfig& config, const IgnoreList& list,
                  const std::vector<StoredFormat>& weights) {
  const IgnoreMatcher matcher(list.entries);
  std::string uncovered;
  int64_t count = 0;
  for (const StoredFormat& weight : weights) {
    const std::string_view entry = matcher.find(module_of(*weight.spec));
    if (weight.quantized && !entry.empty()) {
      const std::string text = fmt::format(
          "{}: lists '{}', which keeps '{}' in high precision, but {} stores '{}' in {}", list.where,
          printable(entry), module_of(*weight.spec), dir, weight.spec->name, weight.format);
      if (config.by_accord || !is_pattern(entry)) {
        return data_error("{}; use the files that belong to these weights", text);
      }
      log::warn("{}; the stored bytes decide", text);
      return absl::OkStatus();
    }
    const bool may_be = config.by_accord || !is_structure(*weight.spec);
    if (!weight.quantized && entry.empty() && is_linear(*weight.spec) && may_be && ++count == 1) {
      uncovered = weight.spec->name;
    }
  }
  if (count == 0) {
    return absl::OkStatus();
  }
  const std::string text =
      fmt::format("{}: does not list '{}', but {} stores it in high precision ({} such weights)", list.where,
                  uncovered, dir, count);
  if (config.by_accord) {
    return data_error("{}; use the files that belong to these weights", text);
  }
  if (!matcher.has_expressions()) {
    log::warn("{}; the stored bytes decide, other readers may refuse it", text);
  }
  return absl::OkStatus();
}

}  // namespace

IgnoreMatcher::IgnoreMatcher(const std::vector<std::string>& entries) {
  for (const std::string& entry : entries) {
    if (std::string_view(entry).substr(0, kExpression.size()) == kExpression) {
      has_expressions_ = true;
    } else if (is_pattern(entry)) {
      patterns_.push_back(entry);
    } else {
      names_.insert(entry);
    }
  }
}

std::string_view IgnoreMatcher::find(std::string_view module) const {
  for (size_t begin = 0; begin < module.size();) {
    for (size_t end = begin; end < module.size();) {
      end = std::min(module.find('.', end + 1), module.size());
      if (const auto found = names_.find(std::string(module.substr(begin, end - begin)));
          found != names_.end()) {
        return *found;
      }
    }
    const size_t dot = module.find('.', begin);
    begin = dot == std::string_view::npos ? module.size() : dot + 1;
  }
  const std::string text(module);
  for (const std::string& pattern : patterns_) {
    if (::fnmatch(pattern.c_str(), text.c_str(), FNM_NOESCAPE) == 0) {
      return pattern;
    }
  }
  return {};
}

Status check_ignore_lists(const std::string& dir, const QuantizationConfig& config,
                          const std::vector<StoredFormat>& weights) {
  if (config.method == QuantMethod::kNone) {
    return absl::OkStatus();
  }
  if (config.by_accord && config.claims_cache) {
    return data_error(
        "{}: its quantization metadata names accord as its producer and claims a quantized KV cache, which "
        "accord "
        "never writes; use the files that belong to these weights",
        dir);
  }
  for (const IgnoreList& list : config.ignored) {
    ACCORD_RETURN_IF_ERROR(check_list(dir, config, list, weights));
  }
  return absl::OkStatus();
}

}  // namespace accord::checkpoint
