// accord replay: one optimizer step on a recorded batch, with everything it produced in one file; or a step
// of a run directory, compared with what the run recorded.
#include <algorithm>
#include <cstring>
#include <list>
#include <memory>
#include <string>
#include <vector>

#include "base/json_text.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "cli/commands.hpp"
#include "cli/text_io.hpp"
#include "controller/engine_limits.hpp"
#include "controller/model_rules.hpp"
#include "controller/replay_run.hpp"
#include "controller/source_check.hpp"
#include "precision/plan.hpp"
#include "recipe/recipe.hpp"
#include "trainer/objective.hpp"
#include "trainer/trainer.hpp"
#include "weights/arena.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string checkpoint;
  std::string batch;
  std::string out;
  std::string recipe;
  std::vector<std::string> overrides;
  int64_t step = 0;  // of a run directory
  bool json = false;
};

struct Recorded {
  int64_t batch = 0;
  int64_t length = 0;
  std::vector<double> advantages;
  std::vector<trainer::TrainSample> samples;
};

// A file may hold more than the batch: where it has step.input_ids, every name carries that prefix.
class BatchFile {
 public:
  static StatusOr<BatchFile> open(const std::string& path) {
    ACCORD_ASSIGN_OR_RETURN(checkpoint::SafetensorsFile file, checkpoint::SafetensorsFile::open(path));
    return BatchFile(std::move(file));
  }
  bool has(const std::string& name) const { return file_.find(actual(name)) != nullptr; }
  StatusOr<const checkpoint::TensorInfo*> info(const std::string& name) const {
    return file_.require(actual(name));
  }
  StatusOr<std::vector<float>> floats(const std::string& name, const std::vector<int64_t>& shape) const {
    ACCORD_RETURN_IF_ERROR(check_shape(name, shape));
    std::vector<float> out(count(shape));
    ACCORD_RETURN_IF_ERROR(file_.read_f32(actual(name), out));
    return out;
  }
  StatusOr<std::vector<int32_t>> ints(const std::string& name, const std::vector<int64_t>& shape) const {
    ACCORD_RETURN_IF_ERROR(check_shape(name, shape));
    std::vector<int32_t> out(count(shape));
    ACCORD_RETURN_IF_ERROR(file_.read_i32(actual(name), out));
    return out;
  }
  // F64 as recorded by debug.dump_batches, or F32.
  StatusOr<std::vector<double>> doubles(const std::string& name, const std::vector<int64_t>& shape) const {
    ACCORD_ASSIGN_OR_RETURN(const checkpoint::TensorInfo* tensor, info(name));
    if (tensor->dtype != Dtype::kF64) {
      ACCORD_ASSIGN_OR_RETURN(const std::vector<float> values, floats(name, shape));
      return std::vector<double>(values.begin(), values.end());
    }
    ACCORD_RETURN_IF_ERROR(check_shape(name, shape));
    std::vector<double> out(count(shape));
    std::memcpy(out.data(), tensor->data, static_cast<size_t>(tensor->bytes));
    return out;
  }
  const std::string& path() const { return file_.path(); }

 private:
  explicit BatchFile(checkpoint::SafetensorsFile file) : file_(std::move(file)) {}
  std::string actual(const std::string& name) const {
    return file_.find("step.input_ids") != nullptr ? "step." + name : name;
  }
  static size_t count(const std::vector<int64_t>& shape) {
    size_t n = 1;
    for (int64_t extent : shape) n *= static_cast<size_t>(extent);
    return n;
  }
  Status check_shape(const std::string& name, const std::vector<int64_t>& shape) const {
    ACCORD_ASSIGN_OR_RETURN(const checkpoint::TensorInfo* tensor, info(name));
    if (tensor->shape != shape) {
      return data_error("{}: {} has shape {}, must be {}", path(), tensor->name,
                        checkpoint::shape_text(tensor->shape), checkpoint::shape_text(shape));
    }
    return absl::OkStatus();
  }

