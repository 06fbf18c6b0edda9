#include "recipe/miles_args.hpp"

#include <algorithm>
#include <string>

#include "recipe/recipe.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::recipe;

namespace {

const std::string kCommon =
    "CKPT_ARGS=(\n"
    "   --hf-checkpoint /models/Qwen3-30B-A3B  # BF16\n"
    ")\n"
    "ROLLOUT_ARGS=(\n"
    "   --prompt-data '/data/dapo math.jsonl' --input-key prompt --label-key label\n"
    "   --rm-type dapo --num-rollout 300 --rollout-batch-size 32 \\\n"
    "   --n-samples-per-prompt 8 --rollout-max-response-len 8192 --rollout-temperature 1\n"
    ")\n"
    "GRPO_ARGS=(--advantage-estimator grpo --eps-clip 0.2 --eps-clip-high 0.28 --entropy-coef 0.00)\n";

struct Imported {
  Recipe recipe;
  std::string yaml;
  std::string notes;
};

Imported imported(const std::string& args) {
  const StatusOr<MilesImport> result = import_miles_args(args, "run.sh");
  INFO((result.ok() ? std::string() : std::string(message_of(result.status()))));
  REQUIRE(result.ok());
  const StatusOr<Recipe> recipe = parse_recipe(result->yaml, "imported.yaml");
  CAPTURE(result->yaml);
  INFO((recipe.ok() ? std::string() : std::string(message_of(recipe.status()))));
  REQUIRE(recipe.ok());
  std::string notes;
  for (const std::string& note : result->notes) {
    notes += note + "\n";
  }
  return {*recipe, result->yaml, notes};
}

std::string error_of(const std::string& args) {
  const StatusOr<MilesImport> result = import_miles_args(args, "run.sh");
  return result.ok() ? "" : std::string(message_of(result.status()));
}

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a launcher with MXFP8 becomes a recipe") {
  const Imported run =
      imported(kCommon +
               "PERF=(--max-tokens-per-gpu 20480 --tensor-model-parallel-size 4)\n"
               "OPT=(--lr 1e-6 --weight-decay 0.1 --adam-beta1 0.9 --adam-beta2 0.98)\n"
               "--transformer-impl transformer_engine --bf16 --fp8-format e4m3 --fp8-recipe mxfp8\n"
               "--first-last-layers-bf16 --num-layers-at-start-in-bf16 0 "
               "--num-layers-at-end-in-bf16 7\n"
               "--extra-high-precision-layers-hf .kv_b_proj. .q_proj.\n"
               "--extra-high-precision-layers-megatron '.linear_fc2 .kv_b_proj.'\n");
  const Recipe& recipe = run.recipe;
  CHECK(recipe.model.checkpoint == "/models/Qwen3-30B-A3B");
  CHECK(recipe.data.train.at(0).path == "/data/dapo math.jsonl");
  CHECK(recipe.reward.type == "math_dapo_integer");
  CHECK(recipe.run.steps == 300);
  CHECK(recipe.rollout.prompts_per_step == 32);
  CHECK(recipe.rollout.samples_per_prompt == 8);
  CHECK(recipe.trainer.tokens_per_microbatch == 20480);
  CHECK(recipe.trainer.optimizer.beta2 == 0.98);
  CHECK(recipe.algorithm.clip_high == 0.28);
  CHECK(recipe.precision.bf16_layers.first.value == 0);
  CHECK(recipe.precision.bf16_layers.last.value == 7);
  CHECK(!recipe.precision.bf16_layers.last.is_percent);
  CHECK(recipe.precision.high_precision ==
        std::vector<std::string>{".kv_b_proj.", ".q_proj.", ".linear_fc2"});
  REQUIRE(recipe.precision.matchers.size() == 1);
  CHECK(recipe.precision.matchers[0].pattern == "*");
  CHECK(recipe.precision.configs[0].format == WeightFormat::kMXFP8);
  CHECK(recipe.precision.backward == BackwardMode::kQuantized);
  CHECK(contains(run.notes, "--tensor-model-parallel-size"));
}

