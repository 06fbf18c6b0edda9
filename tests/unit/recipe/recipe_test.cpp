#include "recipe/recipe.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::recipe;

namespace {

const std::string kMinimal =
    "run: {name: demo}\n"
    "model: {checkpoint: models/m}\n"
    "data: {train: {path: train.jsonl}}\n"
    "reward: {type: math_dapo}\n";

std::string error_of(const std::string& yaml, const std::vector<std::string>& overrides = {}) {
  const StatusOr<Recipe> recipe = parse_recipe(yaml, "r.yaml", overrides);
  if (recipe.ok()) {
    return "";
  }
  CHECK(exit_code(recipe.status()) == ExitCode::kBadRecipe);
  return std::string(message_of(recipe.status()));
}

std::string set_error(const std::string& override_text) { return error_of(kMinimal, {override_text}); }

Recipe load_set(const std::vector<std::string>& overrides) {
  const StatusOr<Recipe> recipe = parse_recipe(kMinimal, "r.yaml", overrides);
  INFO((recipe.ok() ? std::string() : std::string(message_of(recipe.status()))));
  REQUIRE(recipe.ok());
  return *recipe;
}

}  // namespace

TEST_CASE("a minimal recipe gets every default") {
  const Recipe recipe = load_set({});
  Recipe expected;
  expected.run.name = "demo";
  expected.run.dir = "runs/demo";
  expected.model.checkpoint = "models/m";
  expected.data.train.emplace_back().path = "train.jsonl";
  expected.reward.type = "math_dapo";
  CHECK(recipe == expected);
  CHECK(recipe.rollout.max_response_tokens == 8192);
  CHECK(recipe.trainer.optimizer.lr == 1e-6);
  CHECK(recipe.trainer.optimizer.beta2 == 0.98);
}

TEST_CASE("the name of a run follows from its directory") {
  const StatusOr<Recipe> recipe = parse_recipe(
      "run: {dir: /scratch/exp/alpha/}\nmodel: {checkpoint: m}\ndata: {train: {path: t}}\nreward: {type: "
      "exact}\n",
      "r.yaml");
  REQUIRE(recipe.ok());
  CHECK(recipe->run.name == "alpha");
  CHECK(recipe->run.dir == "/scratch/exp/alpha/");
}

TEST_CASE("required keys are all named at once") {
  const std::string error = error_of("{}");
  CHECK(error ==
        "r.yaml:1:1: run.name: required key is missing (give run.name, or run.dir)\n"
        "r.yaml:1:1: model.checkpoint: required key is missing (the directory of a Hugging Face checkpoint)\n"
        "r.yaml:1:1: reward.type: required key is missing (such as math_dapo)\n"
        "r.yaml:1:1: data.train.path: required key is missing (a file of prompts)");
  CHECK(error_of("") == error);
}

TEST_CASE("unknown keys are refused with a suggestion and a position") {
  CHECK(error_of(kMinimal + "rollout:\n  temprature: 0.5\n") ==
        "r.yaml:6:3: rollout.temprature: unknown key (did you mean 'temperature'?)");
  CHECK(error_of(kMinimal + "trainr: {}\n") == "r.yaml:5:1: trainr: unknown key (did you mean 'trainer'?)");
  const std::string far = error_of(kMinimal + "checkpoint: {zzzzzzzzz: 1}\n");
  CHECK(far == "r.yaml:5:14: checkpoint.zzzzzzzzz: unknown key (known here: every, keep, save_hf)");
  // sft is looked up twice, and named once.
  const std::string top = error_of(kMinimal + "zzzzzzzzz: {}\n");
  CHECK(top.find("sft") != std::string::npos);
  CHECK(top.find("sft") == top.rfind("sft"));
  CHECK(error_of(kMinimal + "algorithm: {clip_hgih: 0.2}\n").find("'clip_high'") != std::string::npos);
}

