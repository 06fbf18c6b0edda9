#pragma once
// One weight as a checkpoint stores it: plain, or quantized with its scales in tensors of their own. Decoding
// follows docs/contract.md, sections 2, 3, 7 and 8.
#include <cstdint>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/quantization_config.hpp"
#include "checkpoint/sharded_tensors.hpp"

namespace accord::checkpoint {

enum class Encoding : uint8_t {
  kPlain,     // BF16, F16 or F32
  kMxfp8,     // E4M3 [N,K], E8M0 [N,K/32]
  kNvfp4,     // E2M1 pairs [N,K/2], E4M3 [N,K/16], one outer scale
  kFp8Block,  // E4M3 [N,K], F32 or BF16 [ceil(N/128), ceil(K/128)]: a source only
};

std::string_view name_of(Encoding encoding);

struct StoredWeight {
  Encoding encoding = Encoding::kPlain;
  const TensorInfo* data = nullptr;
  const TensorInfo* scales = nullptr;       // nullptr: plain
  const TensorInfo* input_scale = nullptr;  // NVFP4, where there is one: not used
  int64_t first = 0;  // plain: elements into `data`, where experts of a fused tensor start
  int64_t rows = 1;
  int64_t cols = 1;  // of the last axis
  // NVFP4: A, and the range of S = 6*range/A. `stored_outer` is the file's own number: weight_scale_2 = 1/S,
  // or weight_global_scale = S.
  float outer = 0.0F;
  float stored_outer = 0.0F;
  int range = 448;

  int64_t numel() const { return rows * cols; }
};

// Decoded values of elements [at, at + out.size()), row-major. Errors: a plain tensor that is not floating;
// a block scale that is negative or NaN (names tensor, row, column).
Status decode(const StoredWeight& weight, int64_t at, std::span<float> out);

// Finds the tensors of weight `name` (".../q_proj.weight") of shape [rows, cols] under `config`.method:
// nothing when the weight is not stored quantized, an error that names what is missing or misshapen.
// `tensors_used` gets the names of all tensors that belong to it. A (NVFP4) is not settled yet.
StatusOr<std::optional<StoredWeight>> find_quantized(const ShardedTensors& tensors,
                                                     const QuantizationConfig& config,
                                                     const std::string& name,
                                                     const std::vector<int64_t>& shape,
                                                     std::vector<std::string>& tensors_used);

// Sets A of the NVFP4 weights of one unit (gate and up of an MLP, or one weight):
// bf16(6*range*weight_scale_2) where accord wrote the file, which is exact for A above 7.9e-36; below that,
// and for a unit of zeros, A comes from the decoded values. fl(2688*weight_scale_2) or
// fl(2688/weight_global_scale) elsewhere. Errors: an outer scale that is not finite and positive; halves of
// an accord unit that disagree.
Status settle_outer_scale(const QuantizationConfig& config, const std::vector<StoredWeight*>& unit);

}  // namespace accord::checkpoint
