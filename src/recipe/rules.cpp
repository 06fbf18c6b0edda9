#include <fmt/format.h>

#include <algorithm>
#include <cctype>
#include <set>

#include "recipe/schema.hpp"

namespace accord::recipe {
namespace {

class Rules {
 public:
  Rules(const Recipe& recipe, size_t matchers_from_file, Findings& findings)
      : r_(recipe), matchers_from_file_(matchers_from_file), findings_(findings) {}

  void check() {
    check_run();
    check_data();
    check_reward();
    check_rollout();
    check_trainer();
    check_devices();
    check_algorithm();
    check_optimizer("trainer.optimizer", r_.trainer.optimizer);
    if (r_.sft) {
      check_optimizer("sft.optimizer", r_.sft->optimizer);
    }
    check_precision();
    check_monitor();
    check_debug();
  }

 private:
  void fail(const std::string& path, std::string rule) {
    findings_.add(findings_.location_of(path), path, std::move(rule));
  }

  void check_run() {
    const auto bad = [](char c) { return c == '/' || static_cast<unsigned char>(c) < 0x20; };
    const bool nameless = r_.run.name.empty() && !r_.run.dir.empty();
    if (nameless || std::any_of(r_.run.name.begin(), r_.run.name.end(), bad) || r_.run.name == "." ||
        r_.run.name == "..") {
      fail("run.name",
           "must be a plain name without '/' (where only run.dir is given, its last part is the name)");
    }
  }

  void check_data() {
    std::set<std::string> names;
    for (size_t i = 0; i < r_.data.eval.size(); ++i) {
      const std::string& name = r_.data.eval[i].name;
      const std::string path = fmt::format("data.eval.{}.name", i);
      const auto good = [](unsigned char c) {
        return std::isalnum(c) != 0 || c == '_' || c == '-' || c == '.';
      };
      if (!std::all_of(name.begin(), name.end(), good)) {
        fail(path, "must consist of letters, digits, '_', '-' and '.' (it becomes part of metric names)");
      }
      if (!name.empty() && !names.insert(name).second) {
        fail(path, fmt::format("'{}' is taken by an earlier evaluation set (rename one)", name));
      }
    }
  }

  void check_reward() {
    if (!r_.reward.external) {
      return;
    }
    const ExternalReward& external = *r_.reward.external;
    if (external.command.empty() == !external.address.has_value()) {
      fail("reward",
           "type external needs either 'command' (a list: program and arguments) or 'address' "
           "(HOST:PORT of a RewardService)");
    }
    if (external.address) {
      const size_t colon = external.address->rfind(':');
      const std::string port = colon == std::string::npos ? "" : external.address->substr(colon + 1);
      const bool digits =
          !port.empty() && port.size() <= 5 &&
          std::all_of(port.begin(), port.end(), [](unsigned char c) { return std::isdigit(c) != 0; });
      if (colon == 0 || !digits || std::stoi(port) < 1 || std::stoi(port) > 65535) {
        fail("reward.address", fmt::format("must be HOST:PORT, is '{}'", *external.address));
      }
    }
    const bool scores = external.on_failure == OnFailure::kScore;
    if (scores && !external.failure_score) {
      fail("reward.failure_score",
           "must be given with on_failure: score (the score of a sample that got none)");
    } else if (!scores && external.failure_score) {
      fail("reward.failure_score", "is for on_failure: score only (remove it, or choose score)");
    }
  }

  void check_rollout() {
    const RolloutPart& rollout = r_.rollout;
    if (rollout.top_k == 0) {
      fail("rollout.top_k", "must be -1 (all) or at least 1, is 0");
    }
    if (rollout.samples_per_prompt < 2) {
      fail("rollout.samples_per_prompt",
           "must be at least 2: a group of one sample has no spread, so its advantage is always 0");
    }
    if (rollout.prefill_chunk > rollout.max_batch_rows) {
      fail("rollout.prefill_chunk", fmt::format("must be at most rollout.max_batch_rows = {}, is {}",
                                                rollout.max_batch_rows, rollout.prefill_chunk));
    }
    const int64_t sample = rollout.max_prompt_tokens + rollout.max_response_tokens;
    if (rollout.kv_cache_tokens != 0 && rollout.kv_cache_tokens < sample) {
      fail("rollout.kv_cache_tokens",
           fmt::format(
               "must be 0 (auto) or hold one sample of max_prompt_tokens + max_response_tokens = {}, is {}",
               sample, rollout.kv_cache_tokens));
    }
  }

