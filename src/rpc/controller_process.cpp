#include "rpc/controller_process.hpp"

#include <unistd.h>

#include <condition_variable>
#include <csignal>
#include <mutex>
#include <random>
#include <thread>

#include "base/files.hpp"
#include "base/log.hpp"
#include "controller/checkpointing.hpp"
#include "controller/device_choice.hpp"
#include "controller/local_processes.hpp"
#include "controller/recorded_steps.hpp"
#include "controller/run_inputs.hpp"
#include "controller/step_loop.hpp"
#include "rpc/control_server.hpp"
#include "rpc/reward_client.hpp"
#include "rpc/worker_client.hpp"

namespace accord::rpc {
namespace {

using namespace std::chrono_literals;
using controller::Millis;

constexpr auto kLeaveGrace = 10s;   // for workers to end after they were told to
constexpr auto kLossGrace = 2s;     // for the end of a worker's connection to show after a call to it broke
constexpr auto kReapGrace = 500ms;  // for a lost child to become reapable: how it died belongs in the message

std::string random_run_id() {
  std::random_device device;
  return fmt::format("{:08x}{:08x}", device(), device());
}

// The first loss; later ones are mostly its consequences.
class LossRecorder {
 public:
  LossRecorder(Canceller& canceller) : canceller_(canceller) {}

  void lose(const std::string& name) {
    const std::lock_guard lock(mutex_);
    if (first_.empty()) {
      first_ = name;
    }
    canceller_.cancel_all();
    recorded_.notify_all();
  }
  std::string first() const {
    const std::lock_guard lock(mutex_);
    return first_;
  }
  // Until there is a first loss.
  void wait(std::chrono::milliseconds timeout) {
    std::unique_lock lock(mutex_);
    recorded_.wait_for(lock, timeout, [this] { return !first_.empty(); });
  }

 private:
  Canceller& canceller_;
  mutable std::mutex mutex_;
  std::condition_variable recorded_;
  std::string first_;
};

int64_t rollout_workers(const recipe::Recipe& recipe) {
  return recipe.debug.mode == recipe::DebugMode::kTrainOnly ? 0 : recipe.rollout.workers;
}

std::vector<std::string> expected_members(const recipe::Recipe& recipe) {
  std::vector<std::string> names;
  for (int64_t rank = 0; rank < recipe.trainer.workers; ++rank) {
    names.push_back(fmt::format("trainer/{}", rank));
  }
  for (int64_t rank = 0; rank < rollout_workers(recipe); ++rank) {
    names.push_back(fmt::format("rollout/{}", rank));
  }
  return names;
}

Status start_local_workers(const std::vector<std::string>& members, const controller::PoolDevices& devices,
                           const std::string& address, const controller::RunDirectory& directory,
                           controller::LocalProcesses& processes) {
  for (const std::string& member : members) {
    const size_t slash = member.find('/');
    const std::string pool = member.substr(0, slash);
    const std::string rank = member.substr(slash + 1);
    const DeviceId device = (pool == "trainer" ? devices.trainer : devices.rollout)[std::stoul(rank)];
    ACCORD_RETURN_IF_ERROR(processes.start(
        member,
        {"worker", "--pool", pool, "--rank", rank, "--controller", address, "--device", to_string(device)},
        directory.file(fmt::format("logs/{}-{}.log", pool, rank))));
  }
  return absl::OkStatus();
}

// Ctrl-C and SIGTERM end the run after its current step; a second one ends the process.
class StopOnSignal {
 public:
  explicit StopOnSignal(controller::RunState& state) : state_(state) {
    sigemptyset(&signals_);
    sigaddset(&signals_, SIGINT);
    sigaddset(&signals_, SIGTERM);
    thread_ = std::thread([this] { wait(); });
  }
  ~StopOnSignal() {
    {
      const std::lock_guard lock(mutex_);
      ending_ = true;
    }
    thread_.join();
  }