TEST_CASE("duplicate keys are refused at every level") {
  CHECK(error_of(kMinimal + "rollout: {workers: 1,\n  workers: 2}\n") ==
        "r.yaml:6:3: rollout.workers: duplicate key, first written on line 5 (keep one)");
  CHECK(error_of(kMinimal + "run: {name: other}\n") ==
        "r.yaml:5:1: run: duplicate key, first written on line 1 (keep one)");
  CHECK(error_of(kMinimal + "precision: {configs: {a: {format: bf16}, a: {format: mxfp8}}}\n") ==
        "r.yaml:5:42: precision.configs.a: duplicate key, first written on line 5 (keep one)");
}

TEST_CASE("types are strict") {
  CHECK(set_error("checkpoint.save_hf=yes") ==
        "--set checkpoint.save_hf=yes: checkpoint.save_hf: must be true or false, is 'yes'");
  CHECK(set_error("checkpoint.save_hf=\"true\"").find("must be true or false, is the text \"true\"") !=
        std::string::npos);
  CHECK(set_error("run.steps=1e3").find("run.steps: must be a whole number, is '1e3'") != std::string::npos);
  CHECK(set_error("run.steps=0x10").find("must be a whole number") != std::string::npos);
  CHECK(set_error("run.steps=\"5\"").find("must be a whole number, is the text \"5\"") != std::string::npos);
  CHECK(set_error("run.steps=").find("must be a whole number, is null") != std::string::npos);
  CHECK(set_error("run.steps=[1]").find("must be a whole number, is a list") != std::string::npos);
  CHECK(set_error("run.seed=-1").find("from 0 to 2^64-1") != std::string::npos);
  CHECK(set_error("trainer.optimizer.lr=fast").find("must be a finite number, is 'fast'") !=
        std::string::npos);
  CHECK(set_error("trainer.optimizer.lr=.nan").find("must be a finite number") != std::string::npos);
  CHECK(set_error("trainer.optimizer.lr=inf").find("must be a finite number") != std::string::npos);
  CHECK(set_error("trainer.optimizer.betas=[0.9]").find("must be a list of 2 numbers") != std::string::npos);
  CHECK(set_error("trainer.optimizer.betas=[0.9, 1.0]").find("betas") != std::string::npos);
  CHECK(set_error("rollout.stop=done").find("must be a list of texts") != std::string::npos);
  CHECK(set_error("trainer=5").find("trainer: must be a mapping of keys, is '5'") != std::string::npos);
  CHECK(set_error("trainer.optimizer.schedule=step")
            .find("must be one of: constant, linear, cosine; is 'step'") != std::string::npos);
  const Recipe recipe = load_set({"trainer.optimizer.lr=1e-6", "run.seed=18446744073709551615",
                                  "trainer.optimizer.eps=1", "rollout.stop=[a, \"b\\n\"]"});
  CHECK(recipe.trainer.optimizer.lr == 1e-6);
  CHECK(recipe.run.seed == 18446744073709551615ULL);
  CHECK(recipe.trainer.optimizer.eps == 1.0);
  CHECK(recipe.rollout.stop == std::vector<std::string>{"a", "b\n"});
}

TEST_CASE("numbers with leading zeros are refused") {
  for (const char* one : {"run.steps=010", "run.seed=007", "rollout.top_k=-01", "run.steps=00"}) {
    CAPTURE(one);
    CHECK(set_error(one).find("must be a whole number") != std::string::npos);
  }
  CHECK(load_set({"run.seed=0", "run.steps=10"}).run.seed == 0);
}