  checkpoint::SafetensorsFile file_;
};

// [begin, end) of row `row` of a matrix with `width` columns.
template <class T>
std::vector<T> columns(const std::vector<T>& matrix, int64_t width, int64_t row, int64_t begin, int64_t end) {
  const auto first = matrix.begin() + row * width;
  return {first + begin, first + end};
}

StatusOr<Recorded> read_batch(const BatchFile& file, const recipe::Recipe& recipe,
                              const ModelConfig& config) {
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::TensorInfo* ids, file.info("input_ids"));
  if (ids->shape.size() != 2 || ids->shape[0] < 1 || ids->shape[1] < 2) {
    return data_error("{}: {} has shape {}, must be [batch, length] with at least 1 and 2", file.path(),
                      ids->name, checkpoint::shape_text(ids->shape));
  }
  Recorded out;
  out.batch = ids->shape[0];
  out.length = ids->shape[1];
  const int64_t group = recipe.rollout.samples_per_prompt;
  if (out.batch % group != 0) {
    return data_error("{}: {} samples are no whole number of groups of {} (rollout.samples_per_prompt)",
                      file.path(), out.batch, group);
  }
  ACCORD_ASSIGN_OR_RETURN(const auto tokens, file.ints("input_ids", ids->shape));
  ACCORD_ASSIGN_OR_RETURN(const auto prompt, file.ints("prompt_len", {out.batch}));
  ACCORD_ASSIGN_OR_RETURN(const auto total, file.ints("total_len", {out.batch}));
  ACCORD_ASSIGN_OR_RETURN(const auto rewards, file.doubles("rewards", {out.batch}));
  ACCORD_ASSIGN_OR_RETURN(const auto old, file.floats("old_logprobs", {out.batch, out.length - 1}));
  std::vector<float> ref;
  if (file.has("ref_logprobs")) {
    ACCORD_ASSIGN_OR_RETURN(ref, file.floats("ref_logprobs", {out.batch, out.length - 1}));
  }
  const int64_t ids_per_token = routing_width(config);
  std::vector<int32_t> routing;
  if (file.has("routing")) {
    ACCORD_ASSIGN_OR_RETURN(routing, file.ints("routing", {out.batch, out.length, num_moe_layers(config),
                                                           config.num_experts_per_token}));
  }
  out.advantages.resize(static_cast<size_t>(out.batch));
  trainer::group_advantages(recipe.algorithm.advantage, rewards, group, out.advantages);
  for (int64_t b = 0; b < out.batch; ++b) {
    const size_t i = static_cast<size_t>(b);
    if (prompt[i] < 1 || prompt[i] >= total[i] || total[i] > out.length) {
      return data_error("{}: sample {} has prompt_len {} and total_len {}; 1 <= prompt_len < total_len <= {}",
                        file.path(), b, prompt[i], total[i], out.length);
    }
    trainer::TrainSample sample;
    sample.key.prompt_id = static_cast<uint64_t>(b / group);
    sample.key.sample_index = static_cast<uint32_t>(b % group);
    sample.tokens = columns(tokens, out.length, b, 0, total[i]);
    sample.prompt_length = prompt[i];
    sample.rollout_logprobs = columns(old, out.length - 1, b, prompt[i] - 1, total[i] - 1);
    if (!ref.empty()) sample.ref_logprobs = columns(ref, out.length - 1, b, prompt[i] - 1, total[i] - 1);
    if (!routing.empty()) {
      const auto experts = columns(routing, out.length * ids_per_token, b, 0, (total[i] - 1) * ids_per_token);
      const auto known = [&](int32_t id) { return id >= 0 && id < config.num_experts; };
      if (const auto bad = std::find_if_not(experts.begin(), experts.end(), known); bad != experts.end()) {
        return data_error("{}: routing of sample {} names expert {}, must be 0 to {}", file.path(), b, *bad,
                          config.num_experts - 1);
      }
      sample.routing = pack_expert_ids(experts, config.num_experts);
    }
    sample.advantage = out.advantages[i];
    sample.temperature = static_cast<float>(recipe.rollout.temperature);
    out.samples.push_back(std::move(sample));
  }
  return out;
}

