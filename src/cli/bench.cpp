// accord bench: kernels, rollout and memory beside the ceilings of the same run.
#include <cstdio>
#include <memory>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "bench/json.hpp"
#include "cli/commands.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string device = "cpu";
  std::string json;  // a file, or "-"
  std::string op;
  bool decode = false;
  std::vector<std::string> shapes;
  std::string shape;
  std::vector<std::string> formats{"bf16", "mxfp8", "nvfp4"};
  std::vector<int32_t> batches;
  int64_t context = 0;
  int64_t layers = 0;
  int64_t steps = 32;
  int threads = 0;
  bench::MemoryOptions memory;
};

StatusOr<Device> open(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const DeviceId id, parse_device(arguments.device));
  return Device::open(id);
}

// Text goes to stdout as it is measured, unless JSON does.
bench::Print printer(const Arguments& arguments) {
  if (arguments.json == "-") return [](const std::string&) {};
  return [](const std::string& text) {
    std::fwrite(text.data(), 1, text.size(), stdout);
    std::fflush(stdout);
  };
}

template <class Report>
Status write_json(const Arguments& arguments, const Report& report) {
  if (arguments.json.empty()) return absl::OkStatus();
  const std::string text = bench::to_json(report, build_id()) + "\n";
  if (arguments.json == "-") {
    std::fwrite(text.data(), 1, text.size(), stdout);
    return absl::OkStatus();
  }
  return write_file_atomic(arguments.json, text);
}

bool large(const Device& device) { return device.is_cuda() && !cuda_is_emulated(); }

Status run_kernels(const Arguments& arguments) {
  bench::KernelOptions options;
  ACCORD_ASSIGN_OR_RETURN(options.device, open(arguments));
  options.op = arguments.op;
  options.decode = arguments.decode;
  options.shapes = arguments.shapes;
  ACCORD_ASSIGN_OR_RETURN(const bench::KernelReport report, bench::run_kernels(options, printer(arguments)));
  return write_json(arguments, report);
}

Status run_rollout(const Arguments& arguments) {
  bench::RolloutOptions options;
  ACCORD_ASSIGN_OR_RETURN(options.device, open(arguments));
  const bool real = large(options.device);
  options.shape = !arguments.shape.empty() ? arguments.shape : real ? "qwen3-30b-a3b" : "tiny-moe";
  options.formats = arguments.formats;
  options.batches = !arguments.batches.empty() ? arguments.batches
                    : real                     ? std::vector<int32_t>{1, 8, 32, 128}
                                               : std::vector<int32_t>{1, 4};
  constexpr int64_t kContext = 2048;
  constexpr int64_t kSmallContext = 256;
  options.context = arguments.context > 0 ? arguments.context : real ? kContext : kSmallContext;
  options.layers = arguments.layers;
  options.steps = arguments.steps;
  options.threads = arguments.threads;
  ACCORD_ASSIGN_OR_RETURN(const bench::RolloutReport report, bench::run_rollout(options, printer(arguments)));
  return write_json(arguments, report);
}

Status run_memory(const Arguments& arguments) {
  bench::MemoryOptions options = arguments.memory;
  ACCORD_ASSIGN_OR_RETURN(options.device, open(arguments));
  ACCORD_ASSIGN_OR_RETURN(const bench::MemoryReport report, bench::run_memory(options, printer(arguments)));
  return write_json(arguments, report);
}

CLI::App* add(CLI::App& bench, const char* name, const char* what,
              const std::shared_ptr<Arguments>& arguments, Action& action, Status (*run)(const Arguments&)) {
  CLI::App* command = bench.add_subcommand(name, what);
  command->add_option("--device", arguments->device, "cpu or cuda:N")->capture_default_str();
  command->add_option("--json", arguments->json,
                      "Write JSON to this file too; -: to stdout, without the text");
  command->callback([arguments, run, &action] { action = [arguments, run] { return run(*arguments); }; });
  return command;
}

}  // namespace

void add_bench(CLI::App& app, Action& action) {
  CLI::App* bench = app.add_subcommand(
      "bench", "Time kernels and rollout, and count a layer's memory, beside ceilings of the same run");
  bench->require_subcommand(1);
  {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = add(*bench, "kernels", "Every kernel by itself, and whole layers beside their sum",
                            arguments, action, run_kernels);
    command->add_option("--op", arguments->op,
                        "Kernels of one folder of kernels/ only, such as gemm or attention");
    command->add_flag("--decode", arguments->decode, "On a device: the tables of decode steps alone");
    command
        ->add_option(
            "--shape", arguments->shapes,
            "qwen3-30b-a3b, smollm2-135m, tiny, tiny-moe or a config.json (may be given several times)")
        ->allow_extra_args(false);
  }
  {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command =
        add(*bench, "rollout", "Tokens per second of random weights, and their share of the roofline",
            arguments, action, run_rollout);
    command->add_option("--shape", arguments->shape,
                        "qwen3-30b-a3b, smollm2-135m, tiny, tiny-moe or a config.json");
    command->add_option("--format", arguments->formats, "bf16, mxfp8, nvfp4 or a recipe; several with commas")
        ->delimiter(',')
        ->capture_default_str();
    command->add_option("--batch", arguments->batches, "Sequences that decode at once; several with commas")
        ->delimiter(',')
        ->check(CLI::Range(1, 65536));
    command
        ->add_option("--context", arguments->context, "Positions of a sequence at the end of the timed steps")
        ->check(positive_number());
    command
        ->add_option("--layers", arguments->layers,
                     "The last N layers only (default: all that fit into memory)")
        ->check(positive_number());
    command->add_option("--steps", arguments->steps, "Decode steps that are timed")
        ->check(positive_number())
        ->capture_default_str();
    command->add_option("--threads", arguments->threads, "Threads of the CPU (0: all)")
        ->check(CLI::Range(0, 1024));
  }
  {
    auto arguments = std::make_shared<Arguments>();
    CLI::App* command = add(*bench, "memory",
                            "Peak memory of one linear layer's forward and backward, in each format and mode",
                            arguments, action, run_memory);
    for (const auto& [name, value, what] :
         {std::tuple{"--rows", &arguments->memory.rows, "Rows of the input"},
          std::tuple{"--inputs", &arguments->memory.inputs, "Columns of the input"},
          std::tuple{"--outputs", &arguments->memory.outputs, "Columns of the output"}}) {
      command->add_option(name, *value, what)->check(positive_number())->capture_default_str();
    }
  }
}

}  // namespace accord::cli