TEST_CASE("a launcher with NVFP4, a precision file and variables becomes a recipe") {
  const Imported run = imported("export NVTE_BACKWARD_OVERRIDE=dequantized\nNVTE_NVFP4_4OVER6=weights\n" +
                                kCommon + "--fp4-format e2m1 --fp4-recipe nvfp4 --te-precision-config-file " +
                                std::string(ACCORD_TEST_DATA) + "/plans/nvfp4_experts.yaml\n");
  const PrecisionPart& precision = run.recipe.precision;
  CHECK(precision.backward == BackwardMode::kDequantized);
  REQUIRE(precision.matchers.size() >= 3);
  CHECK(precision.matchers[0].pattern == "*.mlp.experts.linear_fc1");
  CHECK(precision.matchers[0].names == MatchNames::kMegatron);
  CHECK(!precision.te_config_file.has_value());
  REQUIRE(precision.find_config("nvfp4") != nullptr);
  CHECK(precision.find_config("nvfp4")->four_over_six == recipe::FourOverSix::kWeights);
}

TEST_CASE("BF16 layers default as the launcher's programs do") {
  CHECK(
      imported(kCommon + "--fp8-format e4m3 --fp8-recipe mxfp8\n").recipe.precision.bf16_layers.last.value ==
      0);
  const Imported flagged =
      imported(kCommon + "--fp8-format e4m3 --fp8-recipe mxfp8 --first-last-layers-bf16\n");
  CHECK(flagged.recipe.precision.bf16_layers.first.value == 1);
  CHECK(flagged.recipe.precision.bf16_layers.last.value == 1);
  CHECK(contains(
      imported(kCommon + "--fp8-format e4m3 --fp8-recipe mxfp8 --num-layers-at-end-in-bf16 3\n").notes,
      "--first-last-layers-bf16 is missing"));
}

TEST_CASE("a slip in a launcher is an error with its line") {
  CHECK(contains(error_of("--hf-checkpoint m\n--fp8-fromat e4m3 --fp8-recipe mxfp8\n"),
                 "run.sh:2: --fp8-fromat"));
  CHECK(contains(error_of("--hf-checkpoint m\n--fp8-fromat e4m3\n"), "did you mean --fp8-format?"));
  CHECK(contains(error_of("--fp8-format e4m3\n"), "--fp8-recipe"));
  CHECK(contains(error_of("--fp8-format e4m3 --fp8-recipe delayed\n"), "mxfp8"));
  CHECK(contains(error_of("--fp8-format e4m3 --fp8-recipe mxfp8 --fp4-format e2m1 --fp4-recipe nvfp4\n"),
                 "excludes"));
  CHECK(contains(error_of("--lr 1e-6\n--lr 1e-5\n"), "given twice, first on line 1"));
  CHECK(contains(error_of("--lr fast\n"), "must be a number"));
  CHECK(contains(error_of("--hf-checkpoint $BASE/m\n"), "needs a shell"));
  CHECK(contains(error_of("--num-layers-at-end-in-bf16 1.5\n"), "number of layers"));
  CHECK(contains(error_of("--extra-high-precision-layers-hf '*.q_proj'\n"), "plain parts of names"));
  CHECK(contains(error_of("--lr 'unclosed\n"), "run.sh:1"));
}

TEST_CASE("keys that a launcher leaves open are named") {
  const StatusOr<MilesImport> result = import_miles_args("--lr 1e-6\n", "args");
  REQUIRE(result.ok());
  const auto named = std::find_if(result->notes.begin(), result->notes.end(),
                                  [](const std::string& note) { return contains(note, "fill in"); });
  REQUIRE(named != result->notes.end());
  CHECK(contains(*named, "model.checkpoint"));
  CHECK(contains(*named, "data.train.path"));
  CHECK(contains(*named, "reward.type"));
}

