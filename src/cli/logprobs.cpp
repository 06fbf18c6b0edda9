#include <fmt/format.h>

#include <memory>
#include <optional>
#include <string>
#include <vector>

#include "checkpoint/safetensors.hpp"
#include "cli/commands.hpp"
#include "cli/text_io.hpp"
#include "controller/device_weights.hpp"
#include "controller/local_model.hpp"
#include "controller/sequence_logits.hpp"
#include "kernels/logprob/logprob.hpp"
#include "telemetry/progress.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string checkpoint;
  std::string in;
  std::string out;
  std::string dtype;
  std::string recipe;
  int threads = 0;
  std::string device = "cpu";
};

struct Input {
  std::vector<int32_t> ids;
  int64_t batch = 0;
  int64_t length = 0;
};

StatusOr<Input> read_ids(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::SafetensorsFile file, checkpoint::SafetensorsFile::open(path));
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::TensorInfo* info, file.require("input_ids"));
  if (info->shape.size() != 2 || info->shape[0] < 1 || info->shape[1] < 1) {
    return data_error("{}: input_ids has shape {}, must be [batch, length] with both at least 1", path,
                      checkpoint::shape_text(info->shape));
  }
  Input input;
  input.batch = info->shape[0];
  input.length = info->shape[1];
  input.ids.resize(static_cast<size_t>(info->numel()));
  ACCORD_RETURN_IF_ERROR(file.read_i32("input_ids", input.ids));
  return input;
}

std::string router_name(int64_t layer) { return fmt::format("router.{}.ids", layer); }

std::vector<checkpoint::TensorSpec> output_specs(const ModelConfig& c, const Input& input) {
  std::vector<checkpoint::TensorSpec> specs = {
      {"logits", Dtype::kF32, {input.batch, input.length, c.vocab_size}},
      {"logprobs", Dtype::kF32, {input.batch, input.length - 1}},
  };
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    if (c.layer_is_moe[static_cast<size_t>(layer)]) {
      specs.push_back(
          {router_name(layer), Dtype::kI32, {input.batch * input.length, c.num_experts_per_token}});
    }
  }
  return specs;
}

Status write_logprobs(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const Device device, open_device(arguments.device));
  controller::LocalModelOptions options{arguments.checkpoint, std::nullopt, arguments.recipe,
                                        arguments.threads};
  if (!arguments.dtype.empty()) {
    ACCORD_ASSIGN_OR_RETURN(options.compute_dtype, controller::parse_compute_dtype(arguments.dtype));
  }
  ACCORD_RETURN_IF_ERROR(refuse_same_file(arguments.in, arguments.out));
  ACCORD_ASSIGN_OR_RETURN(const Input input, read_ids(arguments.in));
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<controller::LocalModel> local,
                          controller::LocalModel::load(options));
  std::unique_ptr<controller::DeviceWeights> weights;
  if (device.is_cuda()) {
    ACCORD_ASSIGN_OR_RETURN(weights, controller::DeviceWeights::copy(*local, device));
  }
  const ModelConfig& c = local->config();
  if (input.length > c.max_position_embeddings) {
    return data_error(
        "{}: input_ids has {} positions, the model has {} (max_position_embeddings); cut the sequences",
        arguments.in, input.length, c.max_position_embeddings);
  }
  ACCORD_ASSIGN_OR_RETURN(checkpoint::SafetensorsWriter writer,
                          checkpoint::SafetensorsWriter::create(arguments.out, output_specs(c, input)));

  telemetry::ProgressBar bar("sequences", input.batch);
  const auto on_logits = [&](int64_t s, MatrixView logits,
                             std::span<const std::vector<int32_t>> expert_ids) -> Status {
    ACCORD_RETURN_IF_ERROR(writer.append(
        "logits",
        std::span<const float>(logits.row<float>(0), static_cast<size_t>(logits.rows * logits.cols))));
    std::vector<float> logprobs;
    for (int64_t t = 0; t + 1 < input.length; ++t) {
      logprobs.push_back(kernels::token_logprob(logits.row<float>(t), c.vocab_size,
                                                input.ids[static_cast<size_t>(s * input.length + t + 1)],
                                                1.0F));
    }
    ACCORD_RETURN_IF_ERROR(writer.append("logprobs", std::span<const float>(logprobs)));
    for (size_t layer = 0; layer < expert_ids.size(); ++layer) {
      if (c.layer_is_moe[layer]) {
        ACCORD_RETURN_IF_ERROR(writer.append(router_name(static_cast<int64_t>(layer)),
                                             std::span<const int32_t>(expert_ids[layer])));
      }
    }
    bar.update(s + 1);
    return absl::OkStatus();
  };
  const controller::SequenceBatch batch{input.ids, input.batch, input.length};
  const Status status = weights != nullptr ? controller::sequence_logits(*weights, batch, on_logits)
                                           : controller::sequence_logits(local->model(), batch, on_logits);
  if (!status.ok()) {
    return annotate(status, arguments.in);
  }
  return writer.commit();
}

}  // namespace

void add_logprobs(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "logprobs", "Logits, log-probabilities and chosen experts of token sequences under a checkpoint");
  auto arguments = std::make_shared<Arguments>();
  command->add_option("checkpoint", arguments->checkpoint, "A Hugging Face directory")->required();
  command
      ->add_option("in", arguments->in, "A safetensors file with input_ids [batch, length] (int32 or int64)")
      ->required();
  command
      ->add_option("out", arguments->out,
                   "The file to write: logits [B,T,V], logprobs [B,T-1] (fp32), router.<layer>.ids [B*T,k]")
      ->required();
  command->add_option("--dtype", arguments->dtype,
                      "Compute dtype: float32 or bfloat16 (default: the recipe's, or bfloat16)");
  command->add_option(
      "--recipe", arguments->recipe,
      "A recipe whose precision plan decides the weights' formats (default: as the checkpoint is stored)");
  command->add_option("--threads", arguments->threads, "Threads; never changes a value (0: all)")
      ->check(CLI::Range(0, 1024))
      ->capture_default_str();
  add_device_option(*command, arguments->device);
  command->callback([arguments, &action] { action = [arguments] { return write_logprobs(*arguments); }; });
}

}  // namespace accord::cli
