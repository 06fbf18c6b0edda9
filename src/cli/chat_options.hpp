#pragma once
// The options that choose a chat template, as the commands over a checkpoint share them.
#include "cli/command.hpp"
#include "text/chat_template.hpp"

namespace accord::cli {

void add_chat_options(CLI::App& command, text::ChatOptions& options);

}  // namespace accord::cli
