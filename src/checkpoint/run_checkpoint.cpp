#include "checkpoint/run_checkpoint.hpp"

#include <algorithm>
#include <charconv>
#include <filesystem>
#include <utility>

#include "base/files.hpp"
#include "base/log.hpp"
#include "checkpoint/manifest_io.hpp"

namespace accord::checkpoint {
namespace {

namespace fs = std::filesystem;

constexpr std::string_view kPrefix = "step_";
constexpr std::string_view kTemporary = ".tmp";

Status failed(std::string_view action, const std::string& path, const std::error_code& error) {
  return io_error("{}: cannot {}: {}", path, action, error.message());
}

Status remove_tree(const std::string& path) {
  std::error_code error;
  fs::remove_all(path, error);
  return error ? failed("remove", path, error) : absl::OkStatus();
}

Status rename_path(const std::string& from, const std::string& to) {
  std::error_code error;
  fs::rename(from, to, error);
  return error ? failed(fmt::format("rename to {}", to), from, error) : absl::OkStatus();
}

bool exists(const std::string& path) {
  std::error_code ignored;
  return fs::exists(path, ignored);
}

// "step_40" -> 40; nothing for any other spelling.
std::optional<int64_t> step_of(std::string_view name) {
  if (name.substr(0, kPrefix.size()) != kPrefix) {
    return std::nullopt;
  }
  name.remove_prefix(kPrefix.size());
  int64_t step = 0;
  const auto [end, error] = std::from_chars(name.data(), name.data() + name.size(), step);
  const bool whole = error == std::errc() && end == name.data() + name.size();
  return whole && step >= 0 && std::to_string(step) == name ? std::optional(step) : std::nullopt;
}

StatusOr<std::vector<fs::directory_entry>> entries_of(const std::string& dir) {
  std::vector<fs::directory_entry> entries;
  std::error_code error;
  for (fs::directory_iterator it(dir, error), end; !error && it != end; it.increment(error)) {
    entries.push_back(*it);
  }
  if (error && error != std::errc::no_such_file_or_directory) {
    return failed("list", dir, error);
  }
  return entries;
}

// Digests and flushes every file below `root`, and flushes every directory.
StatusOr<std::map<std::string, ManifestEntry>> seal_tree(const std::string& root) {
  std::map<std::string, ManifestEntry> files;
  std::error_code error;
  for (fs::recursive_directory_iterator it(root, error), end; !error && it != end; it.increment(error)) {
    const std::string path = it->path().string();
    if (it->is_symlink() || !(it->is_regular_file() || it->is_directory())) {
      return io_error("{}: only files and directories can be part of a checkpoint", path);
    }
    ACCORD_RETURN_IF_ERROR(sync_path(path));
    if (it->is_regular_file()) {
      ACCORD_ASSIGN_OR_RETURN(files[it->path().lexically_relative(root).generic_string()], digest_file(path));
    }
  }
  if (error) {
    return failed("list", root, error);
  }
  return files;
}

// The name under which a checkpoint is removed: an interrupted removal is not mistaken for damage.
std::string doomed_name(const std::string& path) { return path + ".removed" + std::string(kTemporary); }

Status set_aside(const std::string& path) {
  ACCORD_RETURN_IF_ERROR(remove_tree(doomed_name(path)));
  return rename_path(path, doomed_name(path));
}

}  // namespace

std::string checkpoint_name(int64_t step) { return fmt::format("{}{}", kPrefix, step); }

StatusOr<CheckpointWriter> CheckpointWriter::begin(const std::string& checkpoints_dir, int64_t step) {
  if (step < 0) {
    return internal_error("{}: step {} is negative", checkpoints_dir, step);
  }
  ACCORD_RETURN_IF_ERROR(make_dirs(checkpoints_dir));
  CheckpointWriter writer(checkpoints_dir, step);
  ACCORD_RETURN_IF_ERROR(remove_tree(writer.temporary_));
  ACCORD_RETURN_IF_ERROR(make_dirs(writer.temporary_));
  return writer;
}

CheckpointWriter::CheckpointWriter(std::string checkpoints_dir, int64_t step)
    : checkpoints_dir_(std::move(checkpoints_dir)),
      step_(step),
      temporary_(fmt::format("{}/{}{}", checkpoints_dir_, checkpoint_name(step), kTemporary)) {}

CheckpointWriter::CheckpointWriter(CheckpointWriter&& other) noexcept
    : checkpoints_dir_(std::move(other.checkpoints_dir_)),
      step_(other.step_),
      temporary_(std::exchange(other.temporary_, std::string())) {}

CheckpointWriter::~CheckpointWriter() {
  if (!temporary_.empty()) {
    if (const Status status = remove_tree(temporary_); !status.ok()) {
      log::warn("{}", message_of(status));
    }
  }
}

Status CheckpointWriter::add_file(const std::string& name,
                                  const std::function<Status(const std::string& path)>& write) {
  const std::string path = temporary_ + "/" + name;
  ACCORD_RETURN_IF_ERROR(make_dirs(parent_of(path)));
  ACCORD_RETURN_IF_ERROR(write(path));
  return exists(path) ? absl::OkStatus() : internal_error("{}: was not written", path);
}

Status CheckpointWriter::add_text(const std::string& name, std::string_view content) {
  return add_file(name, [&](const std::string& path) { return write_file_atomic(path, content); });
}

StatusOr<std::string> CheckpointWriter::commit() {
  const std::string final_path = checkpoints_dir_ + "/" + checkpoint_name(step_);
  CheckpointManifest manifest;
  manifest.step = step_;
  ACCORD_ASSIGN_OR_RETURN(manifest.files, seal_tree(temporary_));
  if (manifest.files.empty()) {
    return internal_error("{}: a checkpoint without files", temporary_);
  }
  ACCORD_RETURN_IF_ERROR(write_file_atomic(temporary_ + "/" + kManifestFile, manifest_text(manifest)));
  ACCORD_RETURN_IF_ERROR(sync_path(temporary_));
  const bool replaces = exists(final_path);
  if (replaces) {
    log::info("{}: replaced by a newer checkpoint of the same step", final_path);
    ACCORD_RETURN_IF_ERROR(set_aside(final_path));
  }
  ACCORD_RETURN_IF_ERROR(rename_path(temporary_, final_path));
  temporary_.clear();
  ACCORD_RETURN_IF_ERROR(sync_path(checkpoints_dir_));
  if (replaces) {
    ACCORD_RETURN_IF_ERROR(remove_tree(doomed_name(final_path)));
  }
  ACCORD_RETURN_IF_ERROR(
      write_file_atomic(checkpoints_dir_ + "/" + kLatestFile, checkpoint_name(step_) + "\n"));
  return final_path;
}

StatusOr<std::vector<int64_t>> list_checkpoints(const std::string& checkpoints_dir) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<fs::directory_entry> entries, entries_of(checkpoints_dir));
  std::vector<int64_t> steps;
  for (const fs::directory_entry& entry : entries) {
    if (const std::optional<int64_t> step = step_of(entry.path().filename().string())) {
      steps.push_back(*step);
    }
  }
  std::sort(steps.begin(), steps.end());
  return steps;
}

