// Recipe -> YAML: every key, in the order of the documentation.
#include <fmt/format.h>
#include <fmt/ranges.h>

#include <utility>

#include "recipe/names.hpp"
#include "recipe/schema.hpp"

namespace accord::recipe {
namespace {

// A double-quoted YAML scalar: safe for any text. (std::quoted would be found by its arguments.)
std::string quoted_scalar(std::string_view text) {
  std::string out = "\"";
  for (const char c : text) {
    switch (c) {
      case '"':
        out += "\\\"";
        break;
      case '\\':
        out += "\\\\";
        break;
      case '\n':
        out += "\\n";
        break;
      case '\t':
        out += "\\t";
        break;
      default:
        if (static_cast<unsigned char>(c) < 0x20 || c == 0x7F) {
          out += fmt::format("\\x{:02x}", static_cast<unsigned char>(c));
        } else {
          out += c;
        }
    }
  }
  return out + '"';
}

// The shortest text that reads back as the same double, and looks like a real number.
std::string real(double value) {
  const std::string text = fmt::format("{}", value);
  return text.find_first_of(".e") == std::string::npos ? text + ".0" : text;
}

std::string share(const LayerShare& layers) {
  return layers.is_percent ? fmt::format("{}%", layers.value)
                           : fmt::format("{}", static_cast<int64_t>(layers.value));
}

class Emitter {
 public:
  std::string take() { return std::move(out_); }

  void open(std::string_view key) {
    line(fmt::format("{}:", key));
    ++depth_;
  }
  void open_item() {
    item_ = true;
    ++depth_;
  }
  void close() { --depth_; }

  void plain(std::string_view key, std::string_view value) { line(fmt::format("{}: {}", key, value)); }
  void text(std::string_view key, std::string_view value) { plain(key, quoted_scalar(value)); }
  void optional_text(std::string_view key, const std::optional<std::string>& value) {
    plain(key, value ? quoted_scalar(*value) : "null");
  }
  void whole(std::string_view key, int64_t value) { plain(key, fmt::format("{}", value)); }
  void number(std::string_view key, double value) { plain(key, real(value)); }
  void flag(std::string_view key, bool value) { plain(key, value ? "true" : "false"); }
  template <class E>
  void choice(std::string_view key, E value) {
    plain(key, name_of(value));
  }
  void texts(std::string_view key, const std::vector<std::string>& values) {
    std::vector<std::string> items;
    for (const std::string& value : values) {
      items.push_back(quoted_scalar(value));
    }
    plain(key, fmt::format("[{}]", fmt::join(items, ", ")));
  }

 private:
  void line(std::string_view content) {
    std::string indent(2 * depth_, ' ');
    if (item_) {
      indent[indent.size() - 2] = '-';
      item_ = false;
    }
    out_ += indent;
    out_ += content;
    out_ += '\n';
  }

