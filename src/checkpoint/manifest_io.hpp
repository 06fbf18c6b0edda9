#pragma once
// The manifest of a run checkpoint as text, and the digests in it. For this room's own files.
#include <string>

#include "base/status.hpp"
#include "checkpoint/run_checkpoint.hpp"

namespace accord::checkpoint {

std::string manifest_text(const CheckpointManifest& manifest);
StatusOr<ManifestEntry> digest_file(const std::string& path);
StatusOr<CheckpointManifest> read_manifest(const std::string& dir);

}  // namespace accord::checkpoint
