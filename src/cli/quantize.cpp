// accord quantize: every tensor of a safetensors file under one format of docs/contract.md.
#include <cstring>
#include <filesystem>
#include <memory>
#include <string>
#include <vector>

#include "base/log.hpp"
#include "checkpoint/safetensors.hpp"
#include "cli/commands.hpp"
#include "cli/quantize_cuda.hpp"
#include "device/buffer.hpp"
#include "device/device.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "telemetry/progress.hpp"

namespace accord::cli {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorInfo;
using checkpoint::TensorSpec;

struct Arguments {
  std::string in;
  std::string out;
  std::string format;
  std::string axis;
  std::string element;
  std::string scope;
  std::string layout;
  std::string four_over_six;
  int range = 0;  // 0: not given
  std::string device;
};

// What the arguments mean, after validation.
struct Job {
  bool mxfp8 = true;
  formats::Axis axis = formats::Axis::kRow;
  formats::Element element = formats::Element::kE4M3;
  formats::Nvfp4Options nvfp4;
  checkpoint::Metadata metadata;
  Device device;
};

Status refuse(const std::string& value, const char* option, const char* format) {
  if (!value.empty()) {
    return usage_error("{} does not go with --format {}", option, format);
  }
  return absl::OkStatus();
}

StatusOr<Job> mxfp8_job(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(refuse(arguments.scope, "--scope", "mxfp8"));
  ACCORD_RETURN_IF_ERROR(refuse(arguments.layout, "--layout", "mxfp8"));
  ACCORD_RETURN_IF_ERROR(refuse(arguments.four_over_six, "--four-over-six", "mxfp8"));
  if (arguments.range != 0) {
    return usage_error("--range does not go with --format mxfp8");
  }
  Job job;
  job.axis = arguments.axis == "col" ? formats::Axis::kCol : formats::Axis::kRow;
  job.element = arguments.element == "e5m2" ? formats::Element::kE5M2 : formats::Element::kE4M3;
  job.metadata = {{"format", "mxfp8"},
                  {"axis", job.axis == formats::Axis::kRow ? "row" : "col"},
                  {"element", job.element == formats::Element::kE4M3 ? "e4m3" : "e5m2"}};
  return job;
}

StatusOr<Job> nvfp4_job(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(refuse(arguments.axis, "--axis", "nvfp4"));
  ACCORD_RETURN_IF_ERROR(refuse(arguments.element, "--element", "nvfp4"));
  if (arguments.range != 0 && arguments.four_over_six.empty()) {
    return usage_error("--range goes with --four-over-six only; without it the range is 448");
  }
  Job job;
  job.mxfp8 = false;
  formats::Nvfp4Options& options = job.nvfp4;
  options.scope = arguments.scope == "row" ? formats::Nvfp4Scope::kToken : formats::Nvfp4Scope::kTensor;
  options.layout = arguments.layout == "16x16" ? formats::Nvfp4Layout::k16x16 : formats::Nvfp4Layout::k1x16;
  options.range = arguments.range == 0 ? 448 : arguments.range;
  if (!arguments.four_over_six.empty()) {
    options.four_over_six =
        arguments.four_over_six == "mse" ? formats::FourOverSix::kMse : formats::FourOverSix::kMae;
  }
  if (const Status status = formats::check_nvfp4_shape(0, 0, options); !status.ok()) {
    return usage_error("{}", message_of(status));
  }
  job.metadata = {{"format", "nvfp4"},
                  {"scope", options.scope == formats::Nvfp4Scope::kToken ? "row" : "tensor"},
                  {"layout", options.layout == formats::Nvfp4Layout::k16x16 ? "16x16" : "1x16"},
                  {"four_over_six", arguments.four_over_six.empty() ? "none" : arguments.four_over_six},
                  {"range", std::to_string(options.range)}};
  return job;
}

StatusOr<Job> make_job(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const DeviceId id, parse_device(arguments.device));
  ACCORD_ASSIGN_OR_RETURN(Job job, arguments.format == "mxfp8" ? mxfp8_job(arguments) : nvfp4_job(arguments));
  ACCORD_ASSIGN_OR_RETURN(job.device, Device::open(id));
  return job;
}

