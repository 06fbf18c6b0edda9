#pragma once
// A randomly initialized Hugging Face checkpoint: norms are 1, every other parameter is
// bf16(initializer_range * N(0, 1)). The values of a parameter depend on the seed and its name only.
#include <cstdint>
#include <functional>
#include <span>
#include <string>

#include "base/dtype.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "checkpoint/sharded_tensors.hpp"

namespace accord::checkpoint {

struct InitOptions {
  uint64_t seed = 0;
  std::string tokenizer_dir;  // its tokenizer files are copied, if given
  int64_t max_shard_bytes = kDefaultShardBytes;
  int num_threads = 1;                                        // never changes a value
  std::function<void(int64_t done, int64_t total)> progress;  // parameters so far and in all
};

struct InitSummary {
  int64_t tensors = 0;
  int64_t parameters = 0;
};

// Streams: at most one block of one tensor lies in memory, whatever the model's size.
StatusOr<InitSummary> init_model(const std::string& config_path, const std::string& out_dir,
                                 const InitOptions& options);

// Block `block` of a parameter: elements [block * kInitBlock, ... + out.size()), out.size() <= kInitBlock.
inline constexpr int64_t kInitBlock = 1 << 16;
void init_block(const ParamSpec& parameter, double range, uint64_t seed, int64_t block, std::span<BF16> out);

}  // namespace accord::checkpoint
