#include "controller/step_batch.hpp"

#include <absl/strings/numbers.h>

#include <algorithm>
#include <cmath>
#include <cstring>
#include <filesystem>
#include <map>
#include <string_view>

#include "checkpoint/safetensors.hpp"

namespace accord::controller {
namespace {

using checkpoint::SafetensorsFile;
using checkpoint::TensorInfo;

constexpr std::string_view kRecorded = "batch:";
constexpr int64_t kMaxTokens = int64_t{1} << 30;
constexpr int64_t kMaxExperts = 65536;

// Tensors whose values live here until they are written.
class Columns {
 public:
  template <class T>
  std::vector<T>& add(const std::string& name, Dtype dtype, const std::vector<int64_t>& shape, T fill) {
    size_t count = 1;
    for (const int64_t extent : shape) {
      count *= static_cast<size_t>(extent);
    }
    auto values = std::make_unique<Values<T>>(count, fill);
    checkpoint::TensorData tensor;
    tensor.name = name;
    tensor.dtype = dtype;
    tensor.shape = shape;
    tensor.data = values->values.data();
    tensors_.push_back(std::move(tensor));
    std::vector<T>& out = values->values;
    storage_.push_back(std::move(values));
    return out;
  }
  const std::vector<checkpoint::TensorData>& tensors() const { return tensors_; }

 private:
  struct Storage {
    virtual ~Storage() = default;
  };
  template <class T>
  struct Values : Storage {
    Values(size_t count, T fill) : values(count, fill) {}
    std::vector<T> values;
  };
  std::vector<std::unique_ptr<Storage>> storage_;
  std::vector<checkpoint::TensorData> tensors_;
};

template <class T>
StatusOr<std::vector<T>> read(const SafetensorsFile& file, const char* name, Dtype dtype,
                              const std::vector<int64_t>& shape) {
  ACCORD_ASSIGN_OR_RETURN(const TensorInfo* info, file.require(name, dtype, shape));
  std::vector<T> out(static_cast<size_t>(info->numel()));
  if (!out.empty()) {
    std::memcpy(out.data(), info->data, static_cast<size_t>(info->bytes));  // may be unaligned
  }
  return out;
}

StatusOr<std::string> text_of(const SafetensorsFile& file, const char* key) {
  const auto found = file.metadata().find(key);
  if (found == file.metadata().end()) {
    return data_error("{}: its metadata has no '{}'; is it a file that debug.dump_batches wrote?",
                      file.path(), key);
  }
  return found->second;
}

template <class T>
Status number_of(const SafetensorsFile& file, const char* key, T& out) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, text_of(file, key));
  bool good = false;
  if constexpr (std::is_same_v<T, double>) {
    good = absl::SimpleAtod(text, &out) && std::isfinite(out);
  } else {
    good = absl::SimpleAtoi(text, &out);
  }
  if (!good) {
    return data_error("{}: '{}' in its metadata is '{}', not a number", file.path(), key, text);
  }
  return absl::OkStatus();
}

Status read_metadata(const SafetensorsFile& file, StepBatch& batch) {
  ACCORD_RETURN_IF_ERROR(number_of(file, "step", batch.step));
  ACCORD_RETURN_IF_ERROR(number_of(file, "weight_version", batch.weight_version));
  ACCORD_RETURN_IF_ERROR(number_of(file, "seed", batch.seed));
  ACCORD_RETURN_IF_ERROR(number_of(file, "samples_per_prompt", batch.samples_per_prompt));
  ACCORD_RETURN_IF_ERROR(number_of(file, "temperature", batch.temperature));
  ACCORD_ASSIGN_OR_RETURN(batch.plan_digest, text_of(file, "plan"));
  ACCORD_ASSIGN_OR_RETURN(batch.manifest_digest, text_of(file, "manifest"));
  ACCORD_ASSIGN_OR_RETURN(batch.build, text_of(file, "build"));
  return absl::OkStatus();
}

