#include "cli/chat_options.hpp"

namespace accord::cli {

void add_chat_options(CLI::App& command, text::ChatOptions& options) {
  command
      .add_option(
          "--chat-template", options.name,
          "How messages are rendered: auto (the checkpoint's template), chatml, qwen3, smollm2, none, or "
          "a .jinja file")
      ->capture_default_str();
  command
      .add_option("--chat-template-kwargs", options.kwargs,
                  "Variables of a Jinja template, as JSON: {\"enable_thinking\": false}")
      ->capture_default_str();
  command.add_option("--chat-date", options.date, "YYYY-MM-DD: what a Jinja template takes for today");
}

}  // namespace accord::cli