StatusOr<CheckpointSearch> find_newest_verified(const std::string& checkpoints_dir) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<int64_t> steps, list_checkpoints(checkpoints_dir));
  CheckpointSearch search;
  for (auto step = steps.rbegin(); step != steps.rend(); ++step) {
    const std::string path = checkpoints_dir + "/" + checkpoint_name(*step);
    Status status = verify_checkpoint(path);
    if (status.ok()) {
      ACCORD_ASSIGN_OR_RETURN(const CheckpointManifest manifest, read_manifest(path));
      if (manifest.step == *step) {
        search.newest = FoundCheckpoint{*step, path};
        return search;
      }
      status =
          data_error("{}: its manifest is that of step {}; the directory was renamed", path, manifest.step);
    }
    search.skipped.push_back({*step, std::string(message_of(status))});
  }
  return search;
}

StatusOr<std::vector<std::string>> remove_interrupted(const std::string& checkpoints_dir) {
  ACCORD_ASSIGN_OR_RETURN(const std::vector<fs::directory_entry> entries, entries_of(checkpoints_dir));
  std::vector<std::string> removed;
  const std::string latest_temporary = std::string(kLatestFile) + std::string(kTemporary);
  for (const fs::directory_entry& entry : entries) {
    const std::string name = entry.path().filename().string();
    const bool ours = name.rfind(kPrefix, 0) == 0 && name.size() > kTemporary.size() &&
                      name.substr(name.size() - kTemporary.size()) == kTemporary;
    if (ours || name.rfind(latest_temporary, 0) == 0) {
      log::warn("{}: removed; a checkpoint was interrupted while it was written or deleted",
                entry.path().string());
      ACCORD_RETURN_IF_ERROR(remove_tree(entry.path().string()));
      removed.push_back(name);
    }
  }
  std::sort(removed.begin(), removed.end());
  return removed;
}

Status prune_checkpoints(const std::string& checkpoints_dir, int64_t keep,
                         std::optional<int64_t> verified_step) {
  if (keep < 1) {
    return internal_error("{}: cannot keep {} checkpoints, at least 1 must stay", checkpoints_dir, keep);
  }
  ACCORD_ASSIGN_OR_RETURN(std::vector<int64_t> steps, list_checkpoints(checkpoints_dir));
  if (static_cast<int64_t>(steps.size()) <= keep) {
    return absl::OkStatus();
  }
  if (!verified_step) {
    ACCORD_ASSIGN_OR_RETURN(const CheckpointSearch search, find_newest_verified(checkpoints_dir));
    if (!search.newest) {
      return absl::OkStatus();  // nothing can be resumed from; leave all of it to a person
    }
    verified_step = search.newest->step;
  }
  steps.resize(steps.size() - static_cast<size_t>(keep));
  for (const int64_t step : steps) {
    if (step != *verified_step) {
      const std::string path = checkpoints_dir + "/" + checkpoint_name(step);
      log::info("{}: removed; the newest {} are kept", path, keep);
      ACCORD_RETURN_IF_ERROR(set_aside(path));
      ACCORD_RETURN_IF_ERROR(remove_tree(doomed_name(path)));
    }
  }
  return sync_path(checkpoints_dir);
}

}  // namespace accord::checkpoint
