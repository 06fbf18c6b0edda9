#include "cli/commands.hpp"
#include "rpc/controller_process.hpp"

namespace accord::cli {
namespace {

// What both commands share. The options object lives as long as the parsed command line.
std::shared_ptr<rpc::ControllerOptions> add_recipe_options(CLI::App& command) {
  auto options = std::make_shared<rpc::ControllerOptions>();
  options->build = build_id();
  command.add_option("recipe", options->recipe, "The recipe (YAML)")->required();
  command
      .add_option("--set", options->overrides,
                  "Override one key: --set trainer.optimizer.lr=1e-5 (repeatable)")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command.add_flag("--resume", options->resume, "Continue from the newest checkpoint that verifies");
  command.add_option("--steps", options->steps, "Run up to this step instead of run.steps")->type_name("N");
  command.add_flag("--allow-exec", options->allow_exec, "Let the recipe execute its reward.command");
  return options;
}

}  // namespace

void add_run(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("run", "Train: the controller and its workers on this machine");
  const auto options = add_recipe_options(*command);
  options->local_workers = true;
  command->callback([options, &action] { action = [options] { return rpc::run_controller(*options); }; });
}

void add_controller(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("controller", "Train: the controller alone; its workers are started elsewhere");
  const auto options = add_recipe_options(*command);
  command
      ->add_option("--listen", options->listen,
                   "Where workers and users reach it: a loopback address (default: monitor.listen)")
      ->type_name("HOST:PORT");
  command->callback([options, &action] { action = [options] { return rpc::run_controller(*options); }; });
}

}  // namespace accord::cli
