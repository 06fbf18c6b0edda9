#pragma once
// The tensors of a Hugging Face directory: DIR/model.safetensors, or the shards that
// DIR/model.safetensors.index.json lists. Names and bytes only; what the tensors mean is hf_checkpoint.hpp's.
#include <cstdint>
#include <functional>
#include <map>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "checkpoint/safetensors.hpp"

namespace accord::checkpoint {

inline constexpr char kSingleFile[] = "model.safetensors";
inline constexpr char kIndexFile[] = "model.safetensors.index.json";

// {"weight_map": {tensor: file}}. File names must be plain names that end in .safetensors.
StatusOr<std::map<std::string, std::string>> parse_safetensors_index(std::string_view text,
                                                                     const std::string& path);

// Opened strictly: every name of the index lies in its file, every tensor in a file is in the index, no
// tensor lies in two files. A directory with both a single file and an index is refused as ambiguous.
class ShardedTensors {
 public:
  static StatusOr<ShardedTensors> open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const std::vector<SafetensorsFile>& files() const { return files_; }
  const TensorInfo* find(std::string_view name) const;      // nullptr: no such tensor
  const std::string& file_of(std::string_view name) const;  // path, for messages; the directory if unknown
  std::vector<std::string> names() const;                   // sorted

 private:
  struct Place {
    const TensorInfo* tensor = nullptr;
    size_t file = 0;
  };
  Status add_file(const std::string& path);

  std::string dir_;
  std::vector<SafetensorsFile> files_;
  std::map<std::string, Place, std::less<>> places_;
};

// Takes the bytes of the tensor at hand, in order, in any number of pieces.
using ByteSink = std::function<Status(const void* data, size_t size)>;
// Produces one tensor. Called once per tensor, in the order given.
using TensorProducer = std::function<Status(const TensorSpec& tensor, const ByteSink& sink)>;

// "model.safetensors" if it is the only one, else "model-00001-of-00003.safetensors" for number 0.
std::string shard_file_name(size_t number, size_t count);
// The index of tensors that lie in `files`, in the same order.
std::string make_safetensors_index(const std::vector<std::vector<TensorSpec>>& tensors,
                                   const std::vector<std::string>& files);

inline constexpr int64_t kDefaultShardBytes = int64_t{4} << 30;

// Writes `tensors` in their order as one file, or as shards of at most max_shard_bytes of data (a larger
// tensor has a shard of its own) with an index that comes last. One tensor's pieces lie in memory at a time.
// Refuses a directory that already holds weights.
Status write_sharded(const std::string& dir, const std::vector<TensorSpec>& tensors,
                     const TensorProducer& produce, int64_t max_shard_bytes = kDefaultShardBytes);

}  // namespace accord::checkpoint