  void check_trainer() {
    const int64_t sample = r_.rollout.max_prompt_tokens + r_.rollout.max_response_tokens;
    if (r_.trainer.tokens_per_microbatch < sample) {
      fail("trainer.tokens_per_microbatch",
           fmt::format("must hold one sample of rollout.max_prompt_tokens + max_response_tokens = {}, is {}",
                       sample, r_.trainer.tokens_per_microbatch));
    }
    if (const int64_t places = r_.trainer.expert_parallel; places > 1 && r_.trainer.workers % places != 0) {
      fail("trainer.expert_parallel",
           fmt::format("must divide trainer.workers = {}, is {}", r_.trainer.workers, places));
    }
    if (r_.trainer.updates_per_step > r_.rollout.prompts_per_step) {
      fail("trainer.updates_per_step",
           fmt::format("must be at most rollout.prompts_per_step = {}, is {} (each update needs a group)",
                       r_.rollout.prompts_per_step, r_.trainer.updates_per_step));
    }
  }

  void check_devices() {
    const DeviceChoice rollout = r_.rollout.device;
    const DeviceChoice trainer = r_.trainer.device;
    const bool any_cuda = rollout == DeviceChoice::kCuda || trainer == DeviceChoice::kCuda;
    const bool any_cpu = rollout == DeviceChoice::kCpu || trainer == DeviceChoice::kCpu;
    if (any_cuda && any_cpu) {
      fail(
          "trainer.device",
          fmt::format("must be where rollout.device is, on {}, because sums on CUDA and on the CPU differ in "
                      "their last bits (give both the same, or one of them auto)",
                      rollout == DeviceChoice::kCuda ? "cuda" : "cpu"));
    }
    if (any_cuda && r_.model.compute_dtype != Dtype::kBF16) {
      fail("model.compute_dtype",
           fmt::format("must be bfloat16 with {}.device cuda (float32 is computed on the CPU only)",
                       rollout == DeviceChoice::kCuda ? "rollout" : "trainer"));
    }
    if (any_cuda && r_.trainer.expert_parallel > 1) {
      fail("trainer.expert_parallel",
           fmt::format("must be 1 with {}.device cuda, where every trainer has all experts, is {}",
                       trainer == DeviceChoice::kCuda ? "trainer" : "rollout", r_.trainer.expert_parallel));
    }
  }

  void check_algorithm() {
    const int64_t limit = r_.rollout.max_response_tokens;
    if (r_.model.reference && r_.algorithm.kl_coefficient == 0.0 && !r_.algorithm.reference_kl) {
      fail("model.reference",
           "does nothing without algorithm.kl_coefficient or algorithm.reference_kl (set one, or remove it)");
    }
    const auto& penalty = r_.algorithm.overlong_penalty;
    if (penalty && penalty->buffer_tokens > limit) {
      fail("algorithm.overlong_penalty.buffer_tokens",
           fmt::format("must be at most rollout.max_response_tokens = {}, is {}", limit,
                       penalty->buffer_tokens));
    }
  }

  void check_optimizer(const std::string& path, const OptimizerPart& optimizer) {
    if (optimizer.schedule == Schedule::kConstant && optimizer.min_lr != 0.0) {
      fail(path + ".min_lr", "does nothing with schedule constant (remove it, or choose linear or cosine)");
    }
    if (optimizer.min_lr > optimizer.lr) {
      fail(path + ".min_lr", fmt::format("must be at most lr = {}, is {}", optimizer.lr, optimizer.min_lr));
    }
  }