 private:
  void wait() {
    while (true) {
      {
        const std::lock_guard lock(mutex_);
        if (ending_) {
          return;
        }
      }
      const timespec poll{0, 200'000'000};
      const int signal = sigtimedwait(&signals_, nullptr, &poll);
      if (signal <= 0) {
        continue;
      }
      if (state_.stop_requested()) {
        log::error("second signal {}: ending at once, the last checkpoint is kept", signal);
        std::_Exit(128 + signal);
      }
      log::warn("signal {}: ending after the current step (once more ends at once)", signal);
      // SIGTERM comes from schedulers that want the machine back and will start the run again.
      state_.request_stop({fmt::format("signal {}", signal), signal == SIGTERM});
    }
  }

  controller::RunState& state_;
  sigset_t signals_{};
  std::thread thread_;
  std::mutex mutex_;
  bool ending_ = false;
};

// All threads of the process inherit the mask, so that only StopOnSignal sees the signals.
void block_stop_signals() {
  sigset_t signals;
  sigemptyset(&signals);
  sigaddset(&signals, SIGINT);
  sigaddset(&signals, SIGTERM);
  pthread_sigmask(SIG_BLOCK, &signals, nullptr);
}

controller::Pools make_pools(const std::map<std::string, Member>& members, const recipe::Recipe& recipe,
                             const Identity& identity, controller::RunState& state, Canceller& canceller) {
  controller::Pools pools;
  const auto options = [&](const std::string& name) {
    return ClientOptions{name, members.at(name).address, identity,
                         std::chrono::seconds(recipe.deadlines.checkpoint),
                         std::chrono::seconds(recipe.deadlines.checkpoint)};
  };
  for (int64_t rank = 0; rank < recipe.trainer.workers; ++rank) {
    pools.trainer.push_back(
        make_trainer_client(options(fmt::format("trainer/{}", rank)), state.waits(), canceller));
  }
  for (int64_t rank = 0; rank < rollout_workers(recipe); ++rank) {
    pools.rollout.push_back(
        make_rollout_client(options(fmt::format("rollout/{}", rank)), state.waits(), canceller));
  }
  return pools;
}

StatusOr<recipe::Inspection> load(const ControllerOptions& options) {
  std::vector<std::string> overrides = options.overrides;
  if (options.steps) {
    overrides.push_back(fmt::format("run.steps={}", *options.steps));
  }
  if (options.listen) {
    overrides.push_back(fmt::format("monitor.listen=\"{}\"", *options.listen));
  }
  ACCORD_ASSIGN_OR_RETURN(recipe::Inspection inspection,
                          recipe::inspect_recipe_file(options.recipe, overrides));
  ACCORD_RETURN_IF_ERROR(inspection.refused);
  return inspection;
}

}  // namespace

Status run_controller(const ControllerOptions& options) {
  block_stop_signals();
  ACCORD_ASSIGN_OR_RETURN(recipe::Inspection loaded, load(options));
  controller::PoolDevices devices;  // of local workers; others bring theirs
  if (options.local_workers) {
    ACCORD_ASSIGN_OR_RETURN(devices, controller::choose_devices(loaded.recipe, controller::this_machine()));
    loaded.recipe = controller::with_devices(std::move(loaded.recipe), devices);
  }
  const recipe::Recipe& recipe = loaded.recipe;
  if (options.resume && recipe.debug.mode == recipe::DebugMode::kRolloutOnly) {
    return usage_error(
        "--resume: debug.mode rollout_only saves nothing to resume from; to sample from a checkpoint, set "
        "model.checkpoint to its hf directory, and another run.dir");
  }
  ACCORD_RETURN_IF_ERROR(check_reward(recipe.reward, options.allow_exec));
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<controller::RunInputs> inputs,
                          controller::load_run_inputs(recipe));
  ACCORD_RETURN_IF_ERROR(check_loopback(recipe.monitor.listen));
  const bool train_only = recipe.debug.mode == recipe::DebugMode::kTrainOnly;
  if (train_only && !options.resume) {
    ACCORD_RETURN_IF_ERROR(
        controller::check_recorded_steps(*inputs, 1, static_cast<uint64_t>(recipe.run.steps)));
  }
  ACCORD_RETURN_IF_ERROR(controller::RunDirectory::check(recipe.run.dir, options.resume));

