#include <string>
#include <vector>

#include "recipe/recipe.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::recipe;

namespace {

Recipe parsed(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const StatusOr<Recipe> recipe = parse_recipe(yaml, "r.yaml", overrides);
  INFO((recipe.ok() ? std::string() : std::string(message_of(recipe.status()))));
  REQUIRE(recipe.ok());
  return *recipe;
}

}  // namespace

TEST_CASE("a resolved recipe loads back to an equal one") {
  const std::string full = R"(
run: {name: "a \"b\" \\ \u00e9", dir: "x\ty", seed: 18446744073709551615, steps: 3}
model: {checkpoint: "dir with: colon", compute_dtype: float32}
data:
  train: {path: "#hash", prompt_key: "- a", label_key: "null", on_bad_line: skip, on_long_prompt: skip}
  eval:
    - {name: one, path: p, samples: 4, every: 2, temperature: 0, top_p: 0.3, max_response_tokens: 5}
    - {name: two, path: "é"}
  chat_template: none
reward: {type: gsm8k}
rollout: {workers: 3, device: cpu, threads: 2, prompts_per_step: 4, samples_per_prompt: 6, max_prompt_tokens: 10,
          max_response_tokens: 20, temperature: 0.7, top_p: 0.9, top_k: 5, stop: ["\n\n", "yes", "\x07"],
          prefill_chunk: 7, max_batch_rows: 9, kv_cache_tokens: 300, cuda_graphs: false, expert_fragments: false}
trainer: {device: cpu, threads: 1, tokens_per_microbatch: 64, expert_parallel: 1,
          optimizer: {lr: 0.1, schedule: cosine, min_lr: 1.0e-9, warmup_steps: 2, betas: [0.8, 0.999], eps: 1.0e-5,
                      weight_decay: 0, clip_grad: 0.30000000000000004}}
algorithm: {clip_low: 0.1, clip_high: 0.3, kl_estimator: k1}
precision:
  configs: {m: {format: mxfp8}, n: {format: nvfp4, layout: 16x16, scope: tensor, four_over_six: all}, "b c": {format: bf16}}
  matchers: [{name: x, pattern: "*.mlp.experts.*", config: m}, {name: y, pattern: "*", config: "b c", enabled: false}]
  bf16_layers: {first: 1, last: 12.5%}
  high_precision: ["*.kv_b_proj.*"]
checkpoint: {every: 0, keep: 0, save_hf: false}
monitor: {listen: "[::1]:80", tensorboard: false}
sft: {path: s.jsonl, response_key: r, steps: 4, batch_size: 2, optimizer: {lr: 1.0e-3}}
deadlines: {register: 1, rollout: 2, train: 4, sync: 5, checkpoint: 6}
debug: {dump_batches: true, corrupt_rollout: {rank: 2, version: 1, byte: 77}}
)";
  const Recipe recipe = parsed(full);
  const std::string yaml = to_yaml(recipe);
  INFO(yaml);
  CHECK(parsed(yaml) == recipe);
  CHECK(to_yaml(parsed(yaml)) == yaml);
  CHECK(recipe.rollout.stop[2] == "\x07");
}

TEST_CASE("an external reward loads back to an equal one") {
  const std::string rest = "run: {name: t}\nmodel: {checkpoint: m}\ndata: {train: {path: p}}\n";
  for (const char* reward : {"reward: {type: external, command: [python3, \"a b\"], batch_size: 3, "
                             "deadline_s: 4, total_deadline_s: 9, retries: 0, "
                             "on_failure: score, failure_score: -0.5}\n",
                             "reward: {type: external, address: \"localhost:80\"}\n"}) {
    const Recipe recipe = parsed(rest + reward);
    REQUIRE(recipe.reward.external.has_value());
    CHECK(parsed(to_yaml(recipe)) == recipe);
  }
}

TEST_CASE("texts of any character survive writing and reading") {
  Recipe recipe =
      parsed("run: {name: t}\nmodel: {checkpoint: m}\ndata: {train: {path: p}}\nreward: {type: exact}\n");
  for (char c = 0; c >= 0 && c < 127; ++c) {
    recipe.rollout.stop.push_back(std::string("a") + c + "b");
    recipe.rollout.stop.emplace_back(1, c);
  }
  for (const char* text :
       {"\x7f", "\u0085", "\u00a0", "\u2028", "\u2029", "\ufeff", "\ufffe", "\U0001F600", " x ", "null", "~",
        "true", "1",      "- a",    "a: b",   "#",      "\r\n",   "\\n",    "%",          "---", "..."}) {
    recipe.rollout.stop.emplace_back(text);
  }
  recipe.model.checkpoint = recipe.rollout.stop.back();
  CHECK(parsed(to_yaml(recipe)) == recipe);
}

TEST_CASE("the shipped recipes load") {
  for (const char* name : {"quickstart-mxfp8.yaml", "reference.yaml"}) {
    CAPTURE(name);
    CHECK(load_recipe(std::string(ACCORD_SOURCE_DIR "/configs/") + name).ok());
  }
}

TEST_CASE("the reference recipe holds every key with its default") {
  const StatusOr<Recipe> reference = load_recipe(ACCORD_SOURCE_DIR "/configs/reference.yaml");
  INFO((reference.ok() ? std::string() : std::string(message_of(reference.status()))));
  REQUIRE(reference.ok());
  // The same recipe with nothing but the required keys.
  const Recipe minimal =
      parsed("run: {name: \"" + reference->run.name + "\"}\nmodel: {checkpoint: \"" +
             reference->model.checkpoint + "\"}\ndata: {train: {path: \"" + reference->data.train[0].path +
             "\"}}\nreward: {type: " + reference->reward.type + "}\n");
  CHECK(*reference == minimal);
}
