#include "controller/training_state.hpp"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <map>
#include <optional>
#include <regex>
#include <vector>

#include "checkpoint/hf_checkpoint.hpp"
#include "checkpoint/safetensors.hpp"

namespace accord::controller {
namespace {

constexpr char kOptimizerStepsKey[] = "optimizer_steps";

// The files of one complete set.
StatusOr<std::vector<std::string>> state_files(const std::string& directory) {
  static const std::regex pattern(R"(training_state-(\d{5})-of-(\d{5})\.safetensors)");
  std::vector<std::string> found;
  std::string count;
  std::error_code error;
  for (std::filesystem::directory_iterator it(directory, error), end; !error && it != end;
       it.increment(error)) {
    const std::string name = it->path().filename();
    std::smatch match;
    if (!std::regex_match(name, match, pattern)) {
      continue;
    }
    if (!count.empty() && match[2] != count) {
      return data_error("{}: holds training states of {} and of {} ranks", directory, count, match[2].str());
    }
    count = match[2];
    found.push_back(name);
  }
  if (error) {
    return io_error("{}: {}", directory, error.message());
  }
  if (found.empty()) {
    return data_error("{}: holds no training_state-*.safetensors", directory);
  }
  std::sort(found.begin(), found.end());
  const int32_t size = std::stoi(count);
  for (int32_t rank = 0; rank < size; ++rank) {
    if (static_cast<size_t>(rank) >= found.size() ||
        found[static_cast<size_t>(rank)] != training_state_file(rank, size)) {
      return data_error("{}: {} is missing", directory, training_state_file(rank, size));
    }
  }
  return found;
}

StatusOr<int64_t> optimizer_steps_of(const checkpoint::SafetensorsFile& file) {
  const auto steps = file.metadata().find(kOptimizerStepsKey);
  int64_t count = 0;
  if (steps == file.metadata().end() || !absl::SimpleAtoi(steps->second, &count) || count < 0) {
    return data_error("{}: its metadata has no valid {}", file.path(), kOptimizerStepsKey);
  }
  return count;
}

}  // namespace

std::string training_state_file(int32_t rank, int32_t size) {
  return fmt::format("training_state-{:05}-of-{:05}.safetensors", rank + 1, size);
}

Status save_training_state(const std::string& directory, int32_t rank, int32_t size,
                           trainer::Trainer& trainer) {
  const std::vector<trainer::StateTensor> state = trainer.state();
  std::vector<checkpoint::TensorSpec> specs;
  for (const trainer::StateTensor& tensor : state) {
    specs.push_back({tensor.name, Dtype::kF32, tensor.shape});
  }
  ACCORD_ASSIGN_OR_RETURN(checkpoint::SafetensorsWriter writer,
                          checkpoint::SafetensorsWriter::create(
                              directory + "/" + training_state_file(rank, size), std::move(specs),
                              {{kOptimizerStepsKey, std::to_string(trainer.optimizer_steps())}}));
  std::vector<float> values;  // of one tensor at a time
  for (const trainer::StateTensor& tensor : state) {
    values.resize(static_cast<size_t>(tensor.numel));
    ACCORD_RETURN_IF_ERROR(tensor.read(values));
    ACCORD_RETURN_IF_ERROR(writer.append(tensor.name, std::span<const float>(values)));
  }
  return writer.commit();
}

Status load_training_state(const std::string& directory, trainer::Trainer& trainer) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> names, state_files(directory));
  std::vector<checkpoint::SafetensorsFile> files;
  std::map<std::string, size_t> holder;  // of each tensor
  std::optional<int64_t> steps;
  for (const std::string& name : names) {
    ACCORD_ASSIGN_OR_RETURN(checkpoint::SafetensorsFile file,
                            checkpoint::SafetensorsFile::open(directory + "/" + name));
    ACCORD_ASSIGN_OR_RETURN(const int64_t count, optimizer_steps_of(file));
    if (steps && *steps != count) {
      return data_error("{}: was written after {} optimizer steps, the files before it after {}", file.path(),
                        count, *steps);
    }
    steps = count;
    for (const checkpoint::TensorInfo& tensor : file.tensors()) {
      if (!holder.emplace(tensor.name, files.size()).second) {
        return data_error("{}: {} is in {} too", file.path(), tensor.name,
                          files[holder.at(tensor.name)].path());
      }
    }
    files.push_back(std::move(file));
  }
  const size_t expected = 3 * trainer.parameters().size();
  if (holder.size() != expected) {
    return data_error("{}: its training state has {} tensors, this model's has {}", directory, holder.size(),
                      expected);
  }
  const std::vector<trainer::StateTensor> state = trainer.state();
  for (const trainer::StateTensor& tensor : state) {
    const auto found = holder.find(tensor.name);
    if (found == holder.end()) {
      return data_error("{}: its training state lacks {}", directory, tensor.name);
    }
    ACCORD_RETURN_IF_ERROR(files[found->second].require(tensor.name, Dtype::kF32, tensor.shape).status());
  }
  std::vector<float> values;  // of one tensor at a time
  for (const trainer::StateTensor& tensor : state) {
    values.resize(static_cast<size_t>(tensor.numel));
    ACCORD_RETURN_IF_ERROR(files[holder.at(tensor.name)].read_f32(tensor.name, values));
    ACCORD_RETURN_IF_ERROR(tensor.write(values));
  }
  trainer.set_optimizer_steps(*steps);
  return absl::OkStatus();
}

