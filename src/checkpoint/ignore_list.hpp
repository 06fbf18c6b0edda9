#pragma once
// The modules that a quantization_config says stay in high precision, and whether the stored tensors agree.
#include <string>
#include <string_view>
#include <unordered_set>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "checkpoint/quantization_config.hpp"

namespace accord::checkpoint {

// Finds the entry that names a module: a whole name, a run of its dotted parts ("mlp.experts", "lm_head"), or
// a pattern of fnmatch. Entries "re:..." are other readers' regular expressions and are not judged.
class IgnoreMatcher {
 public:
  explicit IgnoreMatcher(const std::vector<std::string>& entries);
  std::string_view find(std::string_view module) const;  // empty: none; lives as long as this object
  bool has_expressions() const { return has_expressions_; }

 private:
  std::unordered_set<std::string> names_;
  std::vector<std::string> patterns_;
  bool has_expressions_ = false;
};

struct StoredFormat {
  const ParamSpec* spec = nullptr;
  std::string_view format;  // "bf16", "nvfp4", ...
  bool quantized = false;
};

// Both sides of each list against the weights of `dir`. Errors: a quantized weight whose module is listed (a
// warning where another producer lists it by a pattern only); a linear weight of accord's own checkpoint that
// is not quantized and not listed, or a cache that it claims. A foreign checkpoint's unlisted linear weights
// are one warning.
Status check_ignore_lists(const std::string& dir, const QuantizationConfig& config,
                          const std::vector<StoredFormat>& weights);

}  // namespace accord::checkpoint