  // The port comes before the first write, the lock outlives the server.
  std::optional<controller::RunDirectory> opened;
  controller::RunState state;
  Canceller canceller;
  LossRecorder losses(canceller);
  const Identity identity{random_run_id(), 1};
  const std::vector<std::string> members = expected_members(recipe);
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<ControlServer> server,
                          ControlServer::start({recipe.monitor.listen, options.build, identity, members},
                                               state, [&](const std::string& name) { losses.lose(name); }));
  ACCORD_ASSIGN_OR_RETURN(opened, controller::RunDirectory::open(recipe.run.dir, options.resume));
  controller::RunDirectory& directory = *opened;
  ACCORD_RETURN_IF_ERROR(log::add_file(directory.file("logs/controller.log")));
  ACCORD_ASSIGN_OR_RETURN(controller::LoopOptions resume,
                          controller::find_resume_point(*inputs, directory, options.resume));
  resume.build = options.build;
  if (train_only && options.resume) {
    ACCORD_RETURN_IF_ERROR(controller::check_recorded_steps(*inputs, resume.resume_step + 1,
                                                            static_cast<uint64_t>(recipe.run.steps)));
  }
  ACCORD_RETURN_IF_ERROR(write_file_atomic(directory.file("recipe.yaml"), inputs->recipe_yaml));
  ACCORD_RETURN_IF_ERROR(write_file_atomic(directory.file("plan.json"), inputs->plan.to_json()));
  ACCORD_RETURN_IF_ERROR(directory.describe_holder(server->address()));
  state.describe(recipe.run.name, identity.run_id, identity.epoch, directory.path(),
                 static_cast<uint64_t>(recipe.run.steps));
  state.set_phase("waiting for workers");
  log::info("run {} in {}: status on {} (accord status {})", recipe.run.name, directory.path(),
            server->address(), server->address());
  if (options.local_workers) {
    log::info("workers compute on {}: {}", devices.cuda ? "CUDA devices" : "the CPU", devices.reason);
  }
  for (const std::string& note : loaded.notes) {
    state.warn("recipe: " + note);
  }
  for (const std::string& warning : inputs->plan.warnings) {
    state.warn("precision plan: " + warning);
  }

  if (!train_only) {
    ACCORD_ASSIGN_OR_RETURN(
        inputs->scorer,
        make_scorer(recipe.reward, {options.allow_exec, directory.file("logs/reward.log"), &state.waits()},
                    canceller));
  }
  controller::LocalProcesses processes;
  if (options.local_workers) {
    ACCORD_RETURN_IF_ERROR(start_local_workers(members, devices, server->address(), directory, processes));
  }
  const StopOnSignal signals(state);

  Status result = [&]() -> Status {
    ACCORD_ASSIGN_OR_RETURN(
        const auto registered,
        server->wait_registered(std::chrono::seconds(recipe.deadlines.register_), [&]() -> Status {
          if (state.stop_requested()) {
            return unavailable_error("stopped while waiting for workers to register");
          }
          return processes.check();
        }));
    const controller::Pools pools = make_pools(registered, recipe, identity, state, canceller);
    return controller::StepLoop(*inputs, pools, directory, state, resume).run();
  }();

  if (exit_code(result) == ExitCode::kUnavailable) {
    losses.wait(kLossGrace);
  }
  if (const std::string lost = losses.first(); !result.ok() && !lost.empty()) {
    std::this_thread::sleep_for(kReapGrace);
    const Status how = processes.check();
    result = make_error(
        ExitCode::kWorkerLost,
        fmt::format("worker {} was lost in phase '{}' after step {}; the run ends, its last checkpoint is "
                    "kept (continue with --resume). {}",
                    lost, state.snapshot().phase, state.snapshot().step, message_of(how)));
  }
  inputs->scorer.reset();  // a scorer process ends with the loop
  if (!result.ok()) {
    state.set_phase("failed");
  }
  state.finish();
  server->shut_down_workers(result.ok() ? "the run is done" : "the run failed");
  processes.stop(result.ok() ? Millis(kLeaveGrace) : Millis(2s));
  return result;
}

}  // namespace accord::rpc
