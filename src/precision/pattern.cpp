#include "precision/pattern.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <utility>

namespace accord::precision {
namespace {

using std::string_view;

constexpr string_view kWeight = ".weight";

// Matches one set "[...]" that begins at pattern[at]. Returns the position after it, or `at` when no ']'
// closes it (then '[' stands for itself).
size_t match_set(string_view pattern, size_t at, char c, bool& matched) {
  size_t i = at + 1;
  const bool negated = i < pattern.size() && pattern[i] == '!';
  if (negated) {
    ++i;
  }
  const size_t close = pattern.find(']', i + 1);  // a ']' right at the start is a member
  if (i >= pattern.size() || close == string_view::npos) {
    return at;
  }
  bool inside = false;
  while (i < close) {
    if (i + 2 < close && pattern[i + 1] == '-') {
      inside = inside || (pattern[i] <= c && c <= pattern[i + 2]);
      i += 3;
    } else {
      inside = inside || pattern[i] == c;
      ++i;
    }
  }
  matched = inside != negated;
  return close + 1;
}

// The position after the pattern element at `at` if it matches c, npos if it does not. Not for '*'.
size_t match_one(string_view pattern, size_t at, char c) {
  if (pattern[at] == '?') {
    return at + 1;
  }
  if (pattern[at] == '[') {
    bool matched = false;
    if (const size_t next = match_set(pattern, at, c, matched); next != at) {
      return matched ? next : string_view::npos;
    }
  }
  return pattern[at] == c ? at + 1 : string_view::npos;
}

// Only the last '*' is ever extended, which is enough and takes at most pattern times name steps.
bool glob(string_view pattern, string_view name) {
  size_t p = 0;
  size_t n = 0;
  size_t star = string_view::npos;
  size_t star_name = 0;
  while (n < name.size()) {
    if (p < pattern.size() && pattern[p] == '*') {
      star = p++;
      star_name = n;
      continue;
    }
    const size_t next = p < pattern.size() ? match_one(pattern, p, name[n]) : string_view::npos;
    if (next != string_view::npos) {
      p = next;
      ++n;
    } else if (star != string_view::npos) {
      p = star + 1;
      n = ++star_name;
    } else {
      return false;
    }
  }
  while (p < pattern.size() && pattern[p] == '*') {
    ++p;
  }
  return p == pattern.size();
}

// Modules of a layer: Hugging Face -> Megatron.
constexpr std::array<std::pair<string_view, string_view>, 22> kLayerModules = {{
    {"self_attn.q_proj", "self_attention.linear_qkv"},
    {"self_attn.k_proj", "self_attention.linear_qkv"},
    {"self_attn.v_proj", "self_attention.linear_qkv"},
    {"self_attn.q_proj", "self_attention.linear_q_proj"},  // latent attention without a query latent
    {"self_attn.o_proj", "self_attention.linear_proj"},
    {"self_attn.q_norm", "self_attention.q_layernorm"},
    {"self_attn.k_norm", "self_attention.k_layernorm"},
    {"self_attn.q_a_proj", "self_attention.linear_q_down_proj"},
    {"self_attn.q_b_proj", "self_attention.linear_q_up_proj"},
    {"self_attn.kv_a_proj_with_mqa", "self_attention.linear_kv_down_proj"},
    {"self_attn.kv_b_proj", "self_attention.linear_kv_up_proj"},
    {"self_attn.kv_b_proj", "self_attention.linear_k_up_proj"},  // its halves, in the absorbed form
    {"self_attn.kv_b_proj", "self_attention.linear_v_up_proj"},
    {"input_layernorm", "input_layernorm"},
    {"post_attention_layernorm", "pre_mlp_layernorm"},
    {"mlp.gate", "mlp.router"},
    {"mlp.gate_proj", "mlp.linear_fc1"},
    {"mlp.up_proj", "mlp.linear_fc1"},
    {"mlp.down_proj", "mlp.linear_fc2"},
    {"mlp.shared_experts.down_proj", "mlp.shared_experts.linear_fc2"},
    {"mlp.shared_experts.gate_proj", "mlp.shared_experts.linear_fc1"},
    {"mlp.shared_experts.up_proj", "mlp.shared_experts.linear_fc1"},
}};
constexpr std::array<std::pair<string_view, string_view>, 3> kTopModules = {{
    {"model.embed_tokens", "embedding.word_embeddings"},
    {"model.norm", "decoder.final_layernorm"},
    {"lm_head", "output_layer"},
}};

bool all_digits(string_view text) {
  return !text.empty() && std::all_of(text.begin(), text.end(), [](char c) { return c >= '0' && c <= '9'; });
}

string_view expert_linear(string_view projection) {
  if (projection == "gate_proj" || projection == "up_proj") {
    return "linear_fc1";
  }
  return projection == "down_proj" ? "linear_fc2" : "";
}

// Modules of the layer at `layer` (a path with a final dot) that hold its Hugging Face `module`.
void add_layer_modules(string_view module, const std::string& layer, std::vector<std::string>& names) {
  constexpr string_view kExperts = "mlp.experts.";
  if (module.starts_with(kExperts)) {
    const string_view rest = module.substr(kExperts.size());
    const size_t dot = rest.find('.');
    const string_view expert = rest.substr(0, dot);
    const string_view linear = dot == string_view::npos ? "" : expert_linear(rest.substr(dot + 1));
    if (all_digits(expert) && !linear.empty()) {
      names.push_back(fmt::format("{}mlp.experts.{}", layer, linear));
      names.push_back(fmt::format("{}mlp.experts.local_experts.{}.{}", layer, expert, linear));
    }
    return;
  }
  for (const auto& [hugging_face, megatron] : kLayerModules) {
    if (hugging_face == module) {
      names.push_back(layer + std::string(megatron));
    }
  }
}

// The name of a parameter in a module: grouped experts are weight0, weight1, ... of one module.
std::string parameter_of(const std::string& module, string_view canonical) {
  constexpr string_view kExperts = ".mlp.experts.";
  const size_t found = canonical.find(kExperts);
  if (found == string_view::npos || module.find(".local_experts.") != std::string::npos) {
    return module + ".weight";
  }
  const string_view rest = canonical.substr(found + kExperts.size());
  return fmt::format("{}.weight{}", module, rest.substr(0, rest.find('.')));
}

}  // namespace

std::vector<std::string> megatron_modules_of(string_view canonical) {
  constexpr string_view kLayers = "model.layers.";
  std::vector<std::string> names;
  if (!canonical.ends_with(kWeight)) {
    return names;
  }
  const string_view module = canonical.substr(0, canonical.size() - kWeight.size());
  for (const auto& [hugging_face, megatron] : kTopModules) {
    if (hugging_face == module) {
      names.emplace_back(megatron);
    }
  }
  if (module.starts_with(kLayers)) {
    const string_view rest = module.substr(kLayers.size());
    const size_t dot = rest.find('.');
    if (dot != string_view::npos && all_digits(rest.substr(0, dot))) {
      add_layer_modules(rest.substr(dot + 1), fmt::format("decoder.layers.{}.", rest.substr(0, dot)), names);
    }
  }
  return names;
}

std::vector<std::string> names_of(string_view canonical) {
  std::vector<std::string> names{std::string(canonical)};
  if (canonical.ends_with(kWeight)) {
    names.emplace_back(canonical.substr(0, canonical.size() - kWeight.size()));
  }
  for (const std::string& module : megatron_modules_of(canonical)) {
    names.push_back(module);
    names.push_back(parameter_of(module, canonical));
  }
  return names;
}

NamePattern::NamePattern(string_view pattern, PatternKind kind)
    : pattern_(pattern),
      is_glob_(kind == PatternKind::kGlob || pattern.find_first_of("*?[") != string_view::npos) {}

bool NamePattern::matches(string_view name) const {
  return is_glob_ ? glob(pattern_, name) : name.find(pattern_) != string_view::npos;
}

bool NamePattern::matches_any(const std::vector<std::string>& names) const {
  return std::any_of(names.begin(), names.end(), [&](const std::string& name) { return matches(name); });
}

}  // namespace accord::precision
