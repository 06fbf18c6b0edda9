#include <cmath>
#include <cstdio>
#include <nlohmann/json.hpp>

#include "base/json_text.hpp"
#include "cli/commands.hpp"
#include "rpc/status_client.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string address;
  std::string reason = "asked by a user";
  bool json = false;
};

void print_text(const rpc::StatusInfo& info) {
  const controller::RunSnapshot& run = info.run;
  fmt::print("run      {} ({}), epoch {}\n", run.run, run.run_id, run.epoch);
  fmt::print("dir      {}\n", run.directory);
  fmt::print("phase    {}\n", run.phase);
  fmt::print("step     {} of {}, weight version {}\n", run.step, run.steps, run.weight_version);
  for (const controller::WorkerState& worker : run.workers) {
    fmt::print("worker   {:<12} {:<11} pid {:<8} {}\n", worker.name, worker.state, worker.pid,
               worker.address);
  }
  for (const rpc::WaitInfo& wait : info.waits) {
    fmt::print("waits    {:.1f} s of {:.0f} s for {}\n", wait.elapsed_seconds, wait.deadline_seconds,
               wait.reason);
  }
  if (run.last) {
    for (const auto& [name, value] : run.last->metrics) {
      fmt::print("metric   {:<34} {}\n", name, json_number(value));
    }
  }
  for (const std::string& warning : run.warnings) {
    fmt::print("warning  {}\n", warning);
  }
}

nlohmann::ordered_json metrics_json(const Metrics& metrics) {
  nlohmann::ordered_json json = nlohmann::ordered_json::object();
  for (const auto& [name, value] : metrics) {
    if (std::isfinite(value)) {
      json[name] = value;
    } else {
      json[name] = std::isnan(value) ? "NaN" : value > 0 ? "Infinity" : "-Infinity";
    }
  }
  return json;
}

void print_json(const rpc::StatusInfo& info) {
  const controller::RunSnapshot& run = info.run;
  nlohmann::ordered_json json;
  json["run"] = run.run;
  json["run_id"] = run.run_id;
  json["epoch"] = run.epoch;
  json["directory"] = run.directory;
  json["build"] = info.build;
  json["phase"] = run.phase;
  json["step"] = run.step;
  json["steps"] = run.steps;
  json["weight_version"] = run.weight_version;
  json["workers"] = nlohmann::ordered_json::array();
  for (const controller::WorkerState& worker : run.workers) {
    json["workers"].push_back(
        {{"name", worker.name}, {"state", worker.state}, {"pid", worker.pid}, {"address", worker.address}});
  }
  json["waits"] = nlohmann::ordered_json::array();
  for (const rpc::WaitInfo& wait : info.waits) {
    json["waits"].push_back({{"reason", wait.reason},
                             {"elapsed_seconds", wait.elapsed_seconds},
                             {"deadline_seconds", wait.deadline_seconds}});
  }
  json["warnings"] = run.warnings;
  json["metrics"] = run.last ? metrics_json(run.last->metrics) : nlohmann::ordered_json(nullptr);
  fmt::print("{}\n", json.dump(2));
}

Status print_status(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const rpc::StatusInfo info, rpc::get_status(arguments.address));
  arguments.json ? print_json(info) : print_text(info);
  return absl::OkStatus();
}

// A metric that a step may lack (an evaluation that was not due) is shown as a dash.
std::string cell(const Metrics& metrics, const char* name) {
  const auto it = metrics.find(name);
  return it == metrics.end() ? "-" : fmt::format("{:.4g}", it->second);
}

Status watch(const Arguments& arguments) {
  if (!arguments.json) {
    fmt::print("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", "step", "reward", "loss", "grad_norm",
               "length", "equal", "seconds");
  }
  return rpc::watch(arguments.address, [&](const controller::StepRecord& record) {
    if (arguments.json) {
      nlohmann::ordered_json json;
      json["step"] = record.step;
      json.update(metrics_json(record.metrics));
      fmt::print("{}\n", json.dump());
    } else {
      fmt::print("{:>6} {:>10} {:>10} {:>10} {:>10} {:>10} {:>10}\n", record.step,
                 cell(record.metrics, "rollout/reward_mean"), cell(record.metrics, "train/loss"),
                 cell(record.metrics, "train/grad_norm"),
                 cell(record.metrics, "rollout/response_length_mean"),
                 cell(record.metrics, "mismatch/equal_fraction"), cell(record.metrics, "time/step"));
    }
    std::fflush(stdout);
  });
}

