#pragma once
// Every subcommand, in the order in which --help lists them.
#include "cli/command.hpp"

namespace accord::cli {

void add_run(CLI::App& app, Action& action);
void add_controller(CLI::App& app, Action& action);
void add_worker(CLI::App& app, Action& action);
void add_status(CLI::App& app, Action& action);
void add_watch(CLI::App& app, Action& action);
void add_drain(CLI::App& app, Action& action);
void add_checkpoint(CLI::App& app, Action& action);
void add_verify_weights(CLI::App& app, Action& action);
void add_stop(CLI::App& app, Action& action);
void add_plan(CLI::App& app, Action& action);
void add_init_model(CLI::App& app, Action& action);
void add_convert(CLI::App& app, Action& action);
void add_verify(CLI::App& app, Action& action);
void add_quantize(CLI::App& app, Action& action);
void add_score(CLI::App& app, Action& action);
void add_tokenize(CLI::App& app, Action& action);
void add_logprobs(CLI::App& app, Action& action);
void add_generate(CLI::App& app, Action& action);
void add_eval(CLI::App& app, Action& action);
void add_replay(CLI::App& app, Action& action);
void add_doctor(CLI::App& app, Action& action);
void add_bench(CLI::App& app, Action& action);

}  // namespace accord::cli
