#pragma once
// accord convert: a Hugging Face checkpoint to one in MXFP8, NVFP4 or BF16, as a precision plan says
// (docs/checkpoints.md). The bytes are those of the live export: Q(bf16(value)) per weight, one outer scale
// for gate and up of one MLP, wherever they lie.
//
//   source shards --tiles of rows--> bf16 -> quantizer --parts--> DST.partial/model-*.safetensors --rename-->
//   DST
//
// Tiles are read, quantized and written by all threads at once; memory is a few tiles a thread, whatever the
// model's size. DST appears when everything is in it. An interrupted conversion leaves DST.partial, and the
// same command goes on from its finished shards.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "checkpoint/sharded_tensors.hpp"
#include "recipe/recipe.hpp"

namespace accord::controller {

struct ConversionOptions {
  std::string source;
  std::string destination;
  recipe::PrecisionPart precision;  // no matchers: BF16
  MlaForm mla = kDefaultMlaForm;    // plain lets kv_b_proj be quantized
  int threads = 0;                  // 0: one per core; never changes a byte
  int64_t max_shard_bytes = checkpoint::kDefaultShardBytes;
};

struct ConversionReport {
  int64_t weights = 0;
  int64_t quantized = 0;
  int64_t bytes = 0;           // of the tensors written
  int64_t resumed_shards = 0;  // found finished
  double seconds = 0.0;
};

// Logs what readers of the result should know. Errors: a source that cannot be read, or that is not finite in
// BF16 or whose quantized values are not (65, names the tensor); a plan that no layout can hold (78); a
// destination that exists (64), or that another process is writing (73).
StatusOr<ConversionReport> convert_checkpoint(const ConversionOptions& options);

}  // namespace accord::controller
