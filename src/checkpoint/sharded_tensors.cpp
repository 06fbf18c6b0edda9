#include "checkpoint/sharded_tensors.hpp"

#include <filesystem>
#include <set>
#include <utility>

#include "base/files.hpp"
#include "checkpoint/strict_json.hpp"

namespace accord::checkpoint {
namespace {

constexpr int64_t kMaxIndexBytes = 100'000'000;
constexpr std::string_view kSuffix = ".safetensors";

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(path, ignored);
}

bool is_plain_file_name(std::string_view name) {
  return name.size() > kSuffix.size() && name.substr(name.size() - kSuffix.size()) == kSuffix &&
         name.front() != '.' && name.find('/') == std::string_view::npos &&
         name.find('\0') == std::string_view::npos;
}

struct Shard {
  std::vector<TensorSpec> tensors;
  int64_t bytes = 0;
};

StatusOr<std::vector<Shard>> plan_shards(const std::vector<TensorSpec>& tensors, int64_t max_bytes) {
  std::vector<Shard> shards(1);
  for (const TensorSpec& tensor : tensors) {
    const StatusOr<int64_t> bytes = checked_bytes(tensor.dtype, tensor.shape);
    if (!bytes.ok()) {
      return annotate(bytes.status(), fmt::format("tensor '{}'", printable(tensor.name)));
    }
    if (!shards.back().tensors.empty() && *bytes > max_bytes - shards.back().bytes) {
      shards.emplace_back();
    }
    shards.back().tensors.push_back(tensor);
    shards.back().bytes += *bytes;
  }
  return shards;
}

Status write_shard(const std::string& path, const Shard& shard, const TensorProducer& produce) {
  ACCORD_ASSIGN_OR_RETURN(SafetensorsWriter writer,
                          SafetensorsWriter::create(path, shard.tensors, {{"format", "pt"}}));
  for (const TensorSpec& tensor : shard.tensors) {
    ACCORD_RETURN_IF_ERROR(produce(
        tensor, [&](const void* data, size_t size) { return writer.append(tensor.name, data, size); }));
  }
  return writer.commit();
}

}  // namespace

std::string shard_file_name(size_t number, size_t count) {
  return count == 1 ? kSingleFile : fmt::format("model-{:05}-of-{:05}.safetensors", number + 1, count);
}

std::string make_safetensors_index(const std::vector<std::vector<TensorSpec>>& tensors,
                                   const std::vector<std::string>& files) {
  Json index;
  int64_t total = 0;
  std::map<std::string, std::string> map;
  for (size_t i = 0; i < tensors.size(); ++i) {
    for (const TensorSpec& tensor : tensors[i]) {
      total += checked_bytes(tensor.dtype, tensor.shape).value_or(0);  // checked when the shards were planned
      map.emplace(tensor.name, files[i]);
    }
  }
  index["metadata"]["total_size"] = total;
  index["weight_map"] = map;
  return index.dump(2) + "\n";
}

StatusOr<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                     const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(text, path));
  if (!json.is_object() || !json.contains("weight_map") || !json.at("weight_map").is_object()) {
    return data_error("{}: must be an object with an object weight_map; download it again", path);
  }
  std::map<std::string, std::string> files;
  for (const auto& [name, file] : json.at("weight_map").items()) {
    if (!file.is_string() || !is_plain_file_name(file.get_ref<const std::string&>())) {
      return data_error("{}: tensor '{}' lies in {}, which is not the plain name of a .safetensors file",
                        path, printable(name), printable(file.dump()));
    }
    files.emplace(name, file.get<std::string>());
  }
  if (files.empty()) {
    return data_error("{}: weight_map is empty; download it again", path);
  }
  return files;
}

Status ShardedTensors::add_file(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(SafetensorsFile file, SafetensorsFile::open(path));
  files_.push_back(std::move(file));
  for (const TensorInfo& tensor : files_.back().tensors()) {
    const auto [place, added] = places_.emplace(tensor.name, Place{&tensor, files_.size() - 1});
    if (!added) {
      return data_error("{}: tensor '{}' lies in {} too; remove one of the two", path, printable(tensor.name),
                        files_[place->second.file].path());
    }
  }
  return absl::OkStatus();
}

StatusOr<ShardedTensors> ShardedTensors::open(const std::string& dir) {
  ShardedTensors result;
  result.dir_ = dir;
  const std::string single = dir + "/" + kSingleFile;
  const std::string index = dir + "/" + kIndexFile;
  if (exists(single) && exists(index)) {
    return data_error("{}: holds both {} and {}; remove the one that is not the model", dir, kSingleFile,
                      kIndexFile);
  }
  if (!exists(index)) {
    if (!exists(single)) {
      return io_error("{}: has neither {} nor {}; name a Hugging Face model directory", dir, kSingleFile,
                      kIndexFile);
    }
    ACCORD_RETURN_IF_ERROR(result.add_file(single));
    return result;
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(index, kMaxIndexBytes));
  ACCORD_ASSIGN_OR_RETURN(const auto weight_map, parse_safetensors_index(text, index));
  std::set<std::string> files;
  for (const auto& [name, file] : weight_map) {
    files.insert(file);
  }
  const auto path_of = [&](const std::string& file) { return fmt::format("{}/{}", dir, file); };
  for (const std::string& file : files) {
    ACCORD_RETURN_IF_ERROR(annotate(result.add_file(path_of(file)), index));
  }
  for (const auto& [name, file] : weight_map) {
    const auto place = result.places_.find(name);
    if (place == result.places_.end() || result.files_[place->second.file].path() != path_of(file)) {
      return data_error("{}: tensor '{}' is not in {}, where the index says it is; download both again",
                        index, printable(name), file);
    }
  }
  for (const auto& [name, place] : result.places_) {
    if (weight_map.find(name) == weight_map.end()) {
      return data_error("{}: tensor '{}' of {} is not in the index; download both again", index,
                        printable(name), result.files_[place.file].path());
    }
  }
  return result;
}

const TensorInfo* ShardedTensors::find(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? nullptr : found->second.tensor;
}

const std::string& ShardedTensors::file_of(std::string_view name) const {
  const auto found = places_.find(name);
  return found == places_.end() ? dir_ : files_[found->second.file].path();
}

std::vector<std::string> ShardedTensors::names() const {
  std::vector<std::string> names;
  for (const auto& [name, place] : places_) {
    names.push_back(name);
  }
  return names;
}

Status write_sharded(const std::string& dir, const std::vector<TensorSpec>& tensors,
                     const TensorProducer& produce, int64_t max_shard_bytes) {
  for (const char* name : {kSingleFile, kIndexFile}) {
    if (exists(dir + "/" + name)) {
      return usage_error("{}: already holds {}; choose another directory", dir, name);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Shard> shards, plan_shards(tensors, max_shard_bytes));
  ACCORD_RETURN_IF_ERROR(make_dirs(dir));
  std::vector<std::vector<TensorSpec>> specs;
  std::vector<std::string> files;
  for (size_t i = 0; i < shards.size(); ++i) {
    files.push_back(shard_file_name(i, shards.size()));
    specs.push_back(shards[i].tensors);
    ACCORD_RETURN_IF_ERROR(write_shard(dir + "/" + files.back(), shards[i], produce));
  }
  return shards.size() == 1 ? absl::OkStatus()
                            : write_file_atomic(dir + "/" + kIndexFile, make_safetensors_index(specs, files));
}

}  // namespace accord::checkpoint
