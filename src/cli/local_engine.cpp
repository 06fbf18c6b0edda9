#include "cli/local_engine.hpp"

#include <algorithm>
#include <filesystem>
#include <utility>

#include "base/log.hpp"
#include "cli/chat_options.hpp"
#include "controller/engine_limits.hpp"

namespace accord::cli {
namespace {

constexpr int32_t kPrefillChunk = 256;

}  // namespace

void add_local_engine_options(CLI::App& command, LocalEngineArguments& arguments) {
  command.add_option("checkpoint", arguments.checkpoint, "A Hugging Face directory")->required();
  command.add_option("--max-tokens", arguments.max_tokens, "Most new tokens of one sample")
      ->check(positive_number())
      ->capture_default_str();
  command.add_option("--temperature", arguments.temperature, "0: greedy")
      ->check(nonnegative_number())
      ->capture_default_str();
  command
      .add_option("--top-p", arguments.top_p, "Draw from the likeliest tokens that together reach this share")
      ->capture_default_str();
  command.add_option("--top-k", arguments.top_k, "Draw from this many of the likeliest tokens (-1: all)")
      ->capture_default_str();
  command.add_option("--stop", arguments.stop, "Text that ends a sample (may be given several times)")
      ->allow_extra_args(false);
  command.add_option("--seed", arguments.seed, "Seed of the draws")
      ->check(seed_number())
      ->capture_default_str();
  command.add_option("--dtype", arguments.dtype,
                     "Compute dtype: float32 or bfloat16 (default: the recipe's, or bfloat16)");
  command.add_option(
      "--recipe", arguments.recipe,
      "A recipe whose precision plan decides the weights' formats (default: as the checkpoint is stored)");
  command.add_option("--threads", arguments.threads, "Threads; never changes a token (0: all)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_device_option(command, arguments.device);
  CLI::Option* chat = command.add_flag(
      "--chat", arguments.chat, "Put prompts into the model's chat template (default: where it has one)");
  add_chat_options(command, arguments.template_options);
  command.add_flag("--no-chat", arguments.no_chat, "Give prompts to the model as they are")->excludes(chat);
}

StatusOr<std::unique_ptr<LocalEngine>> LocalEngine::load(const LocalEngineArguments& arguments,
                                                         bool tokenizer_required) {
  auto engine = std::unique_ptr<LocalEngine>(new LocalEngine());
  engine->arguments_ = arguments;
  ACCORD_ASSIGN_OR_RETURN(engine->device_, open_device(arguments.device));
  ACCORD_RETURN_IF_ERROR(engine->load_text(tokenizer_required));
  controller::LocalModelOptions options;
  options.checkpoint = arguments.checkpoint;
  options.recipe = arguments.recipe;
  options.threads = arguments.threads;
  if (!arguments.dtype.empty()) {
    ACCORD_ASSIGN_OR_RETURN(options.compute_dtype, controller::parse_compute_dtype(arguments.dtype));
  }
  ACCORD_ASSIGN_OR_RETURN(engine->local_, controller::LocalModel::load(options));
  if (engine->device_.is_cuda()) {
    ACCORD_ASSIGN_OR_RETURN(engine->weights_,
                            controller::DeviceWeights::copy(*engine->local_, engine->device_));
  }
  engine->find_stop_tokens();
  return engine;
}

Status LocalEngine::load_text(bool tokenizer_required) {
  std::error_code error;
  const bool exists =
      std::filesystem::exists(std::filesystem::path(arguments_.checkpoint) / "tokenizer.json", error);
  if (!exists && !tokenizer_required) {
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(tokenizer_, text::Tokenizer::load(arguments_.checkpoint));
  if (arguments_.no_chat) {
    return absl::OkStatus();
  }
  const text::ChatOptions& options = arguments_.template_options;
  auto chat = text::ChatTemplate::resolve(options, arguments_.checkpoint);
  if (chat.ok()) {
    chat_ = *chat;
  } else if (arguments_.chat || options.name != "auto" || options.kwargs != "{}" || !options.date.empty()) {
    return chat.status();
  } else {
    log::warn("{}; prompts go to the model as they are", message_of(chat.status()));
  }
  if (arguments_.chat && chat_.kind() == text::ChatTemplate::Kind::kNone) {
    return usage_error("--chat: {} has no chat template", arguments_.checkpoint);
  }
  return absl::OkStatus();
}

// The model's end-of-text tokens, the tokenizer's, and the end of a turn where a chat template is in use.
void LocalEngine::find_stop_tokens() {
  stop_tokens_ = config().eos_token_ids;
  const auto add = [this](int32_t id) {
    if (std::find(stop_tokens_.begin(), stop_tokens_.end(), id) == stop_tokens_.end()) {
      stop_tokens_.push_back(id);
    }
  };
  if (tokenizer_ == nullptr) {
    return;
  }
  std::for_each(tokenizer_->eos_token_ids().begin(), tokenizer_->eos_token_ids().end(), add);
  const auto end_of_turn = tokenizer_->token_id("<|im_end|>");
  if (end_of_turn && chat_.kind() != text::ChatTemplate::Kind::kNone) {
    add(*end_of_turn);
  }
}

SamplingParams LocalEngine::sampling() const {
  SamplingParams params;
  params.temperature = arguments_.temperature;
  params.top_p = arguments_.top_p;
  params.top_k = arguments_.top_k;
  params.max_new_tokens = arguments_.max_tokens;
  params.stop_tokens = stop_tokens_;
  params.stop_strings = arguments_.stop;
  return params;
}

StatusOr<std::unique_ptr<controller::ServedModel>> LocalEngine::serve(const BatchSize& size) {
  const ModelConfig& c = config();
  int64_t cache_bytes = controller::kAutoCacheBytes;
  if (weights_ != nullptr) {
    ACCORD_ASSIGN_OR_RETURN(cache_bytes, controller::device_cache_bytes(device_, 1, 1));
  }
  const int64_t bytes_per_row = kv_row_bytes(c, size_of(local_->compute_dtype()));
  controller::ServedModelOptions served;
  served.compute_dtype = local_->compute_dtype();
  rollout::EngineOptions& options = served.engine;
  options.max_batch_rows = std::max(size.max_rows, kPrefillChunk);
  options.prefill_chunk = kPrefillChunk;
  // Room for all samples at once, within bounds; one page more than the longest needs.
  const int64_t one = size.longest_sequence + model::kPageSize;
  options.kv_cache_tokens = std::clamp(size.max_rows * one, one, std::max(one, cache_bytes / bytes_per_row));
  options.run_seed = arguments_.seed;
  if (tokenizer_ != nullptr) {
    served.detokenize = [this](std::span<const int32_t> ids) { return decode(ids); };
  }
  if (weights_ == nullptr) {
    ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights bound,
                            model::bind_weights(c, local_->manifest(), local_->arena()));
    return controller::serve_on_cpu(c, std::move(bound), local_->pool(), std::move(served));
  }
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights bound, weights_->bind());
  ACCORD_ASSIGN_OR_RETURN(
      std::unique_ptr<controller::ServedModel> model,
      controller::serve_on_cuda(c, std::move(bound), device_, weights_->stream(), std::move(served)));
  ACCORD_RETURN_IF_ERROR(model->weights_changed());
  return model;
}

}  // namespace accord::cli
