#include "controller/conversion_state.hpp"

#include <algorithm>
#include <filesystem>

#include "base/files.hpp"
#include "base/hash.hpp"
#include "base/mapped_memory.hpp"
#include "base/strict_json.hpp"

namespace accord::controller {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kSample = int64_t{4} << 10;
constexpr int64_t kStride = int64_t{16} << 20;
constexpr int64_t kTail = int64_t{64} << 10;
constexpr size_t kPart = size_t{16} << 20;

void sample(const checkpoint::TensorInfo& tensor, Hasher& hasher) {
  for (int64_t at = 0; at < tensor.bytes; at += kStride) {
    hasher.update(tensor.data + at, static_cast<size_t>(std::min(kSample, tensor.bytes - at)));
  }
}

}  // namespace

std::string to_json(const ConversionState& state) {
  Json json = {{"version", kVersion}, {"source", state.source}, {"plan", state.plan}};
  json["shards"] = Json::object();
  for (const auto& [file, shard] : state.shards) {
    json["shards"][file] = {{"bytes", shard.bytes}, {"digest", shard.digest}};
  }
  return json.dump(1) + "\n";
}

StatusOr<ConversionState> parse_conversion_state(std::string_view text, const std::string& path) {
  const auto bad = [&](std::string_view what) {
    return data_error("{}: {}; remove the directory and convert again", path, what);
  };
  const StatusOr<Json> parsed = parse_json(text);
  if (!parsed.ok()) {
    return bad(message_of(parsed.status()));
  }
  const Json& json = *parsed;
  const auto is_text = [](const Json& object, const char* key) {
    return object.is_object() && object.contains(key) && object.at(key).is_string();
  };
  if (!json.is_object() || !json.contains("version") || json.at("version") != kVersion) {
    return bad("is not the state of a conversion by this version");
  }
  if (!is_text(json, "source") || !is_text(json, "plan") || !json.contains("shards") ||
      !json.at("shards").is_object()) {
    return bad("must have source, plan and shards");
  }
  ConversionState state;
  state.source = json.at("source").get<std::string>();
  state.plan = json.at("plan").get<std::string>();
  for (const auto& [file, shard] : json.at("shards").items()) {
    if (!is_text(shard, "digest") || !shard.contains("bytes") || !shard.at("bytes").is_number_integer()) {
      return bad(fmt::format("shard '{}' must have bytes and digest", printable(file)));
    }
    state.shards[file] = {shard.at("bytes").get<int64_t>(), shard.at("digest").get<std::string>()};
  }
  return state;
}

std::string source_digest(const checkpoint::HfCheckpoint& source) {
  Hasher hasher;
  hasher.update(source.hf_config().config_json);
  hasher.update(source.hf_config().generation_config_json);
  for (const checkpoint::SafetensorsFile& file : source.files()) {
    std::error_code ignored;
    const auto time = std::filesystem::last_write_time(file.path(), ignored).time_since_epoch().count();
    hasher.update(fmt::format("\n{} {} {}", std::filesystem::path(file.path()).filename().string(),
                              std::filesystem::file_size(file.path(), ignored), time));
    const std::byte* begin = file.tensors().empty() ? nullptr : file.tensors().front().data;
    for (const checkpoint::TensorInfo& tensor : file.tensors()) {
      hasher.update(fmt::format("\n{} {} {} {}", tensor.name, checkpoint::dtype_name(tensor.dtype),
                                checkpoint::shape_text(tensor.shape), tensor.data - begin));
      sample(tensor, hasher);
    }
    if (begin != nullptr) {
      const std::byte* end = file.tensors().back().data + file.tensors().back().bytes;
      const auto tail = std::min<std::ptrdiff_t>(kTail, end - begin);
      hasher.update(end - tail, static_cast<size_t>(tail));
    }
  }
  source.release_all();
  return hasher.hex();
}

StatusOr<FinishedShard> digest_of_file(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  Hasher hasher;
  for (size_t at = 0; at < file.size(); at += kPart) {
    const size_t size = std::min(kPart, file.size() - at);
    hasher.update(file.data() + at, size);
    release_mapped(file.data() + at, size);
  }
  return FinishedShard{static_cast<int64_t>(file.size()), hasher.hex()};
}

}  // namespace accord::controller
