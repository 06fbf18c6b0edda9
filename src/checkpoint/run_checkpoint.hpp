#pragma once
// The checkpoints of a run: CHECKPOINTS/step_N/, complete or not there at all. Files are written into
// step_N.tmp/, flushed and listed in manifest.json with size and XXH3-128 digest; then the directory is
// renamed and its parent flushed. LATEST is a hint for people; only verification decides what is resumed
// from.
#include <cstdint>
#include <functional>
#include <map>
#include <optional>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace accord::checkpoint {

inline constexpr char kManifestFile[] = "manifest.json";
inline constexpr char kLatestFile[] = "LATEST";

std::string checkpoint_name(int64_t step);  // "step_40"

class CheckpointWriter {
 public:
  // Starts CHECKPOINTS/step_N.tmp/ from nothing; what an interrupted attempt left there goes away.
  static StatusOr<CheckpointWriter> begin(const std::string& checkpoints_dir, int64_t step);
  CheckpointWriter(CheckpointWriter&& other) noexcept;
  CheckpointWriter& operator=(CheckpointWriter&& other) = delete;
  ~CheckpointWriter();  // without a commit, removes what was written

  // Where the files go, for writers that make many of them (an HF directory, say). Everything below it at
  // commit() is part of the checkpoint.
  const std::string& directory() const { return temporary_; }
  // Calls `write` with the full path of a file to create; `name` may contain directories.
  Status add_file(const std::string& name, const std::function<Status(const std::string& path)>& write);
  Status add_text(const std::string& name, std::string_view content);

  // Reads everything back for the manifest, flushes, renames. Returns CHECKPOINTS/step_N. A checkpoint of the
  // same step that is already there is replaced.
  StatusOr<std::string> commit();

 private:
  CheckpointWriter(std::string checkpoints_dir, int64_t step);

  std::string checkpoints_dir_;
  int64_t step_ = 0;
  std::string temporary_;  // empty once committed
};

struct ManifestEntry {
  int64_t bytes = 0;
  std::string xxh3;  // 32 hex digits
};
struct CheckpointManifest {
  int64_t step = 0;
  std::map<std::string, ManifestEntry> files;  // relative path -> what it must be
};
StatusOr<CheckpointManifest> parse_manifest(std::string_view text, const std::string& path);

// Every file of the manifest is there with its size and digest; the first that is not is the error.
Status verify_checkpoint(const std::string& dir);

struct SkippedCheckpoint {
  int64_t step = 0;
  std::string reason;
};
struct FoundCheckpoint {
  int64_t step = 0;
  std::string path;
};
struct CheckpointSearch {
  std::optional<FoundCheckpoint> newest;
  std::vector<SkippedCheckpoint> skipped;  // newer ones that do not verify, newest first
};

// Steps with a step_N directory, ascending. A directory that does not exist holds none.
StatusOr<std::vector<int64_t>> list_checkpoints(const std::string& checkpoints_dir);

StatusOr<CheckpointSearch> find_newest_verified(const std::string& checkpoints_dir);

// Removes what an interrupted write or prune left (step_*.tmp, and the temporary files of LATEST); logs each.
// Returns their names. To be called when nothing writes there, at the start of a run.
StatusOr<std::vector<std::string>> remove_interrupted(const std::string& checkpoints_dir);

// Keeps the newest `keep` checkpoints (at least 1) and `verified_step`, removes the others; logs each. When
// `verified_step` is not given, the newest one that verifies is looked for and kept.
Status prune_checkpoints(const std::string& checkpoints_dir, int64_t keep,
                         std::optional<int64_t> verified_step = std::nullopt);

}  // namespace accord::checkpoint