TEST_CASE("ranges are checked") {
  CHECK(set_error("run.steps=0").find("run.steps: must be from 1 to 1000000000, is 0") != std::string::npos);
  CHECK(set_error("rollout.temperature=0").find("0.0001") != std::string::npos);
  CHECK(set_error("rollout.top_p=1.5").find("must be at least 1e-30 and at most 1, is 1.5") !=
        std::string::npos);
  CHECK(set_error("rollout.top_k=0").find("must be -1 (all) or at least 1") != std::string::npos);
  CHECK(set_error("rollout.samples_per_prompt=1").find("at least 2") != std::string::npos);
  CHECK(set_error("trainer.tokens_per_microbatch=100").find("must hold one sample") != std::string::npos);
  CHECK(set_error("rollout.prefill_chunk=300").find("at most rollout.max_batch_rows = 256") !=
        std::string::npos);
  CHECK(set_error("rollout.kv_cache_tokens=10").find("must be 0 (auto) or hold one sample") !=
        std::string::npos);
  CHECK(set_error("trainer.optimizer.min_lr=1e-7").find("does nothing with schedule constant") !=
        std::string::npos);
  CHECK(set_error("monitor.listen=localhost").find("must be HOST:PORT") != std::string::npos);
  CHECK(set_error("monitor.listen=localhost:70000").find("must be HOST:PORT") != std::string::npos);
  CHECK(set_error("run.name=a/b").find("plain name without '/'") != std::string::npos);
  CHECK(set_error("debug.corrupt_rollout={rank: 1, version: 2, byte: 3}").find("below rollout.workers = 1") !=
        std::string::npos);
  CHECK(set_error("debug.corrupt_rollout={rank: 0}").find("needs rank, version and byte") !=
        std::string::npos);
}

TEST_CASE("all independent errors are reported in file order") {
  const std::string error = error_of(kMinimal + "rollout: {workers: many, top_p: 2}\nrestart: sometimes\n");
  CHECK(error ==
        "r.yaml:5:20: rollout.workers: must be a whole number, is 'many'\n"
        "r.yaml:5:33: rollout.top_p: must be at least 1e-30 and at most 1, is 2\n"
        "r.yaml:6:10: restart: must be one of: never, workers, all; is 'sometimes'");
}

TEST_CASE("documents that could surprise are refused") {
  CHECK(error_of("a: &x 1\nb: *x\n").find("r.yaml:1:4: anchor '&x'") == 0);
  CHECK(error_of(kMinimal + "---\nrun: {}\n").find("a second document") != std::string::npos);
  CHECK(error_of("run: !!str demo\n").find("tags are not accepted") != std::string::npos);
  CHECK(error_of("- a\n").find("a recipe is a mapping of keys, this is a list") != std::string::npos);
  CHECK(error_of("run: {name: \xff}\n") == "r.yaml:1:13: not valid UTF-8 (save the file as UTF-8)");
  CHECK(error_of(std::string("run: a\0b", 8)).find("NUL") != std::string::npos);
  CHECK(error_of("run: {name: [\n").find("not valid YAML") != std::string::npos);
  CHECK(error_of("? [a]\n: 1\n").find("a key must be a plain name") != std::string::npos);
  CHECK(error_of("a: " + std::string(100, '[') + std::string(100, ']')).find("levels deep") !=
        std::string::npos);
  CHECK(error_of("a: " + std::string(1 << 21, 'x')).find("bytes, more than") != std::string::npos);
  CHECK(error_of("a: [" + std::string(300000, ',') + "]\n") != "");
}

TEST_CASE("overrides obey the same rules") {
  const Recipe recipe = load_set({"rollout.workers=2", "rollout={workers: 3}", "run.name=x y",
                                  "data.eval=[{name: e, path: p}]", "data.eval.0.samples=4"});
  CHECK(recipe.rollout.workers == 3);
  CHECK(recipe.run.name == "x y");
  REQUIRE(recipe.data.eval.size() == 1);
  CHECK(recipe.data.eval[0].samples == 4);
  CHECK(set_error("rollout.workers") == "--set rollout.workers: not of the form key.path=value");
  CHECK(set_error("=3").find("not of the form") != std::string::npos);
  CHECK(set_error("a..b=3").find("not a key path") != std::string::npos);
  CHECK(set_error("run.name.x=3").find("run.name: is a single value and has no keys") != std::string::npos);
  CHECK(set_error("rollout.wokers=3") ==
        "--set rollout.wokers=3: rollout.wokers: unknown key (did you mean 'workers'?)");
  CHECK(set_error("data.eval.7.samples=3") != "");
  CHECK(set_error("run.name=[").find("--set run.name=[: the value: ") == 0);
}

