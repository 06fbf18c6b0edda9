#include <cstdio>
#include <exception>
#include <string>

#include "base/log.hpp"
#include "cli/commands.hpp"

namespace accord {
namespace {

int run_command(int argc, char** argv) {
  CLI::App app{
      "accord: reinforcement learning of language models in low precision, the same policy everywhere"};
  app.set_version_flag("--version", cli::build_id());
  app.require_subcommand(1);
  bool verbose = false;
  app.add_flag("-v,--verbose", verbose, "Log debug detail to stderr");

  cli::Action action;
  cli::add_run(app, action);
  cli::add_controller(app, action);
  cli::add_worker(app, action);
  cli::add_status(app, action);
  cli::add_watch(app, action);
  cli::add_drain(app, action);
  cli::add_checkpoint(app, action);
  cli::add_verify_weights(app, action);
  cli::add_stop(app, action);
  cli::add_plan(app, action);
  cli::add_init_model(app, action);
  cli::add_convert(app, action);
  cli::add_verify(app, action);
  cli::add_quantize(app, action);
  cli::add_score(app, action);
  cli::add_tokenize(app, action);
  cli::add_logprobs(app, action);
  cli::add_generate(app, action);
  cli::add_eval(app, action);
  cli::add_replay(app, action);
  cli::add_doctor(app, action);
  cli::add_bench(app, action);

  try {
    app.parse(argc, argv);
  } catch (const CLI::ParseError& e) {
    if (const auto rest = app.remaining();
        e.get_exit_code() != 0 && app.get_subcommands().empty() && !rest.empty()) {
      std::fprintf(stderr, "accord: error: there is no command '%s'; accord --help lists them\n",
                   rest[0].c_str());
      return static_cast<int>(ExitCode::kUsage);
    }
    if (e.get_exit_code() == 0) {
      return app.exit(e);  // prints the help or the version
    }
    std::string message = e.what();
    if (const auto extra = app.remaining(/*recurse=*/true); !extra.empty()) {
      message = "'" + extra[0] + "' is not expected here";
    }
    const auto commands = app.get_subcommands();
    std::fprintf(stderr, "accord: error: %s; see accord%s --help\n", message.c_str(),
                 commands.empty() ? "" : (" " + commands[0]->get_name()).c_str());
    return static_cast<int>(ExitCode::kUsage);
  }
  if (verbose) {
    log::set_level(log::Level::kDebug);
  }
  const Status status = action ? action() : absl::OkStatus();
  if (!status.ok()) {
    std::fprintf(stderr, "accord: error: %s\n", std::string(message_of(status)).c_str());
  }
  return static_cast<int>(exit_code(status));
}

}  // namespace
}  // namespace accord

int main(int argc, char** argv) {
  try {
    return accord::run_command(argc, argv);
  } catch (const std::exception& e) {  // out of memory, say
    std::fprintf(stderr, "accord: error: internal: %s\n", e.what());
  } catch (...) {
    std::fputs("accord: error: internal: an unknown exception\n", stderr);
  }
  return static_cast<int>(accord::ExitCode::kInternal);
}