Status save_hf_weights(const std::string& directory, const checkpoint::HfConfig& config,
                       const std::string& tokenizer_dir, trainer::Trainer& trainer, Communicator* group,
                       Deadline deadline) {
  std::vector<std::byte> bytes;
  std::vector<float> master;  // of one tensor at a time
  const auto provide = [&](const ParamSpec& spec) -> StatusOr<std::span<const std::byte>> {
    const Dtype dtype = checkpoint::plain_dtype(spec);
    bytes.resize(static_cast<size_t>(spec.numel() * size_of(dtype)));
    if (trainer.owns(spec.name)) {
      master.resize(static_cast<size_t>(spec.numel()));
      ACCORD_RETURN_IF_ERROR(trainer.read_master(spec.name, master));
      if (dtype == Dtype::kF32) {
        std::memcpy(bytes.data(), master.data(), bytes.size());
      } else {
        std::transform(master.begin(), master.end(), reinterpret_cast<BF16*>(bytes.data()), to_bf16);
      }
    }
    const int32_t owner = trainer.owner(spec.name);
    if (group != nullptr && owner != 0) {
      ACCORD_RETURN_IF_ERROR(
          group->broadcast(bytes.data(), static_cast<int64_t>(bytes.size()), owner, deadline));
    }
    return std::span<const std::byte>(bytes);
  };
  if (group == nullptr || group->rank() == 0) {
    std::vector<checkpoint::TensorSpec> tensors;
    for (const ParamSpec& spec : trainer.parameters()) {
      tensors.push_back({spec.name, checkpoint::plain_dtype(spec), spec.shape});
    }
    size_t next = 0;  // tensors are produced in the order given
    const auto produce = [&](const checkpoint::TensorSpec&, const checkpoint::ByteSink& sink) -> Status {
      ACCORD_ASSIGN_OR_RETURN(const auto values, provide(trainer.parameters()[next++]));
      return sink(values.data(), values.size());
    };
    ACCORD_ASSIGN_OR_RETURN(const std::string config_json,
                            checkpoint::normalized_config_json(config.config_json, directory));
    checkpoint::HfWriteOptions options;
    options.tokenizer_dir = tokenizer_dir;
    return checkpoint::write_hf_directory(directory, config_json,
                                          config.generation_config_json.empty()
                                              ? checkpoint::make_generation_config_json(config.model)
                                              : config.generation_config_json,
                                          tensors, produce, options);
  }
  for (const ParamSpec& spec : trainer.parameters()) {  // the order in which rank 0 asks
    ACCORD_RETURN_IF_ERROR(provide(spec).status());
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