TEST_CASE("evaluation sets inherit the rollout's sampling") {
  const Recipe recipe = load_set({"rollout.temperature=0.5", "rollout.max_response_tokens=64",
                                  "data.eval=[{name: a, path: p}, {name: b, path: q, temperature: 0}]"});
  REQUIRE(recipe.data.eval.size() == 2);
  CHECK(recipe.data.eval[0].temperature == 0.5);
  CHECK(recipe.data.eval[0].max_response_tokens == 64);
  CHECK(recipe.data.eval[1].temperature == 0.0);
  CHECK(set_error("data.eval=[{name: a, path: p}, {name: a, path: q}]")
            .find("data.eval.1.name: 'a' is taken") != std::string::npos);
  CHECK(set_error("data.eval=[{name: a/b, path: p}]").find("metric names") != std::string::npos);
}

TEST_CASE("the precision part checks its references") {
  const std::string bad = set_error("precision.matchers=[{name: m, pattern: \"*\", config: mxfp}]");
  CHECK(bad.find("precision.matchers.0.config: no config 'mxfp' in precision.configs (add it there)") !=
        std::string::npos);
  CHECK(set_error(
            "precision={configs: {mxfp8: {format: mxfp8}}, matchers: [{name: m, pattern: x, config: mxfp}]}")
            .find("did you mean 'mxfp8'?") != std::string::npos);
  CHECK(set_error("precision.configs={a: {format: mxfp8, layout: 1x16}}")
            .find("means nothing for format mxfp8") != std::string::npos);
  CHECK(set_error("precision.configs={a: {}}").find("precision.configs.a.format: required key") !=
        std::string::npos);
  CHECK(set_error("precision.bf16_layers.last=120%").find("share from 0% to 100%") != std::string::npos);
  CHECK(set_error("precision.bf16_layers.last=1.5").find("share from 0% to 100%") != std::string::npos);
  CHECK(set_error("precision.allow_mismatch=true").find("does nothing") != std::string::npos);
  const Recipe recipe = load_set(
      {"precision={configs: {q: {format: mxfp8}, b: {format: bf16}}, bf16_layers: {last: 15 %, first: 1}, "
       "matchers: [{name: m, pattern: \"*.experts.*\", config: q}]}"});
  CHECK(recipe.precision.find_config("q")->format == WeightFormat::kMXFP8);
  CHECK(recipe.precision.find_config("z") == nullptr);
  CHECK(recipe.precision.bf16_layers.first.resolve(48) == 1);
}

TEST_CASE("a share of layers is rounded up") {
  CHECK((LayerShare{true, 15.0}.resolve(48)) == 8);
  CHECK((LayerShare{true, 10.0}.resolve(50)) == 5);
  CHECK((LayerShare{true, 7.0}.resolve(100)) == 7);
  CHECK((LayerShare{true, 0.0}.resolve(48)) == 0);
  CHECK((LayerShare{true, 0.1}.resolve(48)) == 1);
  CHECK((LayerShare{true, 100.0}.resolve(48)) == 48);
  CHECK((LayerShare{false, 99.0}.resolve(48)) == 48);
}

TEST_CASE("an external reward says who scores and what a failure counts") {
  CHECK(load_set({"reward={type: external, command: [scorer, -v]}"}).reward.external->retries == 2);
  CHECK(set_error("reward={type: external}").find("needs either 'command'") != std::string::npos);
  CHECK(set_error("reward={type: external, command: [a], address: \"b:1\"}").find("needs either") !=
        std::string::npos);
  CHECK(set_error("reward={type: external, address: b}").find("must be HOST:PORT") != std::string::npos);
  CHECK(set_error("reward={type: external, command: [a], on_failure: score}").find("must be given") !=
        std::string::npos);
  CHECK(set_error("reward={type: external, command: [a], failure_score: 1.0}")
            .find("is for on_failure: score only") != std::string::npos);
  CHECK(set_error("reward={type: external, command: [a], on_failure: drop, failure_score: 1.0}")
            .find("is for on_failure: score only") != std::string::npos);
  CHECK(load_set({"reward={type: external, command: [a], on_failure: drop}"}).reward.drops());
  CHECK(set_error("reward={type: exact, command: [a]}").find("unknown") != std::string::npos);
}