  std::string out_;
  size_t depth_ = 0;
  bool item_ = false;
};

void emit_data(const DataPart& data, Emitter& e) {
  e.open("data");
  e.open("train");
  for (const TrainData& train : data.train) {
    const bool alone = data.train.size() == 1;
    if (!alone) {
      e.open_item();
    }
    e.text("path", train.path);
    e.number("weight", train.weight);
    e.text("prompt_key", train.prompt_key);
    e.text("label_key", train.label_key);
    e.choice("on_bad_line", train.on_bad_line);
    e.choice("on_long_prompt", train.on_long_prompt);
    if (!alone) {
      e.close();
    }
  }
  e.close();
  if (data.eval.empty()) {
    e.plain("eval", "[]");
  } else {
    e.open("eval");
    for (const EvalData& eval : data.eval) {
      e.open_item();
      e.text("name", eval.name);
      e.text("path", eval.path);
      e.text("prompt_key", eval.prompt_key);
      e.text("label_key", eval.label_key);
      e.whole("samples", eval.samples);
      e.whole("every", eval.every);
      e.number("temperature", eval.temperature);
      e.number("top_p", eval.top_p);
      e.whole("max_response_tokens", eval.max_response_tokens);
      e.close();
    }
    e.close();
  }
  e.text("chat_template", data.chat_template);
  e.plain("chat_template_kwargs", data.chat_template_kwargs);  // JSON is YAML
  e.optional_text("chat_date", data.chat_date);
  e.close();
}

void emit_rollout(const RolloutPart& rollout, Emitter& e) {
  e.open("rollout");
  e.whole("workers", rollout.workers);
  e.choice("device", rollout.device);
  e.whole("threads", rollout.threads);
  e.whole("prompts_per_step", rollout.prompts_per_step);
  e.whole("samples_per_prompt", rollout.samples_per_prompt);
  e.whole("max_prompt_tokens", rollout.max_prompt_tokens);
  e.whole("max_response_tokens", rollout.max_response_tokens);
  e.number("temperature", rollout.temperature);
  e.number("top_p", rollout.top_p);
  e.whole("top_k", rollout.top_k);
  e.texts("stop", rollout.stop);
  e.whole("prefill_chunk", rollout.prefill_chunk);
  e.whole("max_batch_rows", rollout.max_batch_rows);
  e.whole("kv_cache_tokens", rollout.kv_cache_tokens);
  e.flag("cuda_graphs", rollout.cuda_graphs);
  e.flag("expert_fragments", rollout.expert_fragments);
  e.close();
}

void emit_optimizer(const OptimizerPart& optimizer, Emitter& e) {
  e.open("optimizer");
  e.number("lr", optimizer.lr);
  e.choice("schedule", optimizer.schedule);
  e.number("min_lr", optimizer.min_lr);
  e.whole("warmup_steps", optimizer.warmup_steps);
  e.plain("betas", fmt::format("[{}, {}]", real(optimizer.beta1), real(optimizer.beta2)));
  e.number("eps", optimizer.eps);
  e.number("weight_decay", optimizer.weight_decay);
  e.number("clip_grad", optimizer.clip_grad);
  e.close();
}

void emit_trainer(const TrainerPart& trainer, Emitter& e) {
  e.open("trainer");
  e.whole("workers", trainer.workers);
  e.choice("device", trainer.device);
  e.whole("threads", trainer.threads);
  e.whole("tokens_per_microbatch", trainer.tokens_per_microbatch);
  e.whole("updates_per_step", trainer.updates_per_step);
  e.plain("expert_parallel",
          trainer.expert_parallel == 0 ? "auto" : fmt::format("{}", trainer.expert_parallel));
  e.whole("expert_tensor_parallel", trainer.expert_tensor_parallel);
  emit_optimizer(trainer.optimizer, e);
  e.close();
}

void emit_algorithm(const AlgorithmPart& algorithm, Emitter& e) {
  e.open("algorithm");
  e.plain("type", algorithm.type);
  e.number("clip_low", algorithm.clip_low);
  e.number("clip_high", algorithm.clip_high);
  e.plain("clip_dual", algorithm.clip_dual ? real(*algorithm.clip_dual) : "null");
  e.choice("advantage", algorithm.advantage);
  e.choice("aggregate", algorithm.aggregate);
  e.number("kl_coefficient", algorithm.kl_coefficient);
  e.choice("kl_estimator", algorithm.kl_estimator);
  e.flag("reference_kl", algorithm.reference_kl);
  e.number("entropy_coefficient", algorithm.entropy_coefficient);
  e.flag("routing_replay", algorithm.routing_replay);
  e.choice("importance_correction", algorithm.importance_correction);
  e.flag("filter_zero_std", algorithm.filter_zero_std);
  if (algorithm.overlong_penalty) {
    e.open("overlong_penalty");
    e.whole("buffer_tokens", algorithm.overlong_penalty->buffer_tokens);
    e.number("factor", algorithm.overlong_penalty->factor);
    e.close();
  } else {
    e.plain("overlong_penalty", "null");
  }
  e.close();
}

void emit_config(const PrecisionConfig& config, Emitter& e) {
  e.open(quoted_scalar(config.name));
  e.choice("format", config.format);
  if (config.format == WeightFormat::kNVFP4) {
    e.choice("scope", config.scope);
    e.choice("layout", config.layout);
    e.choice("four_over_six", config.four_over_six);
    e.choice("four_over_six_error", config.four_over_six_error);
    e.whole("four_over_six_range", config.four_over_six_range);
  }
  if (config.format == WeightFormat::kMXFP8) {
    e.flag("e5m2_gradients", config.e5m2_gradients);
  }
  if (config.format != WeightFormat::kBF16) {
    e.flag("fast_math", config.fast_math);
  }
  e.close();
}

void emit_precision(const PrecisionPart& precision, Emitter& e) {
  e.open("precision");
  if (precision.configs.empty()) {
    e.plain("configs", "{}");
  } else {
    e.open("configs");
    for (const PrecisionConfig& config : precision.configs) {
      emit_config(config, e);
    }
    e.close();
  }
  if (precision.matchers.empty()) {
    e.plain("matchers", "[]");
  } else {
    e.open("matchers");
    for (const PrecisionMatcher& matcher : precision.matchers) {
      e.open_item();
      e.text("name", matcher.name);
      e.text("pattern", matcher.pattern);
      e.text("config", matcher.config);
      e.flag("enabled", matcher.enabled);
      e.choice("names", matcher.names);
      e.flag("over_bf16_layers", matcher.over_bf16_layers);
      e.close();
    }
    e.close();
  }
  e.open("bf16_layers");
  e.plain("first", share(precision.bf16_layers.first));
  e.plain("last", share(precision.bf16_layers.last));
  e.close();
  e.texts("high_precision", precision.high_precision);
  e.choice("backward", precision.backward);
  e.choice("trainer_forward", precision.trainer_forward);
  e.flag("allow_mismatch", precision.allow_mismatch);
  e.optional_text("te_config_file", precision.te_config_file);
  e.flag("from_environment", precision.from_environment);
  e.close();
}

void emit_sft(const std::optional<SftPart>& sft, Emitter& e) {
  if (!sft) {
    e.plain("sft", "null");
    return;
  }
  e.open("sft");
  e.text("path", sft->path);
  e.text("prompt_key", sft->prompt_key);
  e.text("response_key", sft->response_key);
  e.whole("steps", sft->steps);
  e.whole("batch_size", sft->batch_size);
  emit_optimizer(sft->optimizer, e);
  e.close();
}

void emit_deadlines_and_debug(const DeadlinesPart& deadlines, const DebugPart& debug, Emitter& e) {
  e.open("deadlines");
  e.whole("register", deadlines.register_);
  e.whole("rollout", deadlines.rollout);
  e.whole("train", deadlines.train);
  e.whole("sync", deadlines.sync);
  e.whole("checkpoint", deadlines.checkpoint);
  e.close();
  e.open("debug");
  e.choice("mode", debug.mode);
  e.flag("dump_batches", debug.dump_batches);
  e.optional_text("load_batches", debug.load_batches);
  if (debug.corrupt_rollout) {
    e.open("corrupt_rollout");
    e.whole("rank", debug.corrupt_rollout->rank);
    e.whole("version", debug.corrupt_rollout->version);
    e.whole("byte", debug.corrupt_rollout->byte);
    e.close();
  } else {
    e.plain("corrupt_rollout", "null");
  }
  e.close();
}

void emit_external_reward(const ExternalReward& external, Emitter& e) {
  e.texts("command", external.command);
  e.optional_text("address", external.address);
  e.whole("batch_size", external.batch_size);
  e.whole("deadline_s", external.deadline_s);
  e.whole("total_deadline_s", external.total_deadline_s);
  e.whole("retries", external.retries);
  e.choice("on_failure", external.on_failure);
  if (external.failure_score) {
    e.number("failure_score", *external.failure_score);
  } else {
    e.plain("failure_score", "null");
  }
}

}  // namespace

std::string quoted_yaml(std::string_view text) { return quoted_scalar(text); }

std::string precision_to_yaml(const PrecisionPart& precision) {
  Emitter e;
  emit_precision(precision, e);
  return e.take();
}

std::string to_yaml(const Recipe& recipe) {
  Emitter e;
  e.open("run");
  e.text("name", recipe.run.name);
  e.text("dir", recipe.run.dir);
  e.plain("seed", fmt::format("{}", recipe.run.seed));
  e.whole("steps", recipe.run.steps);
  e.close();
  e.open("model");
  e.text("checkpoint", recipe.model.checkpoint);
  e.choice("compute_dtype", recipe.model.compute_dtype);
  e.choice("mla", recipe.model.mla);
  e.optional_text("reference", recipe.model.reference);
  e.close();
  emit_data(recipe.data, e);
  e.open("reward");
  e.text("type", recipe.reward.type);
  if (recipe.reward.external) {
    emit_external_reward(*recipe.reward.external, e);
  }
  e.close();
  emit_rollout(recipe.rollout, e);
  emit_trainer(recipe.trainer, e);
  emit_algorithm(recipe.algorithm, e);
  emit_precision(recipe.precision, e);
  e.open("checkpoint");
  e.whole("every", recipe.checkpoint.every);
  e.whole("keep", recipe.checkpoint.keep);
  e.flag("save_hf", recipe.checkpoint.save_hf);
  e.close();
  e.choice("restart", recipe.restart);
  e.open("monitor");
  e.text("listen", recipe.monitor.listen);
  e.optional_text("prometheus", recipe.monitor.prometheus);
  e.flag("tensorboard", recipe.monitor.tensorboard);
  e.close();
  emit_sft(recipe.sft, e);
  emit_deadlines_and_debug(recipe.deadlines, recipe.debug, e);
  return e.take();
}

}  // namespace accord::recipe
