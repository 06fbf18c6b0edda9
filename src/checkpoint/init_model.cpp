#include "checkpoint/init_model.hpp"

#include <algorithm>
#include <charconv>
#include <vector>

#include "base/hash.hpp"
#include "base/philox.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "device/thread_pool.hpp"

namespace accord::checkpoint {
namespace {

constexpr int64_t kBlocksAtOnce = 256;  // 32 MiB

uint64_t stream_of(const std::string& name, int64_t block) {
  const std::string hex = digest_hex(fmt::format("{}/{}", name, block));
  uint64_t stream = 0;
  std::from_chars(hex.data(), hex.data() + 16, stream, 16);
  return stream;
}

// Blocks have streams of their own, so that they can be drawn in parallel.
Status produce_parameter(const ParamSpec& parameter, double range, uint64_t seed, ThreadPool& pool,
                         std::vector<BF16>& memory, const ByteSink& sink) {
  const int64_t numel = parameter.numel();
  if (parameter.role == ParamRole::kRouterBias) {  // kept in F32; no expert is favoured
    const std::vector<float> zeros(static_cast<size_t>(numel));
    return sink(zeros.data(), zeros.size() * sizeof(float));
  }
  const int64_t span_elements = kBlocksAtOnce * kInitBlock;
  for (int64_t first = 0; first < numel; first += span_elements) {
    const int64_t count = std::min(span_elements, numel - first);
    memory.resize(static_cast<size_t>(count));
    const int64_t num_blocks = (count + kInitBlock - 1) / kInitBlock;
    pool.parallel_for(num_blocks, [&](int64_t block) {
      const int64_t begin = block * kInitBlock;
      const auto part = std::span(memory).subspan(static_cast<size_t>(begin),
                                                  static_cast<size_t>(std::min(kInitBlock, count - begin)));
      init_block(parameter, range, seed, first / kInitBlock + block, part);
    });
    ACCORD_RETURN_IF_ERROR(sink(memory.data(), memory.size() * sizeof(BF16)));
  }
  return absl::OkStatus();
}

}  // namespace

void init_block(const ParamSpec& parameter, double range, uint64_t seed, int64_t block, std::span<BF16> out) {
  if (parameter.role == ParamRole::kNorm) {
    std::fill(out.begin(), out.end(), to_bf16(1.0F));
    return;
  }
  PhiloxStream stream(seed, stream_of(parameter.name, block));
  for (BF16& value : out) {
    value = to_bf16(static_cast<float>(range * stream.next_normal()));
  }
}

StatusOr<InitSummary> init_model(const std::string& config_path, const std::string& out_dir,
                                 const InitOptions& options) {
  ACCORD_ASSIGN_OR_RETURN(const HfConfig config, read_hf_config_file(config_path));
  ACCORD_ASSIGN_OR_RETURN(const std::string config_json,
                          normalized_config_json(config.config_json, config_path));
  const std::vector<ParamSpec> parameters = parameter_specs(config.model);
  InitSummary summary;
  summary.tensors = static_cast<int64_t>(parameters.size());
  std::vector<TensorSpec> tensors;
  tensors.reserve(parameters.size());
  for (const ParamSpec& parameter : parameters) {
    tensors.push_back({parameter.name, plain_dtype(parameter), parameter.shape});
    summary.parameters += parameter.numel();
  }
  ThreadPool pool(std::max(options.num_threads, 1));
  std::vector<BF16> memory;
  size_t next = 0;  // tensors are produced in the order given
  int64_t done = 0;
  const auto produce = [&](const TensorSpec&, const ByteSink& sink) {
    const int64_t element = size_of(plain_dtype(parameters[next]));
    const ByteSink counted = [&, element](const void* data, size_t size) -> Status {
      ACCORD_RETURN_IF_ERROR(sink(data, size));
      done += static_cast<int64_t>(size) / element;
      if (options.progress) {
        options.progress(done, summary.parameters);
      }
      return absl::OkStatus();
    };
    return produce_parameter(parameters[next++], config.model.initializer_range, options.seed, pool, memory,
                             counted);
  };
  HfWriteOptions write;
  write.max_shard_bytes = options.max_shard_bytes;
  write.tokenizer_dir = options.tokenizer_dir;
  ACCORD_RETURN_IF_ERROR(write_hf_directory(out_dir, config_json, make_generation_config_json(config.model),
                                            tensors, produce, write));
  return summary;
}

}  // namespace accord::checkpoint