Status check_tensor(const Job& job, const TensorInfo& tensor) {
  if (tensor.dtype != Dtype::kF32 && tensor.dtype != Dtype::kBF16) {
    return data_error("dtype {}: only F32 and BF16 are quantized; remove the tensor or convert it",
                      checkpoint::dtype_name(tensor.dtype));
  }
  if (tensor.shape.size() != 2) {
    return data_error("shape {}: only matrices are quantized; remove the tensor or reshape it",
                      checkpoint::shape_text(tensor.shape));
  }
  if (tensor.numel() == 0) {
    return data_error("shape {} holds no element; remove the tensor", checkpoint::shape_text(tensor.shape));
  }
  return job.mxfp8 ? formats::check_mxfp8_shape(tensor.shape[0], tensor.shape[1], job.axis)
                   : formats::check_nvfp4_shape(tensor.shape[0], tensor.shape[1], job.nvfp4);
}

// The tensors that come out of one input tensor: data, scale, amax (NVFP4) and dequant, in this order.
std::vector<TensorSpec> outputs_of(const Job& job, const TensorInfo& tensor) {
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  const std::string& name = tensor.name;
  if (job.mxfp8) {
    const bool row = job.axis == formats::Axis::kRow;
    std::vector<int64_t> scale_shape = row ? std::vector<int64_t>{rows, cols / formats::kMxfp8Block}
                                           : std::vector<int64_t>{rows / formats::kMxfp8Block, cols};
    return {{name + ".data", Dtype::kU8, {rows, cols}},
            {name + ".scale", Dtype::kU8, std::move(scale_shape)},
            {name + ".dequant", Dtype::kF32, {rows, cols}}};
  }
  const int64_t scopes = job.nvfp4.scope == formats::Nvfp4Scope::kToken ? rows : 1;
  return {{name + ".data", Dtype::kU8, {rows, cols / 2}},
          {name + ".scale", Dtype::kU8, {rows, cols / formats::kNvfp4Block}},
          {name + ".amax", Dtype::kF32, {scopes}},
          {name + ".dequant", Dtype::kF32, {rows, cols}}};
}

Status quantize_matrix(const Job& job, MatrixView x, uint8_t* data, uint8_t* scale, float* amax,
                       formats::QuantHealth& health) {
  if constexpr (kBuiltWithCuda) {
    if (job.device.is_cuda()) {
      return job.mxfp8 ? quantize_mxfp8_on(job.device, x, job.axis, job.element, data, scale, health)
                       : quantize_nvfp4_on(job.device, x, job.nvfp4, {data, scale, amax}, health);
    }
  }
  if (!job.mxfp8) {
    formats::quantize_nvfp4(x, job.nvfp4, {data, scale, amax}, nullptr, &health);
  } else if (job.axis == formats::Axis::kRow) {
    formats::quantize_mxfp8_rows(x, data, scale, job.element, &health);
  } else {
    formats::quantize_mxfp8_cols(x, data, scale, job.element, &health);
  }
  return absl::OkStatus();
}

Status quantize_tensor(const Job& job, const TensorInfo& tensor, SafetensorsWriter& writer,
                       formats::QuantHealth& health) {
  const std::vector<TensorSpec> specs = outputs_of(job, tensor);
  std::vector<Buffer> buffers;
  std::vector<size_t> sizes;
  for (const TensorSpec& spec : specs) {
    ACCORD_ASSIGN_OR_RETURN(const int64_t bytes, checkpoint::checked_bytes(spec.dtype, spec.shape));
    sizes.push_back(static_cast<size_t>(bytes));
    buffers.emplace_back(sizes.back());
  }
  Buffer input(static_cast<size_t>(tensor.bytes));  // the file may hold it unaligned
  if (tensor.bytes > 0) {
    std::memcpy(input.data(), tensor.data, static_cast<size_t>(tensor.bytes));
  }
  const int64_t rows = tensor.shape[0];
  const int64_t cols = tensor.shape[1];
  const MatrixView x{input.data(), tensor.dtype, rows, cols, cols};
  auto* data = buffers[0].as<uint8_t>();
  auto* scale = buffers[1].as<uint8_t>();
  auto* dequant = buffers.back().as<float>();
  auto* amax = job.mxfp8 ? nullptr : buffers[2].as<float>();
  ACCORD_RETURN_IF_ERROR(quantize_matrix(job, x, data, scale, amax, health));
  if (job.mxfp8) {
    formats::dequantize_mxfp8(data, scale, rows, cols, job.axis, job.element, dequant);
  } else {
    formats::dequantize_nvfp4(data, scale, amax, rows, cols, job.nvfp4.scope, job.nvfp4.range, dequant);
  }
  for (size_t i = 0; i < specs.size(); ++i) {
    ACCORD_RETURN_IF_ERROR(writer.append(specs[i].name, buffers[i].data(), sizes[i]));
  }
  return absl::OkStatus();
}