Status write_routing(const std::string& path, const StepBatch& batch, int64_t length, Columns& columns) {
  const RoutingShape& shape = batch.routing;
  const auto width = static_cast<size_t>(shape.layers * shape.experts_per_token);
  auto& ids = columns.add<int32_t>(
      "routing", Dtype::kI32,
      {static_cast<int64_t>(batch.samples.size()), length, shape.layers, shape.experts_per_token}, -1);
  for (size_t b = 0; b < batch.samples.size(); ++b) {
    const Sample& sample = batch.samples[b].sample;
    const size_t count = (sample.tokens.size() - 1) * width;
    if (sample.routing.bytes.size() != count * expert_id_bytes(shape.num_experts)) {
      return internal_error("{}: the routing of sample {} has {} bytes for {} ids", path, b,
                            sample.routing.bytes.size(), count);
    }
    load_expert_ids(sample.routing, shape.num_experts, 0,
                    std::span(ids).subspan(b * static_cast<size_t>(length) * width, count));
  }
  return absl::OkStatus();
}

// After the samples' tokens are known.
Status read_routing(const SafetensorsFile& file, int64_t length, StepBatch& batch) {
  if (file.find("routing") == nullptr) {
    return absl::OkStatus();
  }
  const auto count = static_cast<int64_t>(batch.samples.size());
  ACCORD_ASSIGN_OR_RETURN(const TensorInfo* info,
                          file.require("routing", Dtype::kI32, {count, length, -1, -1}));
  RoutingShape& shape = batch.routing;
  shape.layers = info->shape[2];
  shape.experts_per_token = info->shape[3];
  ACCORD_RETURN_IF_ERROR(number_of(file, "num_experts", shape.num_experts));
  if (shape.layers < 1 || shape.experts_per_token < 1 || shape.num_experts < shape.experts_per_token ||
      shape.num_experts > kMaxExperts) {
    return data_error("{}: routing has shape {} with {} experts", file.path(),
                      checkpoint::shape_text(info->shape), shape.num_experts);
  }
  ACCORD_ASSIGN_OR_RETURN(const auto ids, read<int32_t>(file, "routing", Dtype::kI32, info->shape));
  const auto width = static_cast<size_t>(shape.layers * shape.experts_per_token);
  for (size_t b = 0; b < batch.samples.size(); ++b) {
    Sample& sample = batch.samples[b].sample;
    const auto mine =
        std::span(ids).subspan(b * static_cast<size_t>(length) * width, (sample.tokens.size() - 1) * width);
    for (const int32_t id : mine) {
      if (id < 0 || id >= shape.num_experts) {
        return data_error("{}: routing of sample {} names expert {}, must be 0 to {}", file.path(), b, id,
                          shape.num_experts - 1);
      }
    }
    sample.routing = pack_expert_ids(mine, shape.num_experts);
  }
  return absl::OkStatus();
}

}  // namespace

std::string batch_file_name(uint64_t step) { return fmt::format("step_{:06}.safetensors", step); }

std::string batch_path(const std::string& source, uint64_t step) {
  std::error_code none;
  return std::filesystem::is_directory(source, none) ? source + "/" + batch_file_name(step) : source;
}