TEST_CASE("features that are not built yet are refused and located") {
  const std::vector<std::string> asked = {
      "trainer.expert_tensor_parallel=2",
      "restart=workers",
      "monitor.prometheus=127.0.0.1:9000",
  };
  for (const std::string& one : asked) {
    CAPTURE(one);
    const std::string error = set_error(one);
    CHECK(error.find("is not built in this version (use ") != std::string::npos);
    CHECK(error.find("--set " + one.substr(0, 40)) == 0);
    CHECK(error.find('\n') == std::string::npos);
  }
  CHECK(error_of(kMinimal + "precision: {trainer_forward: bf16, allow_mismatch: true}\n").find("not built") !=
        std::string::npos);
}

TEST_CASE("both pools are on one kind of device and CUDA computes in bfloat16 without expert parallelism") {
  CHECK(load_set({"rollout.device=cuda"}).rollout.device == DeviceChoice::kCuda);
  CHECK(load_set({"rollout.device=cuda", "trainer.device=cuda"}).trainer.device == DeviceChoice::kCuda);
  CHECK(load_set({"trainer.device=cpu", "model.compute_dtype=float32"}).trainer.device == DeviceChoice::kCpu);
  const auto error = [](const std::vector<std::string>& sets) {
    const auto recipe = parse_recipe(kMinimal, "r.yaml", sets);
    return recipe.ok() ? std::string() : std::string(message_of(recipe.status()));
  };
  const std::string mixed = error({"rollout.device=cpu", "trainer.device=cuda"});
  CHECK(mixed.find("trainer.device: must be where rollout.device is, on cpu") != std::string::npos);
  CHECK(error({"rollout.device=cuda", "trainer.device=cpu"}).find("rollout.device is, on cuda") !=
        std::string::npos);
  CHECK(error({"trainer.device=cuda", "model.compute_dtype=float32"})
            .find("model.compute_dtype: must be bfloat16 with trainer.device cuda") != std::string::npos);
  CHECK(error({"rollout.device=cuda", "trainer.workers=2", "trainer.expert_parallel=2"})
            .find("trainer.expert_parallel: must be 1 with rollout.device cuda") != std::string::npos);
}

TEST_CASE("several training files have weights of their own") {
  const Recipe recipe =
      load_set({"data.train=[{path: a.jsonl, weight: 3}, {path: 'b.parquet@[:100]', label_key: a.b, "
                "on_bad_line: skip}]",
                "data.train.1.weight=0.5"});
  REQUIRE(recipe.data.train.size() == 2);
  CHECK(recipe.data.train[0].weight == 3.0);
  CHECK(recipe.data.train[1].weight == 0.5);
  CHECK(recipe.data.train[1].path == "b.parquet@[:100]");
  CHECK(recipe.data.train[1].label_key == "a.b");
  CHECK(recipe.data.train[1].on_bad_line == OnBad::kSkip);
  const StatusOr<Recipe> again = parse_recipe(to_yaml(recipe), "again.yaml");
  REQUIRE(again.ok());
  CHECK(*again == recipe);
  CHECK(set_error("data.train=[]").find("data.train: must name 1 to") != std::string::npos);
  CHECK(set_error("data.train=[{path: a, weight: 0}]").find("data.train.0.weight") != std::string::npos);
  CHECK(set_error("data.train=[{weight: 1}]").find("data.train.0.path: required key is missing") !=
        std::string::npos);
}