Status write_result(const std::string& path, const Recorded& recorded, const trainer::StepReport& report,
                    trainer::Trainer& trainer) {
  const auto scalar = [&](const char* name) { return static_cast<float>(report.metrics.at(name)); };
  const float loss = scalar("train/loss");
  const float norm = scalar("train/grad_norm");
  const float clipped = scalar("train/clip_fraction");
  const std::vector<float> advantages(recorded.advantages.begin(), recorded.advantages.end());
  // Positions outside of the response are 0.
  std::vector<float> logprobs(static_cast<size_t>(recorded.batch * (recorded.length - 1)));
  for (int64_t b = 0; b < recorded.batch; ++b) {
    const auto& row = report.logprobs[static_cast<size_t>(b)];
    const int64_t begin = recorded.samples[static_cast<size_t>(b)].prompt_length - 1;
    std::copy(row.begin(), row.end(), logprobs.begin() + b * (recorded.length - 1) + begin);
  }
  std::vector<checkpoint::TensorData> tensors;
  const auto add = [&](const std::string& name, const std::vector<int64_t>& shape, const float* data) {
    checkpoint::TensorData tensor;
    tensor.name = name;
    tensor.shape = shape;
    tensor.data = data;
    tensors.push_back(std::move(tensor));
  };
  add("loss", {1}, &loss);
  add("grad_norm", {1}, &norm);
  add("clip_fraction", {1}, &clipped);
  add("advantages", {recorded.batch}, advantages.data());
  add("logprobs", {recorded.batch, recorded.length - 1}, logprobs.data());
  std::list<std::vector<float>> kept;
  for (const ParamSpec& spec : trainer.parameters()) {
    const auto values = [&]() -> std::span<float> {
      kept.emplace_back(static_cast<size_t>(spec.numel()));
      return kept.back();
    };
    const std::span<float> gradient = values();
    ACCORD_RETURN_IF_ERROR(trainer.read_gradient(spec.name, gradient));
    add("grad." + spec.name, spec.shape, gradient.data());
    const std::span<float> master = values();
    ACCORD_RETURN_IF_ERROR(trainer.read_master(spec.name, master));
    add("updated." + spec.name, spec.shape, master.data());
  }
  return checkpoint::write_safetensors(path, tensors);
}

std::string to_text(const controller::ReplayedRun& run) {
  std::string out = fmt::format("start    {}, version {}\n", run.start, run.steps.front().step);
  for (const controller::ReplayedStep& step : run.steps) {
    const bool last = &step == &run.steps.back();
    size_t equal = 0;
    for (const controller::ReplayedValue& value : step.values) {
      equal += value.equal() ? 1 : 0;
      if (last || !value.equal()) {
        out += fmt::format("step {:<3} {:<34} {} {}\n", step.step, value.name, json_number(value.recorded),
                           value.equal() ? "equal" : "replayed as " + json_number(value.replayed));
      }
    }
    if (!step.values.empty()) {
      out += fmt::format("step {:<3} {} of {} values equal\n", step.step, equal, step.values.size());
    }
    for (const controller::TensorDifference& tensor : step.differences) {
      out += fmt::format("step {:<3} {} differs: {} in the ledger, replayed as {}\n", step.step, tensor.name,
                         tensor.recorded, tensor.replayed);
    }
    out += fmt::format("step {:<3} {} of {} weights equal the ledger's version {}\n", step.step,
                       step.tensors - step.differences.size(), step.tensors, step.step);
  }
  return out;
}