Status write_step_batch(const std::string& path, const StepBatch& batch) {
  if (batch.samples.empty()) {
    return internal_error("{}: a batch without samples", path);
  }
  const auto count = static_cast<int64_t>(batch.samples.size());
  size_t longest = 0;
  for (const BatchSample& s : batch.samples) {
    longest = std::max(longest, s.sample.tokens.size());
  }
  const auto length = static_cast<int64_t>(longest);
  Columns columns;
  auto& ids = columns.add<int32_t>("input_ids", Dtype::kI32, {count, length}, 0);
  auto& prompt = columns.add<int32_t>("prompt_len", Dtype::kI32, {count}, 0);
  auto& total = columns.add<int32_t>("total_len", Dtype::kI32, {count}, 0);
  auto& old = columns.add<float>("old_logprobs", Dtype::kF32, {count, length - 1}, 0.0F);
  auto& sampling = columns.add<float>("sampling_logprobs", Dtype::kF32, {count, length - 1}, 0.0F);
  auto& rewards = columns.add<double>("rewards", Dtype::kF64, {count}, 0.0);
  auto& penalties = columns.add<double>("penalties", Dtype::kF64, {count}, 0.0);
  auto& advantages = columns.add<double>("advantages", Dtype::kF64, {count}, 0.0);
  auto& trained = columns.add<uint8_t>("trained", Dtype::kU8, {count}, 0);
  auto& truncated = columns.add<uint8_t>("truncated", Dtype::kU8, {count}, 0);
  auto& prompt_id = columns.add<int64_t>("prompt_id", Dtype::kI64, {count}, 0);
  auto& sample_index = columns.add<int32_t>("sample_index", Dtype::kI32, {count}, 0);
  for (size_t b = 0; b < batch.samples.size(); ++b) {
    const BatchSample& s = batch.samples[b];
    const Sample& sample = s.sample;
    const size_t first = b * (longest - 1) + static_cast<size_t>(sample.prompt_length) - 1;
    std::copy(sample.tokens.begin(), sample.tokens.end(), ids.begin() + static_cast<int64_t>(b * longest));
    std::copy(sample.logprobs.begin(), sample.logprobs.end(), old.begin() + static_cast<int64_t>(first));
    std::copy(sample.sampling_logprobs.begin(), sample.sampling_logprobs.end(),
              sampling.begin() + static_cast<int64_t>(first));
    prompt[b] = sample.prompt_length;
    total[b] = static_cast<int32_t>(sample.tokens.size());
    rewards[b] = s.reward;
    penalties[b] = s.penalty;
    advantages[b] = s.advantage;
    trained[b] = s.trained ? 1 : 0;
    truncated[b] = sample.finish == FinishReason::kLength ? 1 : 0;
    prompt_id[b] = static_cast<int64_t>(sample.key.prompt_id);
    sample_index[b] = static_cast<int32_t>(sample.key.sample_index);
  }
  std::map<std::string, std::string> metadata{
      {"step", std::to_string(batch.step)},
      {"weight_version", std::to_string(batch.weight_version)},
      {"seed", std::to_string(batch.seed)},
      {"samples_per_prompt", std::to_string(batch.samples_per_prompt)},
      {"temperature", fmt::format("{}", batch.temperature)},
      {"plan", batch.plan_digest},
      {"manifest", batch.manifest_digest},
      {"build", batch.build}};
  if (batch.routing.num_experts > 0) {
    ACCORD_RETURN_IF_ERROR(write_routing(path, batch, length, columns));
    metadata["num_experts"] = std::to_string(batch.routing.num_experts);
  }
  return checkpoint::write_safetensors(path, columns.tensors(), metadata);
}

