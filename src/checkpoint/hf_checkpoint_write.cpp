#include <filesystem>
#include <utility>

#include "base/files.hpp"
#include "checkpoint/hf_checkpoint.hpp"

namespace accord::checkpoint {
namespace {

constexpr int64_t kMaxTokenizerFile = int64_t{1} << 30;
constexpr char kConfigFile[] = "config.json";
constexpr char kGenerationFile[] = "generation_config.json";

constexpr const char* kTokenizerFiles[] = {
    "tokenizer.json", "tokenizer_config.json", "special_tokens_map.json", "added_tokens.json", "vocab.json",
    "merges.txt",     "tokenizer.model",       "chat_template.jinja",     "chat_template.json"};

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

Status copy_if_present(const std::string& from, const std::string& to, const char* name) {
  if (!exists(from + "/" + name)) {
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string content, read_file(from + "/" + name, kMaxTokenizerFile));
  return write_file_atomic(to + "/" + name, content);
}

}  // namespace

std::vector<std::string> tokenizer_file_names() {
  return {std::begin(kTokenizerFiles), std::end(kTokenizerFiles)};
}

Status copy_tokenizer_files(const std::string& from, const std::string& to) {
  for (const char* name : kTokenizerFiles) {
    ACCORD_RETURN_IF_ERROR(copy_if_present(from, to, name));
  }
  return absl::OkStatus();
}

Status write_hf_directory(const std::string& dir, std::string_view config_json,
                          std::string_view generation_config_json, const std::vector<TensorSpec>& tensors,
                          const TensorProducer& produce, const HfWriteOptions& options) {
  if (exists(dir + "/" + kConfigFile)) {
    return usage_error("{}: already holds a {}; choose another directory", dir, kConfigFile);
  }
  if (!options.tokenizer_dir.empty() && !std::filesystem::is_directory(options.tokenizer_dir)) {
    return usage_error("{}: is not a directory with tokenizer files", options.tokenizer_dir);
  }
  ACCORD_RETURN_IF_ERROR(write_sharded(dir, tensors, produce, options.max_shard_bytes));
  if (!options.tokenizer_dir.empty()) {
    ACCORD_RETURN_IF_ERROR(copy_tokenizer_files(options.tokenizer_dir, dir));
  }
  ACCORD_RETURN_IF_ERROR(write_file_atomic(dir + "/" + kGenerationFile, generation_config_json));
  return write_file_atomic(dir + "/" + kConfigFile, config_json);
}

Dtype plain_dtype(const ParamSpec& spec) {
  return spec.role == ParamRole::kRouterBias ? Dtype::kF32 : Dtype::kBF16;
}

StatusOr<std::string> config_json_to_write(const HfConfig& config, const std::string& path) {
  if (config.config_json.empty()) {
    return make_config_json(config.model);
  }
  return normalized_config_json(config.config_json, path);
}

std::string generation_config_json_to_write(const HfConfig& config) {
  return config.generation_config_json.empty() ? make_generation_config_json(config.model)
                                               : config.generation_config_json;
}

}  // namespace accord::checkpoint