  void check_precision() {
    const PrecisionPart& precision = r_.precision;
    std::set<std::string> names;
    std::vector<std::string> known;
    for (const PrecisionConfig& config : precision.configs) {
      known.push_back(config.name);
    }
    bool nvfp4 = false;
    for (size_t i = 0; i < precision.matchers.size(); ++i) {
      const PrecisionMatcher& matcher = precision.matchers[i];
      const bool own = i >= matchers_from_file_;
      const std::string path = own ? fmt::format("precision.matchers.{}", i - matchers_from_file_)
                                   : std::string("precision.te_config_file");
      if (!matcher.name.empty() && !names.insert(matcher.name).second) {
        fail(path + ".name", fmt::format("'{}' is taken by an earlier matcher (rename one)", matcher.name));
      }
      const PrecisionConfig* config = precision.find_config(matcher.config);
      if (config == nullptr && !matcher.config.empty()) {
        const auto guess = nearest(matcher.config, known);
        fail(path + ".config",
             guess ? fmt::format("no config '{}' in precision.configs (did you mean '{}'?)", matcher.config,
                                 *guess)
                   : fmt::format("no config '{}' in precision.configs (add it there)", matcher.config));
      }
      nvfp4 = nvfp4 || (config != nullptr && matcher.enabled && config->format == WeightFormat::kNVFP4);
    }
    for (const PrecisionConfig& config : precision.configs) {
      if (config.e5m2_gradients && precision.backward != BackwardMode::kQuantized) {
        fail(fmt::format("precision.configs.{}.e5m2_gradients", config.name),
             "does nothing without precision.backward quantized, since no other mode quantizes gradients "
             "(remove "
             "it, or choose quantized)");
      }
    }
    if (nvfp4 && precision.backward == BackwardMode::kQuantized) {
      fail("precision.backward",
           "quantized exists for mxfp8 only (use high_precision or dequantized with nvfp4)");
    }
    if (precision.trainer_forward == TrainerForward::kBF16) {
      if (!precision.allow_mismatch) {
        fail("precision.trainer_forward",
             "bf16 needs precision.allow_mismatch: true, because the trainer then"
             " computes another policy than the rollout");
      }
      if (nvfp4) {
        fail("precision.trainer_forward", "bf16 is legal with an mxfp8 rollout only (use same with nvfp4)");
      }
    } else if (precision.allow_mismatch) {
      fail("precision.allow_mismatch", "does nothing with trainer_forward same (remove it)");
    }
  }

  void check_monitor() {
    const std::string& listen = r_.monitor.listen;
    const size_t colon = listen.rfind(':');
    const auto port =
        colon == std::string::npos ? std::nullopt : parse_integer(std::string_view(listen).substr(colon + 1));
    if (!port || colon == 0 || *port < 0 || *port > 65535) {
      fail("monitor.listen",
           fmt::format("must be HOST:PORT with a port from 0 (any free one) to 65535, is '{}'", listen));
    }
  }

  void check_debug() {
    const DebugPart& debug = r_.debug;
    const bool train_only = debug.mode == DebugMode::kTrainOnly;
    if (train_only && !debug.load_batches) {
      fail(
          "debug.mode",
          "train_only needs debug.load_batches: a directory of batches that debug.dump_batches wrote, or one "
          "of its files");
    }
    if (!train_only && debug.load_batches) {
      fail("debug.load_batches", "does nothing without debug.mode train_only (remove it, or set the mode)");
    }
    if (train_only && debug.dump_batches) {
      fail("debug.dump_batches", "with debug.mode train_only the batches are there already (use false)");
    }
    if (train_only && !r_.data.eval.empty()) {
      fail("data.eval", "debug.mode train_only has no rollout workers to evaluate with (use [])");
    }
    if (debug.mode == DebugMode::kRolloutOnly && r_.sft) {
      fail("sft", "debug.mode rollout_only trains nothing (use null)");
    }
    if (train_only && debug.corrupt_rollout) {
      fail("debug.corrupt_rollout", "debug.mode train_only has no rollout workers (use null)");
    }
    if (r_.debug.corrupt_rollout && r_.debug.corrupt_rollout->rank >= r_.rollout.workers) {
      fail("debug.corrupt_rollout.rank", fmt::format("must be below rollout.workers = {}, is {}",
                                                     r_.rollout.workers, r_.debug.corrupt_rollout->rank));
    }
  }

  const Recipe& r_;
  size_t matchers_from_file_;
  Findings& findings_;
};

}  // namespace

void check_rules(const Recipe& recipe, size_t matchers_from_file, Findings& findings) {
  Rules(recipe, matchers_from_file, findings).check();
}

}  // namespace accord::recipe
