#pragma once
// What verify compares beside the weights of two checkpoints: what else decides how a model behaves.
#include <vector>

#include "base/status.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "controller/verification.hpp"

namespace accord::controller {

// Keys of config.json and generation_config.json after the normalization that convert applies (null is
// absent; quantization_config, compression_config, dtype, torch_dtype, transformers_version, _name_or_path
// and _from_model_config are passed over), tokenizer files byte by byte, and of quantized weights what the
// files say about them: producer and its options, the cache that they claim, input scales. By name, in a
// fixed order.
StatusOr<std::vector<OtherDifference>> compare_metadata(const checkpoint::HfCheckpoint& a,
                                                        const checkpoint::HfCheckpoint& b);

}  // namespace accord::controller