StatusOr<StepBatch> read_step_batch(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const SafetensorsFile file, SafetensorsFile::open(path));
  StepBatch batch;
  ACCORD_RETURN_IF_ERROR(read_metadata(file, batch));
  ACCORD_ASSIGN_OR_RETURN(const TensorInfo* info, file.require("input_ids", Dtype::kI32, {-1, -1}));
  const int64_t count = info->shape[0];
  const int64_t length = info->shape[1];
  if (count < 1 || length < 2 || length > kMaxTokens) {
    return data_error("{}: input_ids has shape {}, must be [batch, length] with at least 1 and 2", path,
                      checkpoint::shape_text(info->shape));
  }
  if (batch.samples_per_prompt < 1 || count % batch.samples_per_prompt != 0) {
    return data_error("{}: {} samples are no whole number of groups of {}", path, count,
                      batch.samples_per_prompt);
  }
  ACCORD_ASSIGN_OR_RETURN(const auto ids, read<int32_t>(file, "input_ids", Dtype::kI32, {count, length}));
  ACCORD_ASSIGN_OR_RETURN(const auto prompt, read<int32_t>(file, "prompt_len", Dtype::kI32, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto total, read<int32_t>(file, "total_len", Dtype::kI32, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto old,
                          read<float>(file, "old_logprobs", Dtype::kF32, {count, length - 1}));
  ACCORD_ASSIGN_OR_RETURN(const auto sampling,
                          read<float>(file, "sampling_logprobs", Dtype::kF32, {count, length - 1}));
  ACCORD_ASSIGN_OR_RETURN(const auto rewards, read<double>(file, "rewards", Dtype::kF64, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto penalties, read<double>(file, "penalties", Dtype::kF64, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto advantages, read<double>(file, "advantages", Dtype::kF64, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto trained, read<uint8_t>(file, "trained", Dtype::kU8, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto truncated, read<uint8_t>(file, "truncated", Dtype::kU8, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto prompt_id, read<int64_t>(file, "prompt_id", Dtype::kI64, {count}));
  ACCORD_ASSIGN_OR_RETURN(const auto sample_index, read<int32_t>(file, "sample_index", Dtype::kI32, {count}));
  for (int64_t b = 0; b < count; ++b) {
    const auto i = static_cast<size_t>(b);
    if (prompt[i] < 1 || prompt[i] >= total[i] || total[i] > length) {
      return data_error("{}: sample {} has prompt_len {} and total_len {}; 1 <= prompt_len < total_len <= {}",
                        path, b, prompt[i], total[i], length);
    }
    const bool no_reward = std::isnan(rewards[i]) && trained[i] == 0;
    if (!(std::isfinite(rewards[i]) || no_reward) || !std::isfinite(penalties[i]) ||
        !std::isfinite(advantages[i])) {
      return data_error("{}: sample {} has reward {}, penalty {} and advantage {}; all must be finite", path,
                        b, rewards[i], penalties[i], advantages[i]);
    }
    BatchSample& out = batch.samples.emplace_back();
    out.reward = rewards[i];
    out.penalty = penalties[i];
    out.advantage = advantages[i];
    out.trained = trained[i] != 0;
    Sample& sample = out.sample;
    sample.key = {batch.step, static_cast<uint64_t>(prompt_id[i]), static_cast<uint32_t>(sample_index[i])};
    sample.weight_version = batch.weight_version;
    sample.prompt_length = prompt[i];
    sample.finish = truncated[i] != 0 ? FinishReason::kLength : FinishReason::kStop;
    const auto row = [&](const auto& matrix, int64_t width, int64_t begin, int64_t end) {
      const auto first = matrix.begin() + b * width;
      return std::vector(first + begin, first + end);
    };
    sample.tokens = row(ids, length, 0, total[i]);
    sample.logprobs = row(old, length - 1, prompt[i] - 1, total[i] - 1);
    sample.sampling_logprobs = row(sampling, length - 1, prompt[i] - 1, total[i] - 1);
  }
  ACCORD_RETURN_IF_ERROR(read_routing(file, length, batch));
  return batch;
}

std::string recorded_holder(const std::string& batch_path) { return std::string(kRecorded) + batch_path; }

std::string recorded_path(const std::string& holder) {
  return holder.starts_with(kRecorded) ? holder.substr(kRecorded.size()) : "";
}

FetchSamples fetch_recorded(FetchSamples next) {
  return [next = std::move(next)](const std::string& holder,
                                  std::span<const SampleKey> keys) -> StatusOr<std::vector<Sample>> {
    const std::string path = recorded_path(holder);
    if (path.empty()) {
      return next ? next(holder, keys)
                  : StatusOr<std::vector<Sample>>(internal_error("samples of {} without workers", holder));
    }
    ACCORD_ASSIGN_OR_RETURN(StepBatch batch, read_step_batch(path));
    std::map<SampleKey, Sample*> by_key;
    for (BatchSample& sample : batch.samples) {
      by_key[sample.sample.key] = &sample.sample;
    }
    std::vector<Sample> samples;
    for (const SampleKey& key : keys) {
      const auto found = by_key.find(key);
      if (found == by_key.end()) {
        return data_error("{}: holds no sample {} of prompt {} of step {}", path, key.sample_index,
                          key.prompt_id, key.step);
      }
      samples.push_back(std::move(*found->second));
      by_key.erase(found);
    }
    return samples;
  };
}

TrainJob recorded_train_job(const StepBatch& batch, const std::string& path, Millis timeout) {
  TrainJob job;
  job.step = batch.step;
  job.weight_version = batch.weight_version;
  job.timeout = timeout;
  for (const BatchSample& sample : batch.samples) {
    if (sample.trained) {
      job.samples.push_back({sample.sample.key, recorded_holder(path),
                             static_cast<int32_t>(sample.sample.tokens.size()),
                             sample.sample.response_length(), sample.advantage, 0});
    }
  }
  return job;
}

}  // namespace accord::controller