TEST_CASE("a template's variables keep their types") {
  const Recipe recipe =
      load_set({"data.chat_template_kwargs={enable_thinking: false, n: 2, x: 0.5, t: 'true', l: [a, null], "
                "m: {k: \"ü\"}}",
                "data.chat_date=2026-01-31"});
  CHECK(
      recipe.data.chat_template_kwargs ==
      "{\"enable_thinking\":false,\"n\":2,\"x\":0.5,\"t\":\"true\",\"l\":[\"a\",null],\"m\":{\"k\":\"ü\"}}");
  CHECK(recipe.data.chat_date == "2026-01-31");
  const StatusOr<Recipe> again = parse_recipe(to_yaml(recipe), "again.yaml");
  REQUIRE(again.ok());
  CHECK(*again == recipe);
  CHECK(load_set({"data.chat_template_kwargs=null"}).data.chat_template_kwargs == "{}");
  CHECK(set_error("data.chat_template_kwargs=[1]").find("must be a mapping") != std::string::npos);
  CHECK(set_error("data.chat_template_kwargs={a: {b: 1, b: 2}}").find("'b' is written twice") !=
        std::string::npos);
}

TEST_CASE("the objective is chosen freely") {
  const Recipe recipe =
      load_set({"trainer.updates_per_step=3", "algorithm.clip_dual=3.0", "algorithm.advantage=leave-one-out",
                "algorithm.aggregate=seq-mean-token-sum", "algorithm.entropy_coefficient=0.01",
                "algorithm.importance_correction=tis", "algorithm.filter_zero_std=true",
                "algorithm.overlong_penalty={buffer_tokens: 10, factor: 0.5}"});
  CHECK(recipe.trainer.updates_per_step == 3);
  CHECK(recipe.algorithm.clip_dual == std::optional<double>(3.0));
  CHECK(recipe.algorithm.advantage == AdvantageKind::kLeaveOneOut);
  CHECK(recipe.algorithm.aggregate == Aggregate::kSeqMeanTokenSum);
  CHECK(recipe.algorithm.entropy_coefficient == 0.01);
  CHECK(recipe.algorithm.importance_correction == ImportanceCorrection::kTis);
  CHECK(recipe.algorithm.filter_zero_std);
  CHECK((recipe.algorithm.overlong_penalty == OverlongPenalty{10, 0.5}));
  CHECK(load_set({"algorithm.importance_correction=mis"}).algorithm.importance_correction ==
        ImportanceCorrection::kMis);
  CHECK(load_set({"algorithm.routing_replay=true"}).algorithm.routing_replay);
  CHECK(load_set({"algorithm.kl_coefficient=0.01"}).algorithm.kl_coefficient == 0.01);
  CHECK(load_set({"model.reference=models/ref", "algorithm.reference_kl=true"}).model.reference ==
        std::optional<std::string>("models/ref"));
  CHECK(
      load_set({"model.reference=models/ref", "algorithm.kl_coefficient=0.01"}).model.reference.has_value());
  CHECK(set_error("model.reference=models/ref").find("model.reference: does nothing without") !=
        std::string::npos);
  CHECK(load_set({"algorithm.advantage=mean"}).algorithm.advantage == AdvantageKind::kMean);
  CHECK(load_set({"algorithm.aggregate=seq-mean-token-mean"}).algorithm.aggregate ==
        Aggregate::kSeqMeanTokenMean);

  CHECK(set_error("algorithm.clip_dual=1.0").find("algorithm.clip_dual: must be above 1") !=
        std::string::npos);
  CHECK(set_error("trainer.updates_per_step=33").find("must be at most rollout.prompts_per_step = 32") !=
        std::string::npos);
  CHECK(set_error("algorithm.overlong_penalty={buffer_tokens: 8193}")
            .find("must be at most rollout.max_response_tokens = 8192") != std::string::npos);
  CHECK(set_error("algorithm.overlong_penalty={factor: 1.0}").find("buffer_tokens: required key") !=
        std::string::npos);
}

TEST_CASE("backward modes and E5M2 gradients are chosen where the format allows them") {
  const auto with = [](const std::string& format, const std::string& backward) {
    return std::vector<std::string>{"precision.configs={q: {format: " + format + "}}",
                                    "precision.matchers=[{name: m, pattern: x, config: q}]",
                                    "precision.backward=" + backward};
  };
  CHECK(load_set(with("mxfp8", "quantized")).precision.backward == BackwardMode::kQuantized);
  CHECK(load_set(with("mxfp8", "dequantized")).precision.backward == BackwardMode::kDequantized);
  CHECK(load_set(with("nvfp4", "dequantized")).precision.backward == BackwardMode::kDequantized);
  CHECK(load_set(with("mxfp8, e5m2_gradients: true", "quantized")).precision.configs.at(0).e5m2_gradients);
  CHECK(error_of(kMinimal, with("mxfp8, e5m2_gradients: true", "high_precision"))
            .find("precision.configs.q.e5m2_gradients: does nothing without precision.backward quantized") !=
        std::string::npos);
  CHECK(error_of(kMinimal, with("nvfp4", "quantized")).find("precision.backward") != std::string::npos);
}

