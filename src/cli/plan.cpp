// accord plan: what a recipe means, without reading a weight's values or starting a process.
#include "precision/plan.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <cstdio>
#include <filesystem>
#include <memory>
#include <nlohmann/json.hpp>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/hf_config.hpp"
#include "cli/commands.hpp"
#include "cli/text_io.hpp"
#include "controller/device_choice.hpp"
#include "controller/engine_limits.hpp"
#include "controller/model_rules.hpp"
#include "controller/reference_policy.hpp"
#include "controller/run_inputs.hpp"
#include "precision/expert_shards.hpp"
#include "precision/plan_summary.hpp"
#include "recipe/miles_args.hpp"
#include "recipe/recipe.hpp"
#include "reward/reward.hpp"
#include "rpc/identity.hpp"
#include "rpc/reward_client.hpp"
#include "text/chat_template.hpp"
#include "text/data_path.hpp"
#include "text/parquet.hpp"
#include "trainer/shards.hpp"
#include "weights/manifest.hpp"

namespace accord::cli {
namespace {

using Json = nlohmann::ordered_json;

struct Arguments {
  std::string recipe;
  std::vector<std::string> overrides;
  bool json = false;
  std::optional<std::string> explain;  // a tensor's name
  std::string from_miles_args;         // a file of arguments
};

struct Memory {
  int64_t arena = 0;
  int64_t fragments = 0;  // rollout, copies of experts' weights
  int64_t kv_cache = 0;   // rollout
  int64_t masters = 0;    // trainer, fp32; of the rank that has most, like the rest
  int64_t moments = 0;    // trainer, two of fp32
  int64_t gradients = 0;  // trainer, fp32
  int64_t originals = 0;  // trainer, BF16 of weights that another rank owns
  int64_t reference = 0;  // trainer, the reference policy in BF16

