#pragma once
// A Hugging Face checkpoint directory, read and written: config.json, generation_config.json, tokenizer files
// and the weights, whose names and shapes are those of parameter_specs(config).
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/dtype.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/sharded_tensors.hpp"
#include "checkpoint/stored_weight.hpp"

namespace accord::checkpoint {

// Opening checks everything but the values: each parameter is there with its shape in BF16, F32 or F16, and
// nothing else is (rotary inv_freq tables are passed over; lm_head.weight in a tied model must equal the
// embedding). Missing, extra and misshapen tensors are listed in one error. Experts may come fused, as
// transformers holds them in memory: experts.gate_up_proj [E, 2I, H] (gate rows first), experts.down_proj
// [E, H, I]. Reading copies from mapped memory; a const object may be read from several threads.
//
// Weights may be stored quantized (quantization_config.hpp says how): reading gives their decoded values.
class HfCheckpoint {
 public:
  static StatusOr<HfCheckpoint> open(const std::string& dir);

  const std::string& dir() const { return dir_; }
  const ModelConfig& config() const { return config_.model; }
  const HfConfig& hf_config() const { return config_; }  // with the files' own text
  const std::vector<ParamSpec>& specs() const { return specs_; }
  StatusOr<Dtype> dtype(std::string_view name) const;  // of the tensor with its elements, as stored
  const QuantizationConfig& quantization() const { return config_.quantization; }
  // How and where a weight is stored; nullptr: no such parameter. Lives as long as this object.
  const StoredWeight* stored(std::string_view name) const;
  const std::string& file_of(std::string_view name) const;  // path, for messages
  int64_t prediction_tensors() const {
    return prediction_tensors_;
  }  // of multi-token prediction: passed over
  const std::vector<SafetensorsFile>& files() const { return tensors_.files(); }
  // Hints on the memory of a stored weight's rows [row, row + count): soon needed, and no longer needed.
  // Keeps a reader's resident memory small; never changes a value.
  void prefetch(const StoredWeight& weight, int64_t row, int64_t count) const;
  void release(const StoredWeight& weight, int64_t row, int64_t count) const;
  // Of everything: the kernel maps pages around those that are read, so releasing rows leaves some behind.
  void release_all() const;

  // Canonical names. `out` takes elements [first, first + out.size()) of the row-major parameter; the forms
  // without `first` take all of it, and its size must match. Widening is exact; read_bf16 rounds to nearest
  // even where the file holds more bits.
  Status read_f32(std::string_view name, std::span<float> out) const;
  Status read_f32(std::string_view name, int64_t first, std::span<float> out) const;
  Status read_bf16(std::string_view name, std::span<BF16> out) const;
  Status read_bf16(std::string_view name, int64_t first, std::span<BF16> out) const;

 private:
  Status resolve();
  Status settle_outer_scales();
  Status check_tied_head() const;
  StatusOr<const StoredWeight*> source_of(std::string_view name, int64_t first, size_t count) const;

  std::string dir_;
  HfConfig config_;
  ShardedTensors tensors_;
  std::vector<ParamSpec> specs_;
  int64_t prediction_tensors_ = 0;
  std::unordered_map<std::string, StoredWeight> sources_;
};

// What an unquantized checkpoint of ours keeps a parameter in: BF16, but a router's correction bias in F32.
Dtype plain_dtype(const ParamSpec& spec);

struct HfWriteOptions {
  int64_t max_shard_bytes = kDefaultShardBytes;
  std::string tokenizer_dir;  // tokenizer files are copied from here, if given
};

// Writes a directory that transformers loads: weights as `tensors` says (quantized ones included), produced
// piece by piece in that order, the two JSON files as they are, and what `options` names. config.json comes
// last, so that a directory which has one is complete.
Status write_hf_directory(const std::string& dir, std::string_view config_json,
                          std::string_view generation_config_json, const std::vector<TensorSpec>& tensors,
                          const TensorProducer& produce, const HfWriteOptions& options = {});

// config.json (without quantization_config) and generation_config.json of an unquantized checkpoint.
StatusOr<std::string> config_json_to_write(const HfConfig& config, const std::string& path);
std::string generation_config_json_to_write(const HfConfig& config);

// The names that tokenizer files have, a chat template's among them.
std::vector<std::string> tokenizer_file_names();
// Copies tokenizer.json, tokenizer_config.json, chat templates, vocabularies, ... that are there.
Status copy_tokenizer_files(const std::string& from, const std::string& to);

}  // namespace accord::checkpoint
