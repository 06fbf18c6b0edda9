#include "recipe/schema.hpp"

#include <fmt/format.h>

#include <cmath>
#include <limits>
#include <set>

namespace accord::recipe {
namespace {

constexpr double kInfinity = std::numeric_limits<double>::infinity();
constexpr int64_t kMaxSteps = 1'000'000'000;
constexpr int64_t kMaxTokens = int64_t{1} << 30;
constexpr int64_t kMaxWorkers = 65536;
constexpr int64_t kMaxThreads = 4096;
constexpr size_t kMaxTrainFiles = 1000;
constexpr int64_t kMaxSeconds = 30 * 24 * 3600;
// Within what fp32 holds: a value that becomes 0 or infinity there would make NaN out of good numbers.
constexpr RealRange kAnyPositive{1e-30, 1e30};
constexpr RealRange kNotNegative{0.0, 1e30};
// Below it a division by the temperature may overflow for ordinary logits.
constexpr RealRange kTemperature{1e-4, 1e4};
constexpr RealRange kEvalTemperature{0.0, 1e4};
constexpr RealRange kWeight{1e-6, 1e6};
constexpr RealRange kShare{0.0, 1.0};
constexpr RealRange kPositiveShare{1e-30, 1.0};

// The last component of a path, as a name for the run.
std::string last_component(std::string_view path) {
  while (path.size() > 1 && path.ends_with('/')) {
    path.remove_suffix(1);
  }
  return std::string(path.substr(path.rfind('/') + 1));
}

void read_run(MapReader map, RunPart& run) {
  map.text("name", run.name);
  map.text("dir", run.dir);
  map.natural("seed", run.seed);
  map.integer("steps", run.steps, 1, kMaxSteps);
  if (!map.has("name") && !map.has("dir")) {
    map.fail("name", "required key is missing (give run.name, or run.dir)");
  }
  if (run.name.empty()) {
    run.name = last_component(run.dir);
  }
  if (run.dir.empty() && !run.name.empty()) {
    run.dir = "runs/" + run.name;
  }
  map.finish();
}

void read_model(MapReader map, ModelPart& model) {
  map.require("checkpoint", "the directory of a Hugging Face checkpoint");
  map.text("checkpoint", model.checkpoint);
  map.choice("compute_dtype", model.compute_dtype);
  map.choice("mla", model.mla);
  map.optional_text("reference", model.reference);
  map.finish();
}

void read_train_data(MapReader map, TrainData& train) {
  map.require("path", "a file of prompts");
  map.text("path", train.path);
  map.real("weight", train.weight, kWeight);
  map.text("prompt_key", train.prompt_key);
  map.text("label_key", train.label_key);
  map.choice("on_bad_line", train.on_bad_line);
  map.choice("on_long_prompt", train.on_long_prompt);
  map.finish();
}

// One file, or a list of files.
void read_train(MapReader& map, std::vector<TrainData>& train) {
  Node* node = map.raw("train");
  if (node == nullptr || node->kind != Node::Kind::kSequence) {
    read_train_data({node, map.path_of("train"), map.findings()}, train.emplace_back());
    return;
  }
  if (node->items.empty() || node->items.size() > kMaxTrainFiles) {
    map.fail("train", fmt::format("must name 1 to {} files, names {}", kMaxTrainFiles, node->items.size()));
  }
  for (size_t i = 0; i < node->items.size(); ++i) {
    const std::string path = fmt::format("{}.{}", map.path_of("train"), i);
    map.findings().remember(path, node->items[i].location);
    read_train_data({&node->items[i], path, map.findings()}, train.emplace_back());
  }
}

void read_eval_data(MapReader map, const RolloutPart& rollout, EvalData& eval) {
  map.require("name", "it becomes part of metric names: eval/<name>/pass1");
  map.text("name", eval.name);
  map.require("path", "a file of prompts");
  map.text("path", eval.path);
  map.text("prompt_key", eval.prompt_key);
  map.text("label_key", eval.label_key);
  map.integer("samples", eval.samples, 1, 1'000'000);
  map.integer("every", eval.every, 1, kMaxSteps);
  eval.temperature = rollout.temperature;
  eval.top_p = rollout.top_p;
  eval.max_response_tokens = rollout.max_response_tokens;
  map.real("temperature", eval.temperature, kEvalTemperature);
  map.real("top_p", eval.top_p, kPositiveShare);
  map.integer("max_response_tokens", eval.max_response_tokens, 1, kMaxTokens);
  map.finish();
}

void read_data(MapReader map, const RolloutPart& rollout, DataPart& data) {
  read_train(map, data.train);
  if (Node* list = map.raw("eval")) {
    if (list->kind != Node::Kind::kSequence) {
      map.fail("eval", fmt::format("must be a list of evaluation sets, is {}", list->kind_name()));
    } else {
      for (size_t i = 0; i < list->items.size(); ++i) {
        const std::string path = fmt::format("{}.{}", map.path_of("eval"), i);
        map.findings().remember(path, list->items[i].location);
        read_eval_data({&list->items[i], path, map.findings()}, rollout, data.eval.emplace_back());
      }
    }
  }
  map.text("chat_template", data.chat_template);
  map.json_object("chat_template_kwargs", data.chat_template_kwargs);
  map.optional_text("chat_date", data.chat_date);
  map.finish();
}

void read_external_reward(MapReader& map, ExternalReward& external) {
  map.text_list("command", external.command);
  map.optional_text("address", external.address);
  map.integer("batch_size", external.batch_size, 1, 1'000'000);
  map.integer("deadline_s", external.deadline_s, 1, kMaxSeconds);
  map.integer("total_deadline_s", external.total_deadline_s, 1, kMaxSeconds);
  map.integer("retries", external.retries, 0, 1000);
  map.choice("on_failure", external.on_failure);
  if (const Node* score = map.raw("failure_score"); score != nullptr && score->kind != Node::Kind::kNull) {
    map.real("failure_score", external.failure_score.emplace(), {-1e30, 1e30});
  }
}

void read_reward(MapReader map, RewardPart& reward) {
  map.require("type", "such as math_dapo");
  map.text("type", reward.type);
  if (reward.type == kExternalReward) {
    read_external_reward(map, reward.external.emplace());
  }
  map.finish();
}

void read_rollout(MapReader map, RolloutPart& rollout) {
  map.integer("workers", rollout.workers, 1, kMaxWorkers);
  map.choice("device", rollout.device);
  map.integer("threads", rollout.threads, 0, kMaxThreads);
  map.integer("prompts_per_step", rollout.prompts_per_step, 1, 1'000'000);
  map.integer("samples_per_prompt", rollout.samples_per_prompt, 1, 1'000'000);
  map.integer("max_prompt_tokens", rollout.max_prompt_tokens, 1, kMaxTokens);
  map.integer("max_response_tokens", rollout.max_response_tokens, 1, kMaxTokens);
  map.real("temperature", rollout.temperature, kTemperature);
  map.real("top_p", rollout.top_p, kPositiveShare);
  map.integer("top_k", rollout.top_k, -1, kMaxTokens);
  map.text_list("stop", rollout.stop);
  map.integer("prefill_chunk", rollout.prefill_chunk, 1, kMaxTokens);
  map.integer("max_batch_rows", rollout.max_batch_rows, 1, 1'000'000);
  map.integer("kv_cache_tokens", rollout.kv_cache_tokens, 0, int64_t{1} << 40);
  map.boolean("cuda_graphs", rollout.cuda_graphs);
  map.boolean("expert_fragments", rollout.expert_fragments);
  map.finish();
}

void read_optimizer(MapReader map, OptimizerPart& optimizer) {
  map.real("lr", optimizer.lr, kNotNegative);
  map.choice("schedule", optimizer.schedule);
  map.real("min_lr", optimizer.min_lr, kNotNegative);
  map.integer("warmup_steps", optimizer.warmup_steps, 0, kMaxSteps);
  std::vector<double> betas{optimizer.beta1, optimizer.beta2};
  map.real_list("betas", betas, 2, {0.0, std::nextafter(1.0, 0.0)});
  optimizer.beta1 = betas[0];
  optimizer.beta2 = betas[1];
  map.real("eps", optimizer.eps, kAnyPositive);
  map.real("weight_decay", optimizer.weight_decay, kNotNegative);
  map.real("clip_grad", optimizer.clip_grad, kNotNegative);
  map.finish();
}

void read_trainer(MapReader map, TrainerPart& trainer) {
  map.integer("workers", trainer.workers, 1, kMaxWorkers);
  map.choice("device", trainer.device);
  map.integer("threads", trainer.threads, 0, kMaxThreads);
  map.integer("tokens_per_microbatch", trainer.tokens_per_microbatch, 1, kMaxTokens);
  map.integer("updates_per_step", trainer.updates_per_step, 1, 1'000'000);
  const Node* parallel = map.raw("expert_parallel");
  if (parallel != nullptr && parallel->kind == Node::Kind::kScalar && parallel->text == "auto") {
    trainer.expert_parallel = 0;
  } else {
    map.integer("expert_parallel", trainer.expert_parallel, 1, kMaxWorkers);
  }
  map.integer("expert_tensor_parallel", trainer.expert_tensor_parallel, 1, kMaxWorkers);
  read_optimizer(map.map("optimizer"), trainer.optimizer);
  map.finish();
}

void read_algorithm(MapReader map, AlgorithmPart& algorithm) {
  if (map.choose("type", {"grpo"})) {
    algorithm.type = "grpo";
  }
  map.real("clip_low", algorithm.clip_low, kShare);
  map.real("clip_high", algorithm.clip_high, kNotNegative);
  const Node* dual = map.raw("clip_dual");
  if (dual != nullptr && dual->kind != Node::Kind::kNull) {
    map.real("clip_dual", algorithm.clip_dual.emplace(), {1.0, kInfinity, true});
  }
  map.choice("advantage", algorithm.advantage);
  map.choice("aggregate", algorithm.aggregate);
  map.real("kl_coefficient", algorithm.kl_coefficient, kNotNegative);
  map.choice("kl_estimator", algorithm.kl_estimator);
  map.boolean("reference_kl", algorithm.reference_kl);
  map.real("entropy_coefficient", algorithm.entropy_coefficient, {-kInfinity, kInfinity});
  map.boolean("routing_replay", algorithm.routing_replay);
  map.choice("importance_correction", algorithm.importance_correction);
  map.boolean("filter_zero_std", algorithm.filter_zero_std);
  const Node* overlong = map.raw("overlong_penalty");
  if (overlong != nullptr && overlong->kind != Node::Kind::kNull) {
    OverlongPenalty& penalty = algorithm.overlong_penalty.emplace();
    MapReader child = map.map("overlong_penalty");
    if (child.present()) {
      child.require("buffer_tokens", "the tokens before the response limit that are penalized");
    }
    child.integer("buffer_tokens", penalty.buffer_tokens, 1, kMaxTokens);
    child.real("factor", penalty.factor, kNotNegative);
    child.finish();
  }
  map.finish();
}

void read_config(MapReader map, PrecisionConfig& config) {
  map.require("format", "bf16, mxfp8 or nvfp4");
  map.choice("format", config.format);
  map.choice("scope", config.scope);
  map.choice("layout", config.layout);
  map.choice("four_over_six", config.four_over_six);
  map.choice("four_over_six_error", config.four_over_six_error);
  if (const auto range = map.choose("four_over_six_range", {"448", "256"})) {
    config.four_over_six_range = *range == 0 ? 448 : 256;
  }
  map.boolean("e5m2_gradients", config.e5m2_gradients);
  map.boolean("fast_math", config.fast_math);
  for (const char* key : {"scope", "layout", "four_over_six", "four_over_six_error", "four_over_six_range"}) {
    if (map.has(key) && config.format != WeightFormat::kNVFP4) {
      map.fail(key, fmt::format("means nothing for format {} (remove it)", name_of(config.format)));
    }
  }
  if (map.has("e5m2_gradients") && config.format != WeightFormat::kMXFP8) {
    map.fail("e5m2_gradients",
             fmt::format("means nothing for format {} (remove it)", name_of(config.format)));
  }
  if (map.has("fast_math") && config.format == WeightFormat::kBF16) {
    map.fail("fast_math", "means nothing for format bf16 (remove it)");
  }
  map.finish();
}

void read_matcher(MapReader map, PrecisionMatcher& matcher) {
  map.require("name", "any name that is used once");
  map.text("name", matcher.name);
  map.require("pattern", "a glob over weight names, such as \"*.mlp.experts.*\"");
  map.text("pattern", matcher.pattern);
  map.require("config", "a name of precision.configs");
  map.text("config", matcher.config);
  map.boolean("enabled", matcher.enabled);
  map.choice("names", matcher.names);
  map.boolean("over_bf16_layers", matcher.over_bf16_layers);
  map.finish();
}

void read_layer_share(MapReader& map, std::string_view key, LayerShare& share) {
  const Node* node = map.raw(key);
  if (node == nullptr) {
    return;
  }
  constexpr const char* kRule = "must be a number of layers, or a share from 0% to 100%";
  if (node->kind != Node::Kind::kScalar) {
    map.fail(key, fmt::format("{}; is {}", kRule, node->kind_name()));
    return;
  }
  std::string_view text = node->text;
  if (text.ends_with('%')) {
    text.remove_suffix(1);
    while (text.ends_with(' ')) {
      text.remove_suffix(1);
    }
    const auto percent = parse_real(text);
    if (!percent || *percent < 0.0 || *percent > 100.0) {
      map.fail(key, kRule);
      return;
    }
    share = {true, *percent};
    return;
  }
  const auto count = parse_integer(text);
  if (!count || *count < 0 || *count > 1'000'000) {
    map.fail(key, kRule);
    return;
  }
  share = {false, static_cast<double>(*count)};
}

void read_precision(MapReader map, PrecisionPart& precision) {
  Node* configs = map.raw("configs");
  MapReader config_map(configs, map.path_of("configs"), map.findings());
  if (config_map.present()) {
    std::set<std::string> seen;
    for (Node::Entry& entry : configs->entries) {
      Node* value = config_map.raw(entry.key);  // also marks the name as known
      if (seen.insert(entry.key).second) {
        PrecisionConfig& config = precision.configs.emplace_back();
        config.name = entry.key;
        read_config({value, config_map.path_of(entry.key), map.findings()}, config);
      }
    }
    config_map.finish();
  }
  if (Node* list = map.raw("matchers")) {
    if (list->kind != Node::Kind::kSequence) {
      map.fail("matchers", fmt::format("must be a list of matchers, is {}", list->kind_name()));
    } else {
      for (size_t i = 0; i < list->items.size(); ++i) {
        const std::string path = fmt::format("{}.{}", map.path_of("matchers"), i);
        map.findings().remember(path, list->items[i].location);
        read_matcher({&list->items[i], path, map.findings()}, precision.matchers.emplace_back());
      }
    }
  }
  MapReader layers = map.map("bf16_layers");
  read_layer_share(layers, "first", precision.bf16_layers.first);
  read_layer_share(layers, "last", precision.bf16_layers.last);
  layers.finish();
  map.text_list("high_precision", precision.high_precision);
  map.choice("backward", precision.backward);
  map.choice("trainer_forward", precision.trainer_forward);
  map.boolean("allow_mismatch", precision.allow_mismatch);
  map.optional_text("te_config_file", precision.te_config_file);
  map.boolean("from_environment", precision.from_environment);
  map.finish();
}

void read_checkpoint(MapReader map, CheckpointPart& checkpoint) {
  map.integer("every", checkpoint.every, 0, kMaxSteps);
  map.integer("keep", checkpoint.keep, 0, kMaxSteps);
  map.boolean("save_hf", checkpoint.save_hf);
  map.finish();
}

void read_monitor(MapReader map, MonitorPart& monitor) {
  map.text("listen", monitor.listen);
  map.optional_text("prometheus", monitor.prometheus);
  map.boolean("tensorboard", monitor.tensorboard);
  map.finish();
}

void read_sft(MapReader map, SftPart& sft) {
  map.require("path", "a JSONL file of prompts and responses");
  map.text("path", sft.path);
  map.text("prompt_key", sft.prompt_key);
  map.text("response_key", sft.response_key);
  map.require("steps", "the number of supervised steps before step 1");
  map.integer("steps", sft.steps, 1, kMaxSteps);
  map.integer("batch_size", sft.batch_size, 1, 1'000'000);
  read_optimizer(map.map("optimizer"), sft.optimizer);
  map.finish();
}

void read_deadlines(MapReader map, DeadlinesPart& deadlines) {
  map.integer("register", deadlines.register_, 1, kMaxSeconds);
  map.integer("rollout", deadlines.rollout, 1, kMaxSeconds);
  map.integer("train", deadlines.train, 1, kMaxSeconds);
  map.integer("sync", deadlines.sync, 1, kMaxSeconds);
  map.integer("checkpoint", deadlines.checkpoint, 1, kMaxSeconds);
  map.finish();
}

void read_debug(MapReader map, DebugPart& debug) {
  map.choice("mode", debug.mode);
  map.boolean("dump_batches", debug.dump_batches);
  map.optional_text("load_batches", debug.load_batches);
  const Node* corrupt = map.raw("corrupt_rollout");
  if (corrupt != nullptr && corrupt->kind != Node::Kind::kNull) {
    CorruptRollout& target = debug.corrupt_rollout.emplace();
    MapReader child = map.map("corrupt_rollout");
    for (const char* key : {"rank", "version", "byte"}) {
      child.require(key, "corrupt_rollout needs rank, version and byte");
    }
    child.integer("rank", target.rank, 0, kMaxWorkers);
    child.integer("version", target.version, 0, kMaxSteps);
    child.integer("byte", target.byte, 0, std::numeric_limits<int64_t>::max());
    child.finish();
  }
  map.finish();
}

}  // namespace

Recipe read_tree(Node& root, Findings& findings) {
  Recipe recipe;
  MapReader map(&root, "", findings);
  read_run(map.map("run"), recipe.run);
  read_model(map.map("model"), recipe.model);
  Node* data = map.raw("data");
  read_reward(map.map("reward"), recipe.reward);
  read_rollout(map.map("rollout"), recipe.rollout);
  read_data({data, "data", findings}, recipe.rollout, recipe.data);  // after the rollout: its defaults
  read_trainer(map.map("trainer"), recipe.trainer);
  read_algorithm(map.map("algorithm"), recipe.algorithm);
  read_precision(map.map("precision"), recipe.precision);
  read_checkpoint(map.map("checkpoint"), recipe.checkpoint);
  map.choice("restart", recipe.restart);
  read_monitor(map.map("monitor"), recipe.monitor);
  const Node* sft = map.raw("sft");
  if (sft != nullptr && sft->kind != Node::Kind::kNull) {
    read_sft(map.map("sft"), recipe.sft.emplace());
  }
  read_deadlines(map.map("deadlines"), recipe.deadlines);
  read_debug(map.map("debug"), recipe.debug);
  map.finish();
  return recipe;
}

}  // namespace accord::recipe