  int64_t rollout_worker() const { return arena + fragments + kv_cache; }
  int64_t trainer_worker() const { return arena + masters + moments + gradients + originals + reference; }
};

struct DryRun {
  recipe::Recipe recipe;
  ModelConfig config;
  int64_t parameters = 0;
  precision::PrecisionPlan plan;
  WeightManifest manifest;
  Memory memory;
  std::vector<std::string> warnings;
  std::vector<Status> refused;  // what `accord run` would stop at
};

void refuse_unless_ok(const Status& status, std::vector<Status>& refused) {
  if (!status.ok()) {
    refused.push_back(status);
  }
}

Status check_file(const char* key, const std::string& path) {
  const StatusOr<text::DataPath> data = text::parse_data_path(path);
  if (!data.ok()) {
    return annotate(data.status(), key);
  }
  ACCORD_RETURN_IF_ERROR(annotate(text::check_format(*data), key));
  std::error_code error;
  if (!std::filesystem::is_regular_file(data->file, error)) {
    return io_error("{}: '{}' is not a file that can be read (relative paths start at the current directory)",
                    key, data->file);
  }
  return absl::OkStatus();
}

// Whether the template renders one question, with or without a system message.
Status check_chat_template(const recipe::Recipe& recipe) {
  ACCORD_ASSIGN_OR_RETURN(const text::ChatTemplate chat, controller::resolve_chat_template(recipe));
  const Status rendered = chat.render_text("2 + 2?").status();
  const std::vector<text::Message> with_system = {{"system", "Be brief."}, {"user", "2 + 2?"}};
  return rendered.ok() || chat.render(with_system).ok() ? absl::OkStatus()
                                                        : annotate(rendered, "data.chat_template");
}

// Records, labels and tokenizer, as a run reads them. A plan needs only the model's config, a run the rest.
void check_inputs(DryRun& run) {
  const std::filesystem::path model = run.recipe.model.checkpoint;
  std::error_code error;
  if (!std::filesystem::exists(model / "model.safetensors", error) &&
      !std::filesystem::exists(model / "model.safetensors.index.json", error)) {
    run.warnings.push_back(fmt::format(
        "{} has no weights (safetensors): a run needs them; the records of the data sets were not checked",
        run.recipe.model.checkpoint));
  } else if (run.refused.empty()) {
    refuse_unless_ok(controller::load_run_inputs(run.recipe).status(), run.refused);
  }
}

void check_surroundings(DryRun& run) {
  const recipe::Recipe& recipe = run.recipe;
  refuse_unless_ok(controller::check_model_rules(recipe, run.config), run.refused);
  if (const auto reference = controller::reference_of(recipe)) {
    const auto config = controller::read_reference_config(*reference, recipe, run.config);
    const auto bytes = config.ok() ? controller::reference_bytes(*config) : config.status();
    refuse_unless_ok(bytes.status(), run.refused);
    run.memory.reference = bytes.value_or(0);
  }
  if (recipe.reward.external) {
    refuse_unless_ok(rpc::check_reward(recipe.reward, /*allow_exec=*/true), run.refused);
    if (!recipe.reward.external->command.empty()) {
      run.warnings.push_back(fmt::format("a run executes '{}': it needs --allow-exec",
                                         fmt::join(recipe.reward.external->command, " ")));
    }
  } else {
    const Status scorer = reward::make_scorer(recipe.reward.type).status();
    refuse_unless_ok(scorer.ok() ? scorer : annotate(scorer, "reward.type"), run.refused);
  }
  refuse_unless_ok(check_chat_template(recipe), run.refused);
  refuse_unless_ok(annotate(rpc::check_loopback(recipe.monitor.listen), "monitor.listen"), run.refused);
  for (size_t i = 0; i < recipe.data.train.size(); ++i) {
    const std::string key =
        recipe.data.train.size() == 1 ? "data.train.path" : fmt::format("data.train.{}.path", i);
    refuse_unless_ok(check_file(key.c_str(), recipe.data.train[i].path), run.refused);
  }
  for (size_t i = 0; i < recipe.data.eval.size(); ++i) {
    refuse_unless_ok(check_file(fmt::format("data.eval.{}.path", i).c_str(), recipe.data.eval[i].path),
                     run.refused);
  }
  if (recipe.sft) {
    refuse_unless_ok(check_file("sft.path", recipe.sft->path), run.refused);
  }
  check_inputs(run);
  const int64_t longest = controller::longest_sequence(recipe);
  if (longest > run.config.max_position_embeddings) {
    run.warnings.push_back(fmt::format(
        "the longest prompt and response, {} tokens, exceed the model's {} positions; a run is refused "
        "if its prompts are that long",
        longest, run.config.max_position_embeddings));
  }
}

// What trainer ranks keep beside the arena, the largest of each.
Status add_trainer_memory(const DryRun& run, Memory& memory) {
  const recipe::TrainerPart& trainer = run.recipe.trainer;
  const bool originals = run.recipe.precision.backward != recipe::BackwardMode::kDequantized;
  const std::vector<ParamSpec> specs = parameter_specs(run.config);
  trainer::ShardOptions options;
  options.size = static_cast<int32_t>(trainer.workers);
  options.expert_parallel = static_cast<int32_t>(std::max<int64_t>(trainer.expert_parallel, 1));
  for (const precision::PlanRow& row : run.plan.rows) {
    options.units.push_back(row.unit);
  }
  for (options.rank = 0; options.rank < options.size; ++options.rank) {
    ACCORD_ASSIGN_OR_RETURN(const trainer::Shards shards, trainer::Shards::create(run.config, options));
    int64_t owned = 0;
    int64_t held = 0;
    int64_t copied = 0;
    for (size_t i = 0; i < specs.size(); ++i) {
      const int64_t parameter = static_cast<int64_t>(i);
      if (!shards.holds(parameter)) {
        continue;
      }
      held += specs[i].numel();
      if (shards.owns(parameter)) {
        owned += specs[i].numel();
      } else if (originals && run.plan.rows[i].format != WeightFormat::kBF16) {
        copied += specs[i].numel();
      }
    }
    memory.masters = std::max(memory.masters, owned * size_of(Dtype::kF32));
    memory.gradients = std::max(memory.gradients, held * size_of(Dtype::kF32));
    memory.originals = std::max(memory.originals, copied * size_of(Dtype::kBF16));
  }
  memory.moments = 2 * memory.masters;
  return absl::OkStatus();
}

// What a rollout worker may take for keys and values if the run started here now, beside what it keeps of
// experts.
int64_t cache_budget(DryRun& run, Memory& memory) {
  const auto devices = controller::choose_devices(run.recipe, controller::this_machine());
  if (!devices.ok()) {
    run.warnings.push_back(fmt::format("a run on this machine is refused: {}", message_of(devices.status())));
    return controller::kAutoCacheBytes;
  }
  if (!devices->cuda) {
    return controller::kAutoCacheBytes;
  }
  memory.fragments = controller::expert_fragment_bytes(run.recipe, run.manifest);
  const auto found = list_cuda_devices();
  const auto device = Device::open(devices->rollout.front());
  const StatusOr<int64_t> budget =
      !found.ok()    ? found.status()
      : !device.ok() ? device.status()
                     : controller::device_cache_bytes(*device, run.recipe.rollout.workers,
                                                      static_cast<int64_t>(found->size()), memory.fragments);
  if (!budget.ok()) {
    run.warnings.push_back(fmt::format("a run on this machine fails: {}", message_of(budget.status())));
    return controller::kAutoCacheBytes;
  }
  return *budget;
}

StatusOr<Memory> memory_of(DryRun& run) {
  const int64_t row = kv_row_bytes(run.config, size_of(run.recipe.model.compute_dtype));
  Memory memory;
  memory.arena = run.manifest.arena_bytes;
  memory.kv_cache = controller::kv_cache_rows(run.recipe, row, cache_budget(run, memory)) * row;
  ACCORD_RETURN_IF_ERROR(add_trainer_memory(run, memory));
  return memory;
}

StatusOr<recipe::Inspection> inspect(const Arguments& arguments) {
  if (arguments.recipe != "-") {
    return recipe::inspect_recipe_file(arguments.recipe, arguments.overrides);
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_input("-"));
  return recipe::inspect_recipe(text, input_name("-"), arguments.overrides);
}

StatusOr<DryRun> dry_run(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(recipe::Inspection inspection, inspect(arguments));
  DryRun run;
  run.recipe = std::move(inspection.recipe);
  run.warnings = std::move(inspection.notes);
  refuse_unless_ok(inspection.refused, run.refused);
  StatusOr<checkpoint::HfConfig> hf = checkpoint::read_hf_config(run.recipe.model.checkpoint);
  if (!hf.ok()) {
    return annotate(hf.status(), "model.checkpoint");
  }
  run.config = std::move(hf->model);
  run.config.mla.form = run.recipe.model.mla;
  for (const ParamSpec& spec : parameter_specs(run.config)) {
    run.parameters += spec.numel();
  }
  ACCORD_ASSIGN_OR_RETURN(run.plan, precision::build_plan(run.config, run.recipe.precision));
  const int64_t shards = run.recipe.trainer.expert_tensor_parallel;
  refuse_unless_ok(precision::check_expert_shards(run.plan, shards, precision::kRolloutExpertShards),
                   run.refused);
  run.plan.digest = precision::digest_with_expert_shards(run.plan.digest, shards);
  ACCORD_ASSIGN_OR_RETURN(run.manifest, weights::build_manifest(run.config, run.plan));
  StatusOr<Memory> memory = memory_of(run);
  refuse_unless_ok(memory.status(), run.refused);
  if (memory.ok()) {
    run.memory = *memory;
  }
  run.warnings.insert(run.warnings.end(), run.plan.warnings.begin(), run.plan.warnings.end());
  check_surroundings(run);
  return run;
}

std::string bytes_text(int64_t bytes) {
  constexpr const char* kUnits[] = {"B", "KiB", "MiB", "GiB", "TiB"};
  double value = static_cast<double>(bytes);
  size_t unit = 0;
  while (value >= 1024.0 && unit + 1 < std::size(kUnits)) {
    value /= 1024.0;
    ++unit;
  }
  return unit == 0 ? fmt::format("{} B", bytes) : fmt::format("{:.1f} {}", value, kUnits[unit]);
}

std::string to_text(const DryRun& run) {
  const Memory& m = run.memory;
  std::string out = run.plan.to_text();
  out += "\n" + precision::summarize(run.plan).to_text();
  out += fmt::format("\nmodel             {}: {} layers, {} parameters\n", run.recipe.model.checkpoint,
                     run.config.num_layers, run.parameters);
  out += fmt::format("plan digest       {}\n", run.plan.digest);
  out += fmt::format("manifest digest   {}\n", run.manifest.digest);
  out += fmt::format("rollout workers   {}, each {}: weights {}, {}KV cache up to {}\n",
                     run.recipe.rollout.workers, bytes_text(m.rollout_worker()), bytes_text(m.arena),
                     m.fragments > 0 ? fmt::format("experts again {}, ", bytes_text(m.fragments)) : "",
                     bytes_text(m.kv_cache));
  out += fmt::format(
      "trainer workers   {}, each {} and activations: weights {}, masters {}, moments {}, gradients {}{}{}\n",
      run.recipe.trainer.workers, bytes_text(m.trainer_worker()), bytes_text(m.arena), bytes_text(m.masters),
      bytes_text(m.moments), bytes_text(m.gradients),
      m.originals > 0 ? fmt::format(", originals {}", bytes_text(m.originals)) : "",
      m.reference > 0 ? ", reference " + bytes_text(m.reference) : "");
  for (const std::string& warning : run.warnings) {
    out += fmt::format("warning           {}\n", warning);
  }
  return out;
}

Json summary_json(const precision::PlanSummary& summary) {
  Json out;
  out["parameters"] = summary.parameters;
  out["expert_parameters"] = summary.experts();
  out["routed_expert_parameters"] = summary.routed;
  out["groups"] = Json::array();
  for (const precision::PlanGroup& group : summary.groups) {
    out["groups"].push_back({{"module", group.module},
                             {"format", std::string(precision::format_word(group.format))},
                             {"weights", group.weights},
                             {"parameters", group.parameters},
                             {"bytes", group.bytes}});
  }
  return out;
}

std::string to_json(const DryRun& run) {
  const Memory& m = run.memory;
  Json out;
  out["recipe"] = recipe::to_yaml(run.recipe);
  out["model"] = {{"checkpoint", run.recipe.model.checkpoint},
                  {"layers", run.config.num_layers},
                  {"parameters", run.parameters}};
  out["plan"] = Json::parse(run.plan.to_json());
  out["summary"] = summary_json(precision::summarize(run.plan));
  out["manifest"] = {{"digest", run.manifest.digest}, {"arena_bytes", run.manifest.arena_bytes}};
  out["memory_bytes"] = {
      {"rollout_worker", {{"weights", m.arena}, {"expert_fragments", m.fragments}, {"kv_cache", m.kv_cache}}},
      {"trainer_worker",
       {{"weights", m.arena},
        {"masters", m.masters},
        {"moments", m.moments},
        {"gradients", m.gradients},
        {"originals", m.originals},
        {"reference", m.reference}}}};
  out["warnings"] = run.warnings;
  out["refused"] = Json::array();
  for (const Status& status : run.refused) {
    out["refused"].push_back(std::string(message_of(status)));
  }
  return out.dump(1, ' ', false, Json::error_handler_t::replace) + "\n";
}

Status import_arguments(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_input(arguments.from_miles_args));
  ACCORD_ASSIGN_OR_RETURN(const recipe::MilesImport imported,
                          recipe::import_miles_args(text, input_name(arguments.from_miles_args)));
  for (const std::string& note : imported.notes) {
    fmt::print(stderr, "{}\n", note);
  }
  return write_output("-", imported.yaml);
}

Status plan(const Arguments& arguments) {
  if (!arguments.from_miles_args.empty()) {
    return import_arguments(arguments);
  }
  if (arguments.explain && arguments.json) {
    return usage_error(
        "--explain is text only (leave out --json, which lists why each weight has its format)");
  }
  if (arguments.explain && arguments.explain->empty()) {
    return usage_error("--explain: give the name of a weight");
  }
  if (arguments.recipe.empty()) {
    return usage_error("give a recipe, or --from-miles-args FILE");
  }
  ACCORD_ASSIGN_OR_RETURN(const DryRun run, dry_run(arguments));
  if (arguments.explain) {
    ACCORD_ASSIGN_OR_RETURN(const std::string text, precision::explain(run.config, run.recipe.precision,
                                                                       run.plan, *arguments.explain));
    return write_output("-", text);
  }
  ACCORD_RETURN_IF_ERROR(write_output("-", arguments.json ? to_json(run) : to_text(run)));
  if (run.refused.empty()) {
    return absl::OkStatus();
  }
  std::string message = "a run would be refused:";
  for (const Status& status : run.refused) {
    message += "\n";
    message += message_of(status);
  }
  return make_error(exit_code(run.refused.front()), message);
}

}  // namespace

void add_plan(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "plan",
      "Dry run: validate a recipe; show each weight's format, digests, memory, what would be refused");
  command->add_option("recipe", arguments->recipe, "The recipe (YAML); - for standard input");
  command
      ->add_option("--set", arguments->overrides,
                   "Override one key: --set trainer.optimizer.lr=1e-5 (repeatable)")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command->add_flag("--json", arguments->json, "Everything as one JSON object, every weight listed");
  CLI::Option* explain = command
                             ->add_option("--explain", arguments->explain,
                                          "Only which rule gave this weight its format; Hugging Face or "
                                          "Megatron name")
                             ->type_name("TENSOR");
  command
      ->add_option("--from-miles-args", arguments->from_miles_args,
                   "Print the recipe that a file of Miles arguments amounts to; - for standard input")
      ->type_name("FILE")
      ->excludes(explain);
  command->callback([arguments, &action] { action = [arguments] { return plan(*arguments); }; });
}

}  // namespace accord::cli
