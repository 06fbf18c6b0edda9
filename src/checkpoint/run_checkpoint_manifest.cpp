#include <algorithm>
#include <filesystem>
#include <limits>

#include "base/files.hpp"
#include "base/hash.hpp"
#include "checkpoint/json_fields.hpp"
#include "checkpoint/manifest_io.hpp"

namespace accord::checkpoint {
namespace {

constexpr int64_t kVersion = 1;
constexpr int64_t kMaxManifestBytes = 64 << 20;
constexpr size_t kDigestDigits = 32;

bool is_digest(const Json& value) {
  if (!value.is_string() || value.get_ref<const std::string&>().size() != kDigestDigits) {
    return false;
  }
  const auto& text = value.get_ref<const std::string&>();
  return text.find_first_not_of("0123456789abcdef") == std::string::npos;
}

// Stays inside the checkpoint: no absolute path, no "..".
bool is_inside(const std::string& name) {
  const std::filesystem::path path(name);
  return !name.empty() && name.find('\0') == std::string::npos && path.is_relative() &&
         std::none_of(path.begin(), path.end(),
                      [](const std::filesystem::path& part) { return part == ".." || part == "."; });
}

Json files_json(const CheckpointManifest& manifest) {
  Json files = Json::object();
  for (const auto& [name, entry] : manifest.files) {
    files[name] = {{"bytes", entry.bytes}, {"xxh3", entry.xxh3}};
  }
  return files;
}

}  // namespace

std::string manifest_text(const CheckpointManifest& manifest) {
  const Json files = files_json(manifest);
  const Json json = {{"version", kVersion},
                     {"step", manifest.step},
                     {"files_xxh3", digest_hex(fmt::format("{}:{}", manifest.step, files.dump()))},
                     {"files", files}};
  return json.dump(2) + "\n";
}

StatusOr<ManifestEntry> digest_file(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const MappedFile file, MappedFile::open(path));
  return ManifestEntry{static_cast<int64_t>(file.size()), digest_hex(file.data(), file.size())};
}

StatusOr<CheckpointManifest> parse_manifest(std::string_view text, const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const Json json, parse_json(text, path));
  if (!json.is_object()) {
    return data_error("{}: must hold one JSON object, not {}", path, json.type_name());
  }
  JsonFields fields(json, path);
  CheckpointManifest manifest;
  fields.integer("version", kVersion, kVersion);
  manifest.step = fields.integer("step", 0, std::numeric_limits<int64_t>::max());
  ACCORD_RETURN_IF_ERROR(fields.status());
  const Json* files = fields.find("files");
  if (files == nullptr || !files->is_object() || files->empty()) {
    return data_error("{}: must list files", path);
  }
  for (const auto& [name, value] : files->items()) {
    if (!is_inside(name) || !value.is_object() || value.size() != 2) {
      return data_error("{}: the entry of '{}' is damaged", path, printable(name));
    }
    JsonFields entry(value, fmt::format("{}: {}", path, printable(name)));
    const int64_t bytes = entry.integer("bytes", 0, std::numeric_limits<int64_t>::max());
    const Json* digest = entry.find("xxh3");
    ACCORD_RETURN_IF_ERROR(entry.status());
    if (digest == nullptr || !is_digest(*digest)) {
      return data_error("{}: {}: xxh3 must be 32 lower-case hex digits", path, printable(name));
    }
    manifest.files.emplace(name, ManifestEntry{bytes, digest->get<std::string>()});
  }
  const std::string expected = digest_hex(fmt::format("{}:{}", manifest.step, files_json(manifest).dump()));
  if (fields.text("files_xxh3", "") != expected) {
    return data_error("{}: files_xxh3 does not match the list of files; the manifest was altered", path);
  }
  ACCORD_RETURN_IF_ERROR(fields.status());
  return manifest;
}

StatusOr<CheckpointManifest> read_manifest(const std::string& dir) {
  const std::string path = dir + "/" + kManifestFile;
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, kMaxManifestBytes));
  return parse_manifest(text, path);
}

Status verify_checkpoint(const std::string& dir) {
  ACCORD_ASSIGN_OR_RETURN(const CheckpointManifest manifest, read_manifest(dir));
  // Sizes first: they find an incomplete copy without reading it.
  for (const auto& [name, entry] : manifest.files) {
    const std::string path = fmt::format("{}/{}", dir, name);
    std::error_code error;
    const auto bytes = std::filesystem::file_size(path, error);
    if (error) {
      return data_error("{}: listed in {} but cannot be read: {}", path, kManifestFile, error.message());
    }
    if (static_cast<int64_t>(bytes) != entry.bytes) {
      return data_error("{}: has {} bytes, {} says {}", path, bytes, kManifestFile, entry.bytes);
    }
  }
  for (const auto& [name, entry] : manifest.files) {
    const std::string path = fmt::format("{}/{}", dir, name);
    ACCORD_ASSIGN_OR_RETURN(const ManifestEntry found, digest_file(path));
    if (found.xxh3 != entry.xxh3) {
      return data_error(
          "{}: its content (XXH3 {}) is not what {} says ({}); it was damaged after it was written", path,
          found.xxh3, kManifestFile, entry.xxh3);
    }
  }
  return absl::OkStatus();
}

}  // namespace accord::checkpoint
