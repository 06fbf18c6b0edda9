#pragma once
// DST.partial/conversion.state: what an interrupted conversion was made of, and which of its shards are
// whole.
//   {"version": 1, "source": digest, "plan": digest, "shards": {file: {"bytes": n, "digest": xxh3-128}}}
#include <cstdint>
#include <map>
#include <string>
#include <string_view>

#include "base/status.hpp"
#include "checkpoint/hf_checkpoint.hpp"

namespace accord::controller {

struct FinishedShard {
  int64_t bytes = 0;
  std::string digest;
  bool operator==(const FinishedShard&) const = default;
};

struct ConversionState {
  std::string source;  // source_digest
  std::string plan;
  std::map<std::string, FinishedShard> shards;  // by file name
};

std::string to_json(const ConversionState& state);
StatusOr<ConversionState> parse_conversion_state(std::string_view text, const std::string& path);

// Identifies a source: its two JSON files; name, size, time of change, and all header entries of each file of
// weights; the first 4 KiB of each tensor and 4 KiB at every 16 MiB of it, and the file's last 64 KiB.
// Another model's weights have another digest, whatever their sizes and times; bytes between the samples are
// not seen.
std::string source_digest(const checkpoint::HfCheckpoint& source);

// Size and digest of all bytes of a file.
StatusOr<FinishedShard> digest_of_file(const std::string& path);

}  // namespace accord::controller