Status quantize(const Arguments& arguments) {
  ACCORD_ASSIGN_OR_RETURN(const Job job, make_job(arguments));
  ACCORD_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(arguments.in));
  std::error_code absent;
  if (std::filesystem::equivalent(arguments.in, arguments.out, absent)) {
    return usage_error("{}: is the input as well; name another file for the output", arguments.out);
  }
  std::vector<TensorSpec> specs;
  for (const TensorInfo& tensor : file.tensors()) {
    if (const Status status = check_tensor(job, tensor); !status.ok()) {
      return annotate(status, fmt::format("{}: tensor {}", arguments.in, tensor.name));
    }
    const std::vector<TensorSpec> outputs = outputs_of(job, tensor);
    specs.insert(specs.end(), outputs.begin(), outputs.end());
  }
  ACCORD_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::create(arguments.out, std::move(specs), job.metadata));
  formats::QuantHealth health;
  {
    telemetry::ProgressBar progress("quantize", static_cast<int64_t>(file.tensors().size()));
    for (const TensorInfo& tensor : file.tensors()) {
      if (const Status status = quantize_tensor(job, tensor, writer, health); !status.ok()) {
        return annotate(status, fmt::format("tensor {}", tensor.name));
      }
      progress.advance();
    }
  }
  ACCORD_RETURN_IF_ERROR(writer.commit());
  log::info("{}: {} tensors, {} elements, amax {}, saturated {}, flushed to zero {}, NaN {}", arguments.out,
            file.tensors().size(), health.elements, health.amax, health.saturated, health.flushed,
            health.nan);
  return absl::OkStatus();
}

}  // namespace

void add_quantize(CLI::App& app, Action& action) {
  CLI::App* command = app.add_subcommand(
      "quantize", "Quantize every tensor of a safetensors file, and write the decoded values");
  auto arguments = std::make_shared<Arguments>();
  Arguments& a = *arguments;
  command->add_option("in", a.in, "A safetensors file of fp32 or bf16 matrices")->required();
  command->add_option("out", a.out, "Gets NAME.data, NAME.scale, NAME.amax (nvfp4) and NAME.dequant")
      ->required();
  command->add_option("--format", a.format, "mxfp8 or nvfp4")
      ->required()
      ->check(CLI::IsMember({"mxfp8", "nvfp4"}));
  command
      ->add_option("--axis", a.axis,
                   "mxfp8: blocks of 32 along the last axis (row, default) or the first (col)")
      ->check(CLI::IsMember({"row", "col"}));
  command->add_option("--element", a.element, "mxfp8: e4m3 (default) or e5m2")
      ->check(CLI::IsMember({"e4m3", "e5m2"}));
  command->add_option("--scope", a.scope, "nvfp4: one outer scale for the tensor (default) or per row")
      ->check(CLI::IsMember({"tensor", "row"}));
  command->add_option("--layout", a.layout, "nvfp4: 1x16 (default) or 16x16 (scope tensor only)")
      ->check(CLI::IsMember({"1x16", "16x16"}));
  command
      ->add_option("--four-over-six", a.four_over_six,
                   "nvfp4: choose each block's scale by squared (mse) or absolute (mae) error")
      ->check(CLI::IsMember({"mse", "mae"}));
  command->add_option("--range", a.range, "nvfp4 with --four-over-six: 448 (default) or 256")
      ->check(CLI::IsMember({448, 256}));
  command->add_option("--device", a.device, "cpu or cuda:N; never changes a byte")->default_val("cpu");
  command->callback([arguments, &action] { action = [arguments] { return quantize(*arguments); }; });
}

}  // namespace accord::cli