TEST_CASE("evaluation, reference and pool sizes of a launcher become keys") {
  const Imported run =
      imported(kCommon +
               "--use-kl-loss --kl-loss-coef 0.001 --kl-loss-type low_var_kl --use-rollout-routing-replay\n"
               "--eval-prompt-data aime /data/aime.jsonl math '/data/m.jsonl@[0:100]' --eval-interval 20 "
               "--n-samples-per-eval-prompt 16\n"
               "--global-batch-size 128 --actor-num-nodes 1 --actor-num-gpus-per-node 4 "
               "--rollout-num-gpus 4 --rollout-stop '</s>' 'a \"b\"'\n");
  CHECK(run.recipe.algorithm.reference_kl);
  CHECK(run.recipe.algorithm.kl_coefficient == 0.001);
  CHECK(run.recipe.algorithm.kl_estimator == KlEstimator::kLowVariance);
  CHECK(run.recipe.algorithm.routing_replay);
  REQUIRE(run.recipe.data.eval.size() == 2);
  CHECK(run.recipe.data.eval[1].name == "math");
  CHECK(run.recipe.data.eval[1].path == "/data/m.jsonl@[0:100]");
  CHECK(run.recipe.data.eval[1].every == 20);
  CHECK(run.recipe.data.eval[1].samples == 16);
  CHECK(run.recipe.trainer.updates_per_step == 2);
  CHECK(run.recipe.trainer.workers == 4);
  CHECK(run.recipe.rollout.workers == 4);
  CHECK(run.recipe.rollout.stop == std::vector<std::string>{"</s>", "a \"b\""});
  CHECK(contains(error_of(kCommon + "--global-batch-size 100\n"), "256 samples"));
  CHECK(contains(error_of(kCommon + "--eval-prompt-data aime\n"), "pairs"));
  CHECK(contains(error_of(kCommon + "--use-kl-loss --kl-loss-type k4\n"), "low_var_kl"));
}

TEST_CASE("chat templates apply where a launcher says so") {
  CHECK(imported(kCommon).recipe.data.chat_template == "none");
  CHECK(contains(imported(kCommon).notes, "--apply-chat-template is missing"));
  const Imported chat = imported(
      kCommon + "--apply-chat-template --apply-chat-template-kwargs '{\"enable_thinking\": false}'\n");
  CHECK(chat.recipe.data.chat_template == "auto");
  CHECK(contains(chat.recipe.data.chat_template_kwargs, "enable_thinking"));
  CHECK(contains(error_of(kCommon + "--apply-chat-template-kwargs thinking\n"), "JSON object"));
}

namespace {
const std::string kNvfp4 = "--fp4-format e2m1 --fp4-recipe nvfp4\n";
}

TEST_CASE("variables in a runtime environment count") {
  const std::string runtime =
      "HAS_NVLINK=$(nvidia-smi)\nRUNTIME_ENV_JSON=\"{\n  \\\"env_vars\\\": {\n    \\\"PYTHONPATH\\\": "
      "\\\"/root\\\",\n    \\\"NCCL_NVLS_ENABLE\\\": \\\"${HAS_NVLINK}\\\",\n    "
      "\\\"NVTE_BACKWARD_OVERRIDE\\\": \\\"dequantized\\\"\n  }\n}\"\n"
      "ray job submit --runtime-env-json=\"${RUNTIME_ENV_JSON}\" -- python3 train.py\n";
  CHECK(imported(kCommon + kNvfp4 + runtime).recipe.precision.backward == BackwardMode::kDequantized);
  const std::string inlined =
      "--runtime-env-json '{\"env_vars\": {\"NVTE_NVFP4_4OVER6\": \"weights\"}}' -- python3 train.py\n";
  CHECK(imported(kCommon + kNvfp4 + inlined).recipe.precision.find_config("nvfp4")->four_over_six ==
        recipe::FourOverSix::kWeights);
  CHECK(contains(error_of("export NVTE_BACKWARD_OVERRIDE=high_precision\n" + runtime),
                 "run.sh:7: NVTE_BACKWARD_OVERRIDE: 'dequantized' here, 'high_precision' on line 1"));
  CHECK(contains(error_of("X='{\"env_vars\": {\n\"NVTE_BACKWARD_OVERRIDE\": \"$B\"}}'\n"),
                 "run.sh:2: NVTE_BACKWARD_OVERRIDE: '$B' needs a shell"));
  CHECK(contains(error_of("X='{\"env_vars\": {\"NVTE_BACKWARD_OVERRIDE\": 1}}'\n"), "must be a string"));
  CHECK(contains(error_of("X=\"{\\\"env_vars\\\": $V, \\\"NVTE_DEBUG\\\": [}\"\n"), "run.sh:1: NVTE_DEBUG"));
  CHECK(contains(error_of("X='{\"env_vars\": {}, \"NVTE_BACKWARD_OVERRIDE\": \"dequantized\"}'\n"),
                 "not a key of env_vars"));
}

