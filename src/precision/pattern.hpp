#pragma once
// Patterns over weight names, as recipes write them.
//
// With a glob character (* ? [): shell globbing over the whole name, where * and ? also match dots; [abc],
// [a-z] and [!abc] are sets. Without one: the pattern matches wherever it occurs in a name (".kv_b_proj.").
// A weight is matched under each of these names, and one match is enough (a matcher with `names: megatron` is
// always a glob, and sees the paths of Megatron modules only, as Transformer Engine precision files mean it):
//   model.layers.3.mlp.experts.7.up_proj.weight   its canonical (Hugging Face) name,
//   model.layers.3.mlp.experts.7.up_proj          the same without ".weight",
//   decoder.layers.3.mlp.experts.linear_fc1, ...  its Megatron names (module, module.weight, module.weight7),
//   so
//                                                 that linear_qkv stands for q, k and v, linear_fc1 for gate
//                                                 and up.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

namespace accord::precision {

// Every name of a weight that patterns see, the canonical one first.
std::vector<std::string> names_of(std::string_view canonical);

// The paths of the Megatron modules that hold a weight: decoder.layers.3.mlp.experts.linear_fc1, ...
std::vector<std::string> megatron_modules_of(std::string_view canonical);

enum class PatternKind : uint8_t { kGlobOrSubstring, kGlob };

class NamePattern {
 public:
  explicit NamePattern(std::string_view pattern, PatternKind kind = PatternKind::kGlobOrSubstring);
  bool matches(std::string_view name) const;  // this one name
  bool matches_any(const std::vector<std::string>& names) const;
  const std::string& text() const { return pattern_; }

 private:
  std::string pattern_;
  bool is_glob_;
};

}  // namespace accord::precision
