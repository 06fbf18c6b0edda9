#include "base/log.hpp"
#include "cli/commands.hpp"
#include "controller/local_processes.hpp"
#include "controller/rollout_worker.hpp"
#include "controller/trainer_worker.hpp"
#include "rpc/identity.hpp"
#include "rpc/worker_process.hpp"

namespace accord::cli {
namespace {

struct WorkerArguments {
  std::string pool;
  int32_t rank = 0;
  std::string controller;
  std::string device = "cpu";
  int64_t register_seconds = 120;
};

Status run(const WorkerArguments& arguments) {
  ACCORD_RETURN_IF_ERROR(controller::die_with_parent());
  log::set_identity(fmt::format("{}/{}", arguments.pool, arguments.rank));
  ACCORD_ASSIGN_OR_RETURN(const Device device, open_device(arguments.device));
  ACCORD_RETURN_IF_ERROR(annotate(rpc::check_loopback(arguments.controller), "--controller"));
  rpc::WorkerProcessOptions options;
  options.trainer = arguments.pool == "trainer";
  options.rank = arguments.rank;
  options.controller = arguments.controller;
  options.build = build_id();
  options.register_timeout = std::chrono::seconds(arguments.register_seconds);

  rpc::WorkerLinks links;
  std::string address;
  if (options.trainer) {
    const auto fetch = [&links](const std::string& holder, std::span<const SampleKey> keys) {
      return links.fetch(holder, keys);
    };
    const auto worker = controller::make_trainer_worker(arguments.rank, links.store, fetch, device);
    return rpc::run_worker(options, links, nullptr, worker.get(), &address);
  }
  const auto worker = controller::make_rollout_worker(arguments.rank, links.store, device);
  return rpc::run_worker(options, links, worker.get(), nullptr, &address);
}

}  // namespace

void add_worker(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("worker", "One member of a pool");
  const auto arguments = std::make_shared<WorkerArguments>();
  command->add_option("--pool", arguments->pool, "rollout or trainer")
      ->required()
      ->check(CLI::IsMember({"rollout", "trainer"}));
  command->add_option("--rank", arguments->rank, "Its number in the pool, from 0")
      ->required()
      ->check(nonnegative_number());
  command->add_option("--controller", arguments->controller, "The controller's address")
      ->required()
      ->type_name("HOST:PORT");
  add_device_option(*command, arguments->device);
  command
      ->add_option("--register-timeout", arguments->register_seconds,
                   "How long to look for the controller, in seconds")
      ->capture_default_str()
      ->check(positive_number());
  command->callback([arguments, &action] { action = [arguments] { return run(*arguments); }; });
}

}  // namespace accord::cli