TEST_CASE("a precision variable that is not understood is an error with its line") {
  CHECK(
      contains(error_of("\nexport NVTE_BACKWARD_OVERRIDE=${B:-dequantized}\n"),
               "run.sh:2: NVTE_BACKWARD_OVERRIDE: 'NVTE_BACKWARD_OVERRIDE=${B:-dequantized}' needs a shell"));
  CHECK(contains(error_of("\nE=\"-e NVTE_NVFP4_4OVER6=all\"\n"), "run.sh:2: NVTE_NVFP4_4OVER6"));
  CHECK(contains(error_of("env = {\n'NVTE_NVFP4_4OVER6': 'all'}\n"), "run.sh:2: NVTE_NVFP4_4OVER6"));
  CHECK(contains(error_of("export NVTE_NVFP4_4OVER6\n"), "not understood"));
  CHECK(
      contains(error_of("if [ $A = 1 ]; then\nNVTE_NVFP4_4OVER6=all\nfi\n"), "run.sh:2: NVTE_NVFP4_4OVER6"));
  CHECK(contains(error_of("NVTE_NVFP4_4OVER6=all\nunset NVTE_NVFP4_4OVER6\n"), "run.sh:2"));
  CHECK(
      contains(error_of("A=1\nNVTE_BACKWARD_OVERRIDE=never\n"), "run.sh:2: NVTE_BACKWARD_OVERRIDE='never'"));
  CHECK(imported(kCommon + kNvfp4 + "NVTE_NVFP4_4OVER6=all  # NVTE_USE_FAST_MATH=1\n" +
                 "export NVTE_NVFP4_4OVER6\necho $NVTE_NVFP4_4OVER6\n")
            .recipe.precision.find_config("nvfp4")
            ->four_over_six == recipe::FourOverSix::kAll);
  CHECK(contains(imported(kCommon + kNvfp4 + "NVTE_NVFP4_40VER6=all\n").notes,
                 "did you mean NVTE_NVFP4_4OVER6?"));
}

TEST_CASE("variables that a launcher sets plainly are resolved") {
  const Imported run = imported(
      "BASE=/models\nname=\"Qwen3\"\nMODEL=${BASE}/$name\nLR=1e-5\n--hf-checkpoint $MODEL-30B --lr $LR\n"
      "--prompt-data \"$BASE/a b.jsonl\" --rm-type dapo\n");
  CHECK(run.recipe.model.checkpoint == "/models/Qwen3-30B");
  CHECK(run.recipe.data.train.at(0).path == "/models/a b.jsonl");
  CHECK(run.recipe.trainer.optimizer.lr == 1e-5);
  for (const char* before : {"", "A=$(pwd)\n", "A=/x\nA=/y\n", "if true; then A=/x; fi\n", "A=/x\nA+=/y\n",
                             "A='/x*'\n", "A=/x\nfor A in 1 2; do :; done\n", "A=/x\nunset A\n"}) {
    CAPTURE(before);
    CHECK(contains(error_of(std::string(before) + "--hf-checkpoint $A\n"), "needs a shell"));
  }
  CHECK(contains(error_of("A=/x\n--hf-checkpoint ${A:-/y}\n"), "needs a shell"));
  CHECK(contains(error_of("A='/x /y'\n--hf-checkpoint $A\n"), "takes one value, 2 given"));
  CHECK(contains(error_of("A=\n--hf-checkpoint $A\n"), "takes one value, 0 given"));
  CHECK(imported(kCommon + "A=\"--lr 1e-5 \\\n --seed 7\"\nB=$A\npython3 train.py $B\n").recipe.run.seed ==
        7);
  CHECK(imported(kCommon + "A=/x\n--rollout-stop '$A'\n").recipe.rollout.stop ==
        std::vector<std::string>{"$A"});
}

TEST_CASE("bounds of the importance correction are those of this program or errors") {
  const Imported run = imported(kCommon + "--use-tis --tis-clip 2 --tis-clip-low 0\n");
  CHECK(run.recipe.algorithm.importance_correction == ImportanceCorrection::kTis);
  CHECK(imported(kCommon + "--use-tis --tis-clip-high 2.0\n").recipe.algorithm.importance_correction ==
        ImportanceCorrection::kTis);
  CHECK(
      contains(error_of("--use-tis\n--tis-clip 5\n"), "run.sh:2: --tis-clip: is 5; weights are cut to 0..2"));
  CHECK(contains(error_of("--use-tis --tis-clip-low 0.5\n"), "--tis-clip-low: is 0.5"));
  CHECK(contains(imported(kCommon + "--tis-clip 5\n").notes, "nothing without --use-tis"));
}