TEST_CASE("debug modes say what they need") {
  CHECK(load_set({}).debug.mode == DebugMode::kNone);
  CHECK(load_set({"debug.dump_batches=true"}).debug.dump_batches);
  CHECK(load_set({"debug.mode=rollout_only", "debug.dump_batches=true"}).debug.mode ==
        DebugMode::kRolloutOnly);
  const std::vector<std::string> train_only = {"debug.mode=train_only", "debug.load_batches=runs/a/batches"};
  CHECK(load_set(train_only).debug.mode == DebugMode::kTrainOnly);
  CHECK(load_set(train_only).debug.load_batches == std::optional<std::string>("runs/a/batches"));
  const StatusOr<Recipe> again = parse_recipe(to_yaml(load_set(train_only)), "again");
  REQUIRE(again.ok());
  CHECK(*again == load_set(train_only));

  CHECK(set_error("debug.mode=train_only").find("debug.mode: train_only needs debug.load_batches") !=
        std::string::npos);
  CHECK(set_error("debug.load_batches=x").find("does nothing without debug.mode train_only") !=
        std::string::npos);
  CHECK(set_error("debug.mode=both").find("debug.mode: ") != std::string::npos);
  const auto with = [&](const std::string& mode, const std::string& more) {
    return error_of(kMinimal,
                    {"debug.mode=" + mode,
                     mode == "train_only" ? train_only[1] : std::string("debug.load_batches=null"), more});
  };
  CHECK(with("train_only", "debug.dump_batches=true").find("debug.dump_batches") != std::string::npos);
  CHECK(with("train_only", "data.eval=[{name: e, path: p}]").find("data.eval: ") != std::string::npos);
  CHECK(
      with("train_only", "debug.corrupt_rollout={rank: 0, version: 0, byte: 0}").find("no rollout workers") !=
      std::string::npos);
  CHECK(with("rollout_only", "sft={path: p, steps: 1}").find("sft: debug.mode rollout_only") !=
        std::string::npos);
}

TEST_CASE("what a config asks for is refused only where an enabled matcher uses it") {
  CHECK(error_of(kMinimal, {"precision.configs={q: {format: nvfp4}}",
                            "precision.matchers=[{name: m, pattern: x, config: q}]"}) == "");
  const std::string configs = "precision.configs={q: {format: nvfp4, scope: tensor}}";
  CHECK(error_of(kMinimal, {configs}) == "");
  CHECK(error_of(kMinimal,
                 {configs, "precision.matchers=[{name: m, pattern: x, config: q, enabled: false}]"}) == "");
  CHECK(error_of(kMinimal, {configs, "precision.matchers=[{name: m, pattern: x, config: q}]"})
            .find("precision.configs.q.scope: one activation scale per batch") != std::string::npos);
  const std::vector<std::string> overrides = {configs,
                                              "precision.matchers=[{name: m, pattern: x, config: q}]"};
  const StatusOr<Inspection> inspection = inspect_recipe(kMinimal, "r.yaml", overrides);
  REQUIRE(inspection.ok());
  CHECK(exit_code(inspection->refused) == ExitCode::kBadRecipe);
  CHECK(inspection->recipe.precision.matchers.size() == 1);
}

TEST_CASE("a recipe that cannot be read is an I/O error") {
  const StatusOr<Recipe> recipe = load_recipe("/nonexistent/recipe.yaml");
  REQUIRE(!recipe.ok());
  CHECK(exit_code(recipe.status()) == ExitCode::kIo);
}