Status stop(const Arguments& arguments, bool drain) {
  ACCORD_ASSIGN_OR_RETURN(const uint64_t step, rpc::stop(arguments.address, arguments.reason, drain));
  fmt::print("the run ends after step {}\n", step);
  return absl::OkStatus();
}

Status checkpoint(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const uint64_t step, rpc::checkpoint(arguments.address));
  fmt::print("a checkpoint is written after step {}\n", step);
  return absl::OkStatus();
}

Status verify_weights(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const controller::WeightCheck check, rpc::verify_weights(arguments.address));
  if (arguments.json) {
    nlohmann::ordered_json json;
    json["version"] = check.version;
    json["workers"] = check.workers;
    json["tensors"] = check.tensors;
    json["differences"] = nlohmann::ordered_json::array();
    for (const controller::WeightDifference& d : check.differences) {
      json["differences"].push_back(
          {{"worker", d.worker}, {"tensor", d.tensor}, {"ledger", d.ledger}, {"held", d.held}});
    }
    fmt::print("{}\n", json.dump());
  } else {
    for (const controller::WeightDifference& d : check.differences) {
      fmt::print("{} {}: {} in the ledger, {} held\n", d.worker, d.tensor, d.ledger, d.held);
    }
    if (check.differences.empty()) {
      fmt::print("version {}: all {} tensors of all {} workers are the ledger's\n", check.version,
                 check.tensors, check.workers);
    }
  }
  if (check.differences.empty()) {
    return absl::OkStatus();
  }
  const controller::WeightDifference& first = check.differences.front();
  return data_error("version {}: {} differences from the ledger, the first on {}{}{}", check.version,
                    check.differences.size(), first.worker, first.tensor.empty() ? "" : " in ", first.tensor);
}

std::shared_ptr<Arguments> add_address(CLI::App& command) {
  auto arguments = std::make_shared<Arguments>();
  command.add_option("address", arguments->address, "The controller's status address")
      ->required()
      ->type_name("HOST:PORT");
  return arguments;
}

}  // namespace

void add_status(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("status", "What a running controller does and waits for");
  const auto arguments = add_address(*command);
  command->add_flag("--json", arguments->json, "As JSON");
  command->callback([arguments, &action] { action = [arguments] { return print_status(*arguments); }; });
}

void add_watch(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("watch", "Every step of a run, past and to come, until it ends");
  const auto arguments = add_address(*command);
  command->add_flag("--json", arguments->json, "One JSON object a line");
  command->callback([arguments, &action] { action = [arguments] { return watch(*arguments); }; });
}

void add_drain(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("drain", "As stop, but the controller exits 75: start it again");
  const auto arguments = add_address(*command);
  command->add_option("--reason", arguments->reason, "Kept in the run's log");
  command->callback(
      [arguments, &action] { action = [arguments] { return stop(*arguments, /*drain=*/true); }; });
}

void add_checkpoint(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("checkpoint", "Write a checkpoint after the current step");
  const auto arguments = add_address(*command);
  command->callback([arguments, &action] { action = [arguments] { return checkpoint(*arguments); }; });
}

void add_verify_weights(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "verify-weights", "Compare what all workers of a run hold with its ledger, after the current step");
  const auto arguments = add_address(*command);
  command->add_flag("--json", arguments->json, "As JSON");
  command->callback([arguments, &action] { action = [arguments] { return verify_weights(*arguments); }; });
}

void add_stop(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand("stop", "End a run after its current step, with a checkpoint");
  const auto arguments = add_address(*command);
  command->add_option("--reason", arguments->reason, "Kept in the run's log");
  command->callback(
      [arguments, &action] { action = [arguments] { return stop(*arguments, /*drain=*/false); }; });
}

}  // namespace accord::cli
