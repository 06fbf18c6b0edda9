#include "recipe/miles_flags.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cctype>
#include <iterator>
#include <utility>

#include "recipe/schema.hpp"
#include "recipe/utf8.hpp"

namespace accord::recipe {
namespace {

using std::string_view;

constexpr size_t kMinSpelled = 10;  // shorter flags are too easily near another

constexpr MilesFlag kKnown[] = {
    {"--hf-checkpoint", MilesKind::kText, "model.checkpoint"},
    {"--prompt-data", MilesKind::kText, "data.train.path"},
    {"--input-key", MilesKind::kText, "data.train.prompt_key"},
    {"--label-key", MilesKind::kText, "data.train.label_key"},
    {"--apply-chat-template", MilesKind::kFlag, ""},
    {"--apply-chat-template-kwargs", MilesKind::kText, ""},
    {"--rm-type", MilesKind::kText, ""},
    {"--num-rollout", MilesKind::kNumber, "run.steps"},
    {"--seed", MilesKind::kNumber, "run.seed"},
    {"--rollout-batch-size", MilesKind::kNumber, "rollout.prompts_per_step"},
    {"--n-samples-per-prompt", MilesKind::kNumber, "rollout.samples_per_prompt"},
    {"--rollout-max-prompt-len", MilesKind::kNumber, "rollout.max_prompt_tokens"},
    {"--rollout-max-response-len", MilesKind::kNumber, "rollout.max_response_tokens"},
    {"--rollout-temperature", MilesKind::kNumber, "rollout.temperature"},
    {"--rollout-top-p", MilesKind::kNumber, "rollout.top_p"},
    {"--rollout-top-k", MilesKind::kNumber, "rollout.top_k"},
    {"--max-tokens-per-gpu", MilesKind::kNumber, "trainer.tokens_per_microbatch"},
    {"--lr", MilesKind::kNumber, "trainer.optimizer.lr"},
    {"--lr-decay-style", MilesKind::kText, "trainer.optimizer.schedule"},
    {"--min-lr", MilesKind::kNumber, "trainer.optimizer.min_lr"},
    {"--lr-warmup-iters", MilesKind::kNumber, "trainer.optimizer.warmup_steps"},
    {"--adam-beta1", MilesKind::kNumber, ""},
    {"--adam-beta2", MilesKind::kNumber, ""},
    {"--adam-eps", MilesKind::kNumber, "trainer.optimizer.eps"},
    {"--weight-decay", MilesKind::kNumber, "trainer.optimizer.weight_decay"},
    {"--clip-grad", MilesKind::kNumber, "trainer.optimizer.clip_grad"},
    {"--advantage-estimator", MilesKind::kText, "algorithm.type"},
    {"--eps-clip", MilesKind::kNumber, "algorithm.clip_low"},
    {"--eps-clip-high", MilesKind::kNumber, "algorithm.clip_high"},
    {"--eps-clip-c", MilesKind::kNumber, "algorithm.clip_dual"},
    {"--entropy-coef", MilesKind::kNumber, "algorithm.entropy_coefficient"},
    {"--calculate-per-token-loss", MilesKind::kFlag, ""},
    {"--use-tis", MilesKind::kFlag, ""},
    {"--tis-clip", MilesKind::kNumber, ""},
    {"--tis-clip-low", MilesKind::kNumber, ""},
    {"--tis-clip-high", MilesKind::kNumber, ""},
    {"--use-kl-loss", MilesKind::kFlag, ""},
    {"--kl-loss-coef", MilesKind::kNumber, ""},
    {"--kl-loss-type", MilesKind::kText, ""},
    {"--use-routing-replay", MilesKind::kFlag, ""},
    {"--use-rollout-routing-replay", MilesKind::kFlag, ""},
    {"--rollout-stop", MilesKind::kList, ""},
    {"--rollout-num-gpus", MilesKind::kNumber, "rollout.workers"},
    {"--actor-num-nodes", MilesKind::kNumber, ""},
    {"--actor-num-gpus-per-node", MilesKind::kNumber, ""},
    {"--global-batch-size", MilesKind::kNumber, ""},
    {"--num-steps-per-rollout", MilesKind::kNumber, ""},
    {"--eval-prompt-data", MilesKind::kList, ""},
    {"--eval-interval", MilesKind::kNumber, ""},
    {"--n-samples-per-eval-prompt", MilesKind::kNumber, ""},
    {"--eval-temperature", MilesKind::kNumber, ""},
    {"--eval-top-p", MilesKind::kNumber, ""},
    {"--eval-max-response-len", MilesKind::kNumber, ""},
    {"--dynamic-sampling-filter-path", MilesKind::kText, ""},
    {"--debug-rollout-only", MilesKind::kFlag, ""},
    {"--debug-train-only", MilesKind::kFlag, ""},
    {"--save-debug-rollout-data", MilesKind::kAny, ""},
    {"--load-debug-rollout-data", MilesKind::kAny, ""},
    {"--save-interval", MilesKind::kNumber, "checkpoint.every"},
    {"--transformer-impl", MilesKind::kText, ""},
    {"--bf16", MilesKind::kFlag, ""},
    {"--fp16", MilesKind::kFlag, ""},
    {"--fp8-format", MilesKind::kText, ""},
    {"--fp8-recipe", MilesKind::kText, ""},
    {"--fp4-format", MilesKind::kText, ""},
    {"--fp4-recipe", MilesKind::kText, ""},
    {"--te-precision-config-file", MilesKind::kText, ""},
    {"--first-last-layers-bf16", MilesKind::kFlag, ""},
    {"--num-layers-at-start-in-bf16", MilesKind::kNumber, ""},
    {"--num-layers-at-end-in-bf16", MilesKind::kNumber, ""},
    {"--extra-high-precision-layers-hf", MilesKind::kList, ""},
    {"--extra-high-precision-layers-megatron", MilesKind::kList, ""},
};

// Flags without a key here that decide what is trained, on what, or how it is scored.
constexpr string_view kChanging[] = {
    "--load",
    "--ref-load",
    "--ref-ckpt-step",
    "--critic-load",
    "--start-rollout-id",
    "--num-epoch",
    "--rollout-seed",
    "--rollout-shuffle",
    "--metadata-key",
    "--tool-key",
    "--multimodal-keys",
    "--reward-key",
    "--eval-reward-key",
    "--group-rm",
    "--rm-url",
    "--custom-rm-path",
    "--custom-reward-post-process-path",
    "--custom-generate-function-path",
    "--custom-loss-function-path",
    "--custom-pg-loss-reducer-function-path",
    "--custom-tis-function-path",
    "--custom-config-path",
    "--rollout-function-path",
    "--rollout-sample-filter-path",
    "--buffer-filter-path",
    "--over-sampling-batch-size",
    "--partial-rollout",
    "--rollout-max-context-len",
    "--rollout-stop-token-ids",
    "--rollout-skip-special-tokens",
    "--eval-config",
    "--eval-function-path",
    "--eval-input-key",
    "--eval-label-key",
    "--eval-max-context-len",
    "--eval-max-prompt-len",
    "--eval-min-new-tokens",
    "--eval-top-k",
    "--disable-grpo-std-normalization",
    "--disable-rewards-normalization",
    "--normalize-advantages",
    "--gamma",
    "--lambd",
    "--kl-coef",
    "--loss-type",
    "--loss-mask-type",
    "--use-opd",
    "--use-opsm",
    "--use-rollout-logprobs",
    "--use-unbiased-kl",
    "--keep-old-actor",
    "--ref-update-interval",
    "--update-weights-interval",
    "--optimizer",
    "--lr-decay-iters",
    "--lr-warmup-fraction",
    "--lr-warmup-init",
};

// What code, not a key above, makes of flags.
constexpr std::pair<string_view, string_view> kTranslated[] = {
    {"reward", "--rm-type"},
    {"data.chat_template_kwargs", "--apply-chat-template-kwargs"},
    {"data.eval", "--eval-prompt-data"},
    {"trainer.optimizer.betas", "--adam-beta2"},
    {"trainer.optimizer.betas", "--adam-beta1"},
    {"algorithm.importance_correction", "--use-tis"},
    {"algorithm.filter_zero_std", "--dynamic-sampling-filter-path"},
    {"algorithm.routing_replay", "--use-routing-replay"},
    {"algorithm.routing_replay", "--use-rollout-routing-replay"},
    {"algorithm.kl_coefficient", "--kl-loss-coef"},
    {"algorithm.kl_estimator", "--kl-loss-type"},
    {"algorithm.reference_kl", "--use-kl-loss"},
    {"algorithm.aggregate", "--calculate-per-token-loss"},
    {"rollout.stop", "--rollout-stop"},
    {"trainer.workers", "--actor-num-gpus-per-node"},
    {"trainer.updates_per_step", "--global-batch-size"},
    {"trainer.updates_per_step", "--num-steps-per-rollout"},
    {"debug.dump_batches", "--save-debug-rollout-data"},
    {"debug", "--debug-rollout-only"},
    {"debug", "--debug-train-only"},
    {"debug", "--load-debug-rollout-data"},
    {"precision.bf16_layers.first", "--num-layers-at-start-in-bf16"},
    {"precision.bf16_layers.last", "--num-layers-at-end-in-bf16"},
    {"precision.bf16_layers", "--first-last-layers-bf16"},
    {"precision.high_precision", "--extra-high-precision-layers-hf"},
    {"precision.high_precision", "--extra-high-precision-layers-megatron"},
    {"precision", "--te-precision-config-file"},
    {"precision", "--fp8-format"},
    {"precision", "--fp4-format"}};

const MilesFlag* find_known(string_view flag) {
  const auto found = std::find_if(std::begin(kKnown), std::end(kKnown),
                                  [&](const MilesFlag& known) { return known.flag == flag; });
  return found == std::end(kKnown) ? nullptr : &*found;
}

// NAME=value, as shells set variables.
bool is_variable(string_view text) {
  const size_t equals = text.find('=');
  return text == "export" ||
         (equals != string_view::npos && equals > 0 &&
          std::all_of(text.begin(), text.begin() + static_cast<std::ptrdiff_t>(equals), [](unsigned char c) {
            return std::isupper(c) != 0 || std::isdigit(c) != 0 || c == '_';
          }));
}

// Whether a word after a flag, which has `count` values so far, begins something else.
bool ends_values(const ShellWord& word, string_view flag, size_t count) {
  const MilesFlag* known = find_known(flag);
  const size_t wanted = known == nullptr || known->kind == MilesKind::kFlag ? 0 : 1;
  const string_view text = word.text;
  constexpr string_view kOperators[] = {"|", "||", "&", "&&", "<"};
  const bool array = word.expands && (text == "$@" || (text.starts_with("${") && text.ends_with("[@]}")));
  const size_t arrow = text.find('>');
  const bool output =
      arrow == 0 ||
      (arrow == 1 && (text[0] == '&' || std::isdigit(static_cast<unsigned char>(text[0])) != 0));
  const bool ends_command = !word.quoted && (output || std::find(std::begin(kOperators), std::end(kOperators),
                                                                 text) != std::end(kOperators));
  return text.starts_with("--") || is_variable(text) || word.gap == Gap::kCommand || array || ends_command ||
         (word.gap == Gap::kLine && count >= wanted);
}

// Characters that differ outside the common beginning and end.
size_t differences(string_view a, string_view b) {
  while (!a.empty() && !b.empty() && a.front() == b.front()) {
    a.remove_prefix(1);
    b.remove_prefix(1);
  }
  while (!a.empty() && !b.empty() && a.back() == b.back()) {
    a.remove_suffix(1);
    b.remove_suffix(1);
  }
  return std::max(a.size(), b.size());
}

}  // namespace

std::span<const MilesFlag> miles_flags() { return kKnown; }

std::string printable_ascii(string_view text) {
  std::string out;
  for (const char c : text.substr(0, 80)) {
    out += static_cast<unsigned char>(c) < 0x20 || static_cast<unsigned char>(c) >= 0x7F ? '?' : c;
  }
  return out;
}

StatusOr<MilesArguments> MilesArguments::read(const std::vector<ShellWord>& words, string_view source) {
  MilesArguments arguments(source);
  ACCORD_RETURN_IF_ERROR(arguments.collect(words));
  return arguments;
}

Status MilesArguments::failure(string_view flag, const std::string& rule) const {
  return recipe_error("{}:{}: {}: {}", source_, line_of(flag), flag, rule);
}

int32_t MilesArguments::line_of(string_view flag) const {
  const auto found = arguments_.find(flag);
  return found == arguments_.end() ? 1 : found->second.line;
}

string_view MilesArguments::flag_of(string_view key) const {
  const auto decides = [&](string_view part, string_view flag) {
    return !part.empty() && given(flag) &&
           (key == part || (key.starts_with(part) && key[part.size()] == '.'));
  };
  for (const MilesFlag& known : kKnown) {
    if (decides(known.key, known.flag)) {
      return known.flag;
    }
  }
  for (const auto& [part, flag] : kTranslated) {
    if (decides(part, flag)) {
      return flag;
    }
  }
  return "";
}

std::vector<std::string> MilesArguments::values(string_view flag) const {
  std::vector<std::string> out;
  if (const auto found = arguments_.find(flag); found != arguments_.end()) {
    for (const ShellWord& value : found->second.values) {
      out.push_back(value.text);
    }
  }
  return out;
}

Status MilesArguments::collect(const std::vector<ShellWord>& words) {
  for (size_t i = 0; i < words.size(); ++i) {
    const ShellWord& word = words[i];
    if (!word.text.starts_with("--") || word.text == "--") {
      continue;
    }
    const size_t equals = word.text.find('=');
    const std::string flag = word.text.substr(0, equals);
    Argument argument;
    argument.line = word.line;
    if (equals != std::string::npos) {
      argument.values.push_back({word.text.substr(equals + 1), word.line, word.expands});
    }
    while (i + 1 < words.size() && !ends_values(words[i + 1], flag, argument.values.size())) {
      argument.values.push_back(words[++i]);
    }
    ACCORD_RETURN_IF_ERROR(take(flag, std::move(argument)));
  }
  return absl::OkStatus();
}

Status MilesArguments::take(const std::string& flag, Argument argument) {
  const MilesFlag* known = find_known(flag);
  if (known == nullptr) {
    const bool adam =
        flag == "--optimizer" && argument.values.size() == 1 && argument.values[0].text == "adam";
    if (flag == "--runtime-env-json" || adam) {
      return absl::OkStatus();  // read elsewhere; what is done here anyway
    }
    if (std::find(std::begin(kChanging), std::end(kChanging), flag) != std::end(kChanging)) {
      changing_.push_back(flag);
      return absl::OkStatus();
    }
    ACCORD_RETURN_IF_ERROR(check_spelling(flag, argument.line));
    unknown_.push_back(flag);
    return absl::OkStatus();
  }
  const int32_t line = argument.line;
  if (const auto [place, fresh] = arguments_.emplace(flag, std::move(argument)); !fresh) {
    return recipe_error("{}:{}: {}: given twice, first on line {} (keep one)", source_, line, flag,
                        place->second.line);
  }
  const std::vector<ShellWord>& values = arguments_.find(flag)->second.values;
  if (known->kind == MilesKind::kAny) {
    return absl::OkStatus();
  }
  const size_t wanted = known->kind == MilesKind::kFlag ? 0 : 1;
  if (known->kind == MilesKind::kList ? values.empty() : values.size() != wanted) {
    return fail(flag, "takes {}, {} given",
                known->kind == MilesKind::kList ? "patterns"
                : wanted == 0                   ? "no value"
                                                : "one value",
                values.size());
  }
  for (const ShellWord& value : values) {
    if (value.expands) {
      return fail(flag, "'{}' needs a shell to be resolved (write the value out)",
                  printable_ascii(value.text));
    }
    if (find_invalid_utf8(value.text) != string_view::npos) {
      return fail(flag, "the value is not valid UTF-8");
    }
  }
  if (known->kind == MilesKind::kNumber && !parse_real(values.front().text)) {
    return fail(flag, "must be a number, is '{}'", printable_ascii(values.front().text));
  }
  return absl::OkStatus();
}

// A slip of the pen in a flag would silently change what is trained.
Status MilesArguments::check_spelling(const std::string& flag, int32_t line) const {
  std::string dashes = flag;
  std::replace(dashes.begin(), dashes.end(), '_', '-');
  if (dashes != flag && find_known(dashes) != nullptr) {
    return recipe_error("{}:{}: {}: unknown flag (did you mean {}? flags have dashes)", source_, line,
                        printable_ascii(flag), dashes);
  }
  std::vector<std::string> close;
  for (const MilesFlag& known : kKnown) {
    const size_t longer = std::max(known.flag.size(), flag.size());
    if (longer - std::min(known.flag.size(), flag.size()) <= 1 && longer >= kMinSpelled) {
      close.emplace_back(known.flag);
    }
  }
  const auto guess = nearest(flag, close);
  if (guess && differences(*guess, flag) <= 2) {
    return recipe_error("{}:{}: {}: unknown flag (did you mean {}?)", source_, line, printable_ascii(flag),
                        *guess);
  }
  return absl::OkStatus();
}

std::optional<std::string> MilesArguments::given(string_view flag) const {
  const auto found = arguments_.find(flag);
  if (found == arguments_.end()) {
    return std::nullopt;
  }
  return found->second.values.empty() ? std::string() : found->second.values.front().text;
}

}  // namespace accord::recipe
