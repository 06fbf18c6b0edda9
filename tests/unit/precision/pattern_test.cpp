#include "precision/pattern.hpp"

#include <algorithm>
#include <string>

#include "support/catch.hpp"

using namespace accord::precision;

namespace {

bool glob(const char* pattern, const char* name) { return NamePattern(pattern).matches(name); }

bool weight(const char* pattern, const char* canonical) {
  return NamePattern(pattern).matches_any(names_of(canonical));
}

}  // namespace

TEST_CASE("globs follow fnmatch and cross dots") {
  CHECK(glob("*", ""));
  CHECK(glob("*", "a.b.c"));
  CHECK(glob("a*c", "a.b.c"));
  CHECK(!glob("a*c", "a.b.cd"));
  CHECK(glob("a?c", "a.c"));
  CHECK(!glob("a?c", "ac"));
  CHECK(glob("*ab*ab*", "xxabyyabzz"));
  CHECK(!glob("*ab*ab*", "xxabyyb"));
  CHECK(glob("layers.[0-3].x", "layers.2.x"));
  CHECK(!glob("layers.[!0-3].x", "layers.2.x"));
  CHECK(glob("layers.[!0-3].x", "layers.7.x"));
  CHECK(glob("[]x]*", "]abc"));
  CHECK(glob("[a-c-]*", "-x"));
  CHECK(glob("a[b*", "a[bcd"));  // never closed: itself
  CHECK(!glob("a[b*", "abcd"));
  CHECK(!glob("*.up_proj", "x.up_proj.weight"));
}

TEST_CASE("globs take no exponential time") {
  const std::string pattern = []() {
    std::string text;
    for (int i = 0; i < 200; ++i) {
      text += "*a";
    }
    return text + "b";
  }();
  CHECK(!NamePattern(pattern).matches(std::string(20000, 'a')));
}

TEST_CASE("a pattern without glob characters matches anywhere") {
  CHECK(glob(".kv_b_proj.", "model.layers.0.self_attn.kv_b_proj.weight"));
  CHECK(!glob(".kv_b_proj.", "model.layers.0.self_attn.kv_b_projx.weight"));
}

TEST_CASE("a weight is matched under its canonical and its Megatron names") {
  const char* up = "model.layers.3.mlp.experts.7.up_proj.weight";
  CHECK(names_of(up).front() == up);
  CHECK(weight("*.mlp.experts.*", up));
  CHECK(weight("*.up_proj", up));
  CHECK(weight("*.up_proj.weight", up));
  CHECK(weight("*.mlp.experts.linear_fc1", up));
  CHECK(!weight("*.mlp.experts.linear_fc2", up));
  CHECK(weight("*.linear_fc1.weight7", up));
  CHECK(!weight("*.linear_fc1.weight8", up));
  CHECK(weight("*.local_experts.7.linear_fc1", up));
  CHECK(weight("linear_fc1", up));
  CHECK(weight("*.mlp.experts.linear_fc2", "model.layers.3.mlp.experts.7.down_proj.weight"));
  for (const char* name : {"q_proj", "k_proj", "v_proj"}) {
    CHECK(weight("*.self_attention.linear_qkv",
                 ("model.layers.0.self_attn." + std::string(name) + ".weight").c_str()));
  }
  CHECK(weight("*.linear_proj", "model.layers.0.self_attn.o_proj.weight"));
  CHECK(weight("router.weight", "model.layers.0.mlp.gate.weight"));
  CHECK(!weight("router.weight", "model.layers.0.mlp.gate_proj.weight"));
  CHECK(weight("*.mlp.linear_fc1", "model.layers.0.mlp.gate_proj.weight"));
  CHECK(weight("*.self_attention.linear_kv_up_proj", "model.layers.0.self_attn.kv_b_proj.weight"));
  CHECK(weight("*.shared_experts.linear_fc1", "model.layers.0.mlp.shared_experts.up_proj.weight"));
  CHECK(weight("output_layer", "lm_head.weight"));
  CHECK(weight("*.word_embeddings.weight", "model.embed_tokens.weight"));
  CHECK(names_of("something.else").size() == 1);
}