std::string to_json(const controller::ReplayedRun& run) {
  std::string steps;
  for (const controller::ReplayedStep& step : run.steps) {
    std::string values;
    for (const controller::ReplayedValue& value : step.values) {
      values += fmt::format("{}{}:{{\"run\":{},\"replay\":{},\"equal\":{}}}", values.empty() ? "" : ",",
                            json_string(value.name), json_number(value.recorded), json_number(value.replayed),
                            value.equal());
    }
    std::string tensors;
    for (const controller::TensorDifference& tensor : step.differences) {
      tensors +=
          fmt::format("{}{{\"name\":{},\"run\":{},\"replay\":{}}}", tensors.empty() ? "" : ",",
                      json_string(tensor.name), json_string(tensor.recorded), json_string(tensor.replayed));
    }
    steps += fmt::format(
        "{}{{\"step\":{},\"equal\":{},\"values\":{{{}}},\"weights\":{},\"different_weights\":[{}]}}",
        steps.empty() ? "" : ",", step.step, step.equal(), values, step.tensors, tensors);
  }
  return fmt::format("{{\"equal\":{},\"start\":{},\"steps\":[{}]}}\n", run.equal(), json_string(run.start),
                     steps);
}

Status replay_step_of_run(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const controller::ReplayedRun run,
                          controller::replay_run(arguments.checkpoint, static_cast<uint64_t>(arguments.step),
                                                 arguments.overrides));
  ACCORD_RETURN_IF_ERROR(write_output("-", arguments.json ? to_json(run) : to_text(run)));
  if (run.equal()) {
    return absl::OkStatus();
  }
  std::vector<std::string> where;
  for (const controller::ReplayedStep& step : run.steps) {
    for (const controller::ReplayedValue& value : step.values) {
      if (!value.equal()) where.push_back(fmt::format("step {} {}", step.step, value.name));
    }
    for (const controller::TensorDifference& tensor : step.differences) {
      where.push_back(fmt::format("version {} {}", step.step, tensor.name));
    }
  }
  return data_error("{}: the replay differs from what the run recorded in {} places, first in {}",
                    arguments.checkpoint, where.size(), where.front());
}

Status check_arguments(const Arguments& arguments) {
  if (arguments.step != 0) {
    if (!arguments.batch.empty() || !arguments.recipe.empty()) {
      return usage_error("replay RUN --step N takes the batches and the recipe of the run; give neither");
    }
    return absl::OkStatus();
  }
  if (arguments.batch.empty() || arguments.out.empty() || arguments.recipe.empty()) {
    return usage_error("replay takes CHECKPOINT BATCH OUT --recipe RECIPE, or RUN --step N");
  }
  if (arguments.json) {
    return usage_error("--json goes with --step");
  }
  return refuse_same_file(arguments.batch, arguments.out);
}