TEST_CASE("errors of the recipe name the flag that wrote the key") {
  CHECK(
      error_of(kCommon + "\n--rollout-top-p 2\n").starts_with("run.sh:11: --rollout-top-p: rollout.top_p: "));
  CHECK(error_of("--advantage-estimator ppo\n")
            .starts_with("run.sh:1: --advantage-estimator: algorithm.type: "));
  CHECK(error_of("\n--eval-prompt-data '' a\n")
            .starts_with("run.sh:2: --eval-prompt-data: data.eval.0.name: "));
  CHECK(error_of("\n--rm_type dapo\n") ==
        "run.sh:2: --rm_type: unknown flag (did you mean --rm-type? flags have dashes)");
}

TEST_CASE("flags that may change results are told apart") {
  const Imported run =
      imported(kCommon + "--load /x --custom-rm-path m.py --colocate --eval-top-k 3 --optimizer adam\n");
  CHECK(contains(run.notes, "not imported, may change results: --load --custom-rm-path --eval-top-k\n"));
  CHECK(contains(run.notes, "not imported: --colocate\n"));
  const Imported other = imported(kCommon + "--dynamic-sampling-filter-path my.filter\n");
  CHECK(!other.recipe.algorithm.filter_zero_std);
  CHECK(contains(other.notes, "may change results: --dynamic-sampling-filter-path my.filter"));
}

TEST_CASE("filters and debugging and evaluation of a launcher become keys") {
  const Imported run = imported(
      kCommon +
      "--dynamic-sampling-filter-path "
      "miles.rollout.filter_hub.dynamic_sampling_filters.check_reward_nonzero_std\n"
      "--debug-rollout-only --save-debug-rollout-data /x/{rollout_id}.pt\n"
      "--eval-prompt-data aime a.jsonl --eval-interval 2 --eval-max-response-len 16384 --eval-top-p 0.7 "
      "--eval-temperature 0.5\n");
  CHECK(run.recipe.algorithm.filter_zero_std);
  CHECK(run.recipe.debug.mode == DebugMode::kRolloutOnly);
  CHECK(run.recipe.debug.dump_batches);
  REQUIRE(run.recipe.data.eval.size() == 1);
  CHECK(run.recipe.data.eval[0].max_response_tokens == 16384);
  CHECK(run.recipe.data.eval[0].top_p == 0.7);
  CHECK(run.recipe.data.eval[0].temperature == 0.5);
  const StatusOr<MilesImport> train = import_miles_args(kCommon + "--debug-train-only\n", "run.sh");
  REQUIRE(train.ok());
  CHECK(contains(train->yaml, "mode: train_only"));
  CHECK(contains(train->notes.back(), "fill in: debug.load_batches"));
  CHECK(contains(error_of("--debug-train-only --debug-rollout-only\n"), "excludes"));
}

TEST_CASE("variables that grow without bound are refused") {
  std::string text = "A0=xxxxxxxx\n";
  for (int i = 1; i < 40; ++i) {
    text += "A" + std::to_string(i) + "=$A" + std::to_string(i - 1) + "$A" + std::to_string(i - 1) + "\n";
  }
  CHECK(contains(error_of(text + "--hf-checkpoint $A39\n"), "needs a shell"));
}

TEST_CASE("values of a flag end where its array or command does") {
  const Imported run =
      imported(kCommon +
               "A=(--clip-grad 0.5)\nray start --head\nB=(\n  --eval-prompt-data aime\n  a.jsonl\n)\n"
               "python3 train.py --bf16 ${A[@]} \\\n --seed 7 \"${B[@]}\" \\\n --use-tis 2>&1 | tee log\n"
               "python3 train.py --rollout-top-p\n0.5\npkill -9 x; echo done && true\n");
  CHECK(run.recipe.trainer.optimizer.clip_grad == 0.5);
  CHECK(run.recipe.run.seed == 7);
  CHECK(run.recipe.rollout.top_p == 0.5);
  CHECK(run.recipe.data.eval.at(0).path == "a.jsonl");
  CHECK(imported(kCommon + "--rollout-stop '>' '|' > log\n").recipe.rollout.stop ==
        std::vector<std::string>{">", "|"});
  CHECK(contains(error_of("--seed 7 8\n"), "takes one value, 2 given"));
}
