#include "checkpoint/init_model.hpp"

#include <algorithm>
#include <cstdio>
#include <memory>
#include <optional>
#include <string>
#include <thread>

#include "checkpoint/hf_config.hpp"
#include "cli/commands.hpp"
#include "telemetry/progress.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string config;
  std::string out;
  uint64_t seed = 0;
  std::string tokenizer;
  int threads = 0;
};

Status init_model(const Arguments& arguments) {
  checkpoint::InitOptions options;
  options.seed = arguments.seed;
  options.tokenizer_dir = arguments.tokenizer;
  options.num_threads = arguments.threads > 0
                            ? arguments.threads
                            : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
  std::optional<telemetry::ProgressBar> bar;
  options.progress = [&](int64_t done, int64_t total) {
    if (!bar) {
      bar.emplace("parameters", total);
    }
    bar->update(done);
  };
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::InitSummary summary,
                          checkpoint::init_model(arguments.config, arguments.out, options));
  bar.reset();
  std::fprintf(stderr, "%s: %lld parameters in %lld tensors, %.1f MB in bfloat16, seed %llu\n",
               arguments.out.c_str(), static_cast<long long>(summary.parameters),
               static_cast<long long>(summary.tensors), static_cast<double>(summary.parameters) * 2e-6,
               static_cast<unsigned long long>(arguments.seed));
  return absl::OkStatus();
}

}  // namespace

void add_init_model(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "init-model",
      "Write a randomly initialized Hugging Face checkpoint of a small or full-size architecture");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("config", arguments->config, "A config.json (Llama, Qwen3 or Qwen3-MoE)")->required();
  command->add_option("out", arguments->out, "The checkpoint directory to create")->required();
  command->add_option("--seed", arguments->seed, "Each parameter's values depend on this and on its name")
      ->check(seed_number())
      ->capture_default_str();
  command->add_option("--tokenizer", arguments->tokenizer,
                      "A directory whose tokenizer files are copied into the checkpoint");
  command->add_option("--threads", arguments->threads, "Threads; never changes a value (0: all)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  command->callback([arguments, &action] { action = [arguments] { return init_model(*arguments); }; });
}

}  // namespace accord::cli
