// accord generate: one continuation, printed as it is drawn.
#include <algorithm>
#include <chrono>
#include <cstdio>
#include <limits>
#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "base/strict_json.hpp"
#include "cli/commands.hpp"
#include "cli/local_engine.hpp"
#include "cli/text_io.hpp"

namespace accord::cli {
namespace {

using Clock = std::chrono::steady_clock;

struct Arguments {
  LocalEngineArguments engine;
  std::optional<std::string> prompt;
  std::string ids;
  bool json = false;
};

StatusOr<std::vector<int32_t>> read_ids(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string content, read_input(path));
  const StatusOr<Json> parsed = parse_json(content);
  if (!parsed.ok()) {
    return annotate(parsed.status(), input_name(path));
  }
  if (!parsed->is_array() || parsed->empty()) {
    return data_error("{}: must be a JSON list of at least one token id", input_name(path));
  }
  std::vector<int32_t> ids;
  for (const Json& value : *parsed) {
    if (!value.is_number_integer() || value < 0 || value > std::numeric_limits<int32_t>::max()) {
      return data_error("{}: item {} is {}: a token id is an integer of at least 0", input_name(path),
                        ids.size(), value.dump());
    }
    ids.push_back(value.get<int32_t>());
  }
  return ids;
}

StatusOr<std::vector<int32_t>> prompt_ids(const Arguments& arguments, const LocalEngine& local) {
  if (!arguments.prompt) {
    return read_ids(arguments.ids);
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string rendered, local.chat().render_text(*arguments.prompt));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, local.tokenizer()->encode(rendered));
  if (ids.empty()) {
    return usage_error("--prompt is empty");
  }
  return ids;
}

// Prints tokens as they come and keeps the time of the first.
class Stream {
 public:
  Stream(const text::Tokenizer* tokenizer, bool print) : print_(print) {
    if (tokenizer != nullptr) {
      decoder_.emplace(*tokenizer);
    }
  }
  void push(int32_t token) {
    last_ = Clock::now();
    first_ = count_++ == 0 ? last_ : first_;
    if (print_) {
      write(decoder_ ? decoder_->push(token) : (count_ > 1 ? " " : "") + std::to_string(token));
    }
  }
  void finish() {
    if (print_) {
      write((decoder_ ? decoder_->finish() : "") + "\n");
    }
  }
  // Tokens per second after the first.
  double speed() const {
    const double seconds = std::chrono::duration<double>(last_ - first_).count();
    return seconds > 0.0 ? (count_ - 1) / seconds : 0.0;
  }
  double first_after(Clock::time_point start) const {
    return std::chrono::duration<double>(first_ - start).count();
  }

 private:
  static void write(const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  }
  std::optional<text::StreamDecoder> decoder_;
  bool print_;
  int count_ = 0;
  Clock::time_point first_, last_;
};

std::string to_json(const Sample& sample, const LocalEngine& local, double speed, double prefill) {
  const std::vector<int32_t> ids(sample.tokens.begin() + sample.prompt_length, sample.tokens.end());
  Json json;
  json["ids"] = ids;
  json["logprobs"] = sample.logprobs;
  json["text"] = local.tokenizer() != nullptr ? Json(local.decode(ids)) : Json(nullptr);
  json["finish"] = sample.finish == FinishReason::kStop ? "stop" : "length";
  json["prompt_tokens"] = sample.prompt_length;
  json["seconds_to_first_token"] = prefill;
  json["tokens_per_second"] = speed;
  return json.dump() + "\n";
}

Status generate(const Arguments& arguments, bool limit_given) {
  if (arguments.prompt.has_value() == !arguments.ids.empty()) {
    return usage_error("generate takes either --prompt TEXT or --ids FILE");
  }
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<LocalEngine> local,
                          LocalEngine::load(arguments.engine, arguments.prompt.has_value()));
  rollout::Request request;
  ACCORD_ASSIGN_OR_RETURN(request.prompt.tokens, prompt_ids(arguments, *local));
  request.sampling = local->sampling();
  const auto prompt_length = static_cast<int64_t>(request.prompt.tokens.size());
  if (const int64_t room = local->config().max_position_embeddings - prompt_length;
      !limit_given && room > 0) {
    request.sampling.max_new_tokens =
        static_cast<int32_t>(std::min<int64_t>(request.sampling.max_new_tokens, room));
  }
  ACCORD_ASSIGN_OR_RETURN(
      const std::unique_ptr<controller::ServedModel> model,
      local->serve({.max_rows = 1, .longest_sequence = prompt_length + request.sampling.max_new_tokens}));

  Stream stream(local->tokenizer(), !arguments.json);
  rollout::Callbacks callbacks;
  callbacks.on_token = [&](const SampleKey&, int32_t token, float) { stream.push(token); };
  const Clock::time_point start = Clock::now();
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Sample> samples,
                          model->engine().generate({&request, 1}, callbacks));
  stream.finish();
  const Sample& sample = samples.front();
  const double prefill = stream.first_after(start);
  std::fprintf(stderr, "%lld prompt tokens in %.2f s, %d new tokens at %.1f tokens/s\n",
               static_cast<long long>(prompt_length), prefill, sample.response_length(), stream.speed());
  return arguments.json ? write_output("-", to_json(sample, *local, stream.speed(), prefill))
                        : absl::OkStatus();
}

}  // namespace

void add_generate(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("generate", "Continue a prompt under a checkpoint");
  auto arguments = std::make_shared<Arguments>();
  arguments->engine.max_tokens = 256;
  add_local_engine_options(*command, arguments->engine);
  CLI::Option* prompt = command->add_option("--prompt", arguments->prompt, "The prompt's text");
  command->add_option("--ids", arguments->ids, "A JSON list of token ids instead; - for standard input")
      ->type_name("FILE")
      ->excludes(prompt);
  command->add_flag("--json", arguments->json, "Print one object: ids, logprobs, text, finish, speed");
  command->callback([arguments, command, &action] {
    const bool limit_given = command->count("--max-tokens") > 0;
    action = [arguments, limit_given] { return generate(*arguments, limit_given); };
  });
}

}  // namespace accord::cli