Status replay(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(check_arguments(arguments));
  if (arguments.step != 0) {
    return replay_step_of_run(arguments);
  }
  ACCORD_ASSIGN_OR_RETURN(const recipe::Recipe recipe,
                          recipe::load_recipe(arguments.recipe, arguments.overrides));
  using recipe::DeviceChoice;
  if (recipe.rollout.device == DeviceChoice::kCuda || recipe.trainer.device == DeviceChoice::kCuda) {
    return recipe_error(
        "{}: {}.device is cuda, but a batch is replayed on the CPU, whose sums differ in their last bits: "
        "add "
        "--set rollout.device=cpu --set trainer.device=cpu, or replay a step of the run on its devices with "
        "replay RUN --step N",
        arguments.recipe, recipe.trainer.device == DeviceChoice::kCuda ? "trainer" : "rollout");
  }
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::HfCheckpoint source,
                          checkpoint::HfCheckpoint::open(arguments.checkpoint));
  ModelConfig config = source.config();
  config.mla.form = recipe.model.mla;
  ACCORD_RETURN_IF_ERROR(controller::check_model_rules(recipe, config));
  ACCORD_ASSIGN_OR_RETURN(const BatchFile file, BatchFile::open(arguments.batch));
  ACCORD_ASSIGN_OR_RETURN(const Recorded recorded, read_batch(file, recipe, config));
  ACCORD_ASSIGN_OR_RETURN(const precision::PrecisionPlan plan,
                          precision::build_plan(config, recipe.precision));
  ACCORD_RETURN_IF_ERROR(controller::check_source_formats(source, plan));
  ACCORD_ASSIGN_OR_RETURN(const WeightManifest manifest, weights::build_manifest(config, plan));

  trainer::TrainerOptions options;
  options.algorithm = recipe.algorithm;
  options.optimizer = recipe.trainer.optimizer;
  options.total_steps = recipe.run.steps;
  options.tokens_per_microbatch = recipe.trainer.tokens_per_microbatch;
  options.compute_dtype = recipe.model.compute_dtype;
  options.backward = recipe.precision.backward;
  for (const precision::PlanRow& row : plan.rows) {
    if (!row.weight_decay) options.no_weight_decay.push_back(row.name);
    if (row.e5m2_gradients) options.e5m2_gradients.push_back(row.name);
  }
  ThreadPool pool(controller::worker_threads(recipe.trainer.threads, 1));
  ACCORD_ASSIGN_OR_RETURN(
      const std::unique_ptr<trainer::Trainer> trainer,
      trainer::Trainer::create(config, options, pool, [&](const ParamSpec& spec, std::span<float> values) {
        return source.read_f32(spec.name, values);
      }));
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<weights::Arena> arena,
                          weights::Arena::create(manifest.arena_bytes));
  const weights::Masters masters = [&](const std::string& name) -> StatusOr<weights::Master> {
    return weights::Master(std::span<const float>(trainer->master(name)));
  };
  ACCORD_RETURN_IF_ERROR(weights::export_weights(manifest, plan, masters, *arena, pool).status());
  ACCORD_RETURN_IF_ERROR(trainer->bind_arena(manifest, arena->data()));
  ACCORD_ASSIGN_OR_RETURN(const trainer::StepReport report, trainer->train_step(recorded.samples, 0));
  return write_result(arguments.out, recorded, report, *trainer);
}

}  // namespace

void add_replay(CLI::App& app, Action& action) {
  CLI::App* command =
      app.add_subcommand("replay", "One optimizer step on a recorded batch, or a step of a run again");
  auto arguments = std::make_shared<Arguments>();
  command
      ->add_option("checkpoint", arguments->checkpoint,
                   "A Hugging Face directory; with --step, a run directory")
      ->required();
  command->add_option(
      "batch", arguments->batch,
      "A safetensors file: input_ids [B,T], prompt_len, total_len, rewards [B], old_logprobs "
      "[B,T-1], optionally ref_logprobs and routing [B,T,L,k] (L: MoE layers); all names may start with "
      "step.; the "
      "samples of a group (rollout.samples_per_prompt) are consecutive");
  command->add_option("out", arguments->out,
                      "The file to write: loss, grad_norm, clip_fraction, advantages, logprobs [B,T-1], "
                      "grad.<name> (after clipping), updated.<name> (fp32 masters after the step)");
  command->add_option("--recipe", arguments->recipe,
                      "The recipe; its model.checkpoint is not used, the first argument is");
  command
      ->add_option("--set", arguments->overrides,
                   "Override one key: --set trainer.optimizer.lr=1e-5 (repeatable)")
      ->take_all()
      ->expected(1)
      ->type_name("KEY=VALUE");
  command
      ->add_option(
          "--step", arguments->step,
          "Compute this step of a run directory again, from the batches that debug.dump_batches wrote, "
          "and compare metrics and weights with the run's, bit for bit")
      ->check(positive_number())
      ->type_name("N");
  command->add_flag("--json", arguments->json, "With --step: the comparison as one JSON object");
  command->callback([arguments, &action] { action = [arguments] { return replay(*arguments); }; });
}

}  // namespace accord::cli
