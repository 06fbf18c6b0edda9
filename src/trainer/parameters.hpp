#pragma once
// This rank's share of the training state in host memory (parameter_table.hpp): gradients of the tensors that
// it holds, fp32 masters and AdamW moments of those that it owns, and, for those that it holds but does not
// own, where bf16(master) is read. Each tensor starts on a 64-byte boundary; the padding between them is zero
// and stays zero.
#include <cstdint>
#include <span>
#include <string>
#include <vector>

#include "device/buffer.hpp"
#include "trainer/parameter_table.hpp"

namespace accord::trainer {

class Parameters : public ParameterTable {
 public:
  explicit Parameters(ParameterTable table);
  static StatusOr<Parameters> create(const ModelConfig& config, std::span<const std::string> no_decay,
                                     Shards shards = {});

  // Empty where this rank does not own the tensor.
  std::span<float> master(int64_t index) const { return view(masters_, owned(), index); }
  std::span<float> exp_avg(int64_t index) const { return view(exp_avg_, owned(), index); }
  std::span<float> exp_avg_sq(int64_t index) const { return view(exp_avg_sq_, owned(), index); }
  // Empty where this rank does not hold the tensor.
  std::span<float> gradient(int64_t index) const { return view(gradients_, held(), index); }
  // Of all owned tensors, with padding.
  std::span<float> owned_gradients() const;

  void clear_gradients();
  void clear_moments();

  // Where read_weight finds tensors that this rank does not own: BF16 weights in `arena` (kept by address),
  // others in a BF16 copy of their original when `originals` asks for it. Errors (kInternal): the manifest
  // lacks a tensor.
  Status bind(const WeightManifest& manifest, const void* arena, bool originals);
  // Elements [begin, begin + count) of bf16(master) as fp32, of a tensor that this rank holds. Tensors that
  // it does not own must be bound, and their copies filled.
  void read_weight(int64_t index, int64_t begin, int64_t count, float* out) const;

  // For the exchange between ranks (exchange.hpp).
  float* gradients() const { return gradients_.as<float>(); }
  const ShardLayout& original_layout() const { return original_layout_; }  // of the copies; BF16 elements
  BF16* originals() const { return originals_.as<BF16>(); }

 private:
  std::span<float> view(const Buffer& buffer, const ShardLayout& layout, int64_t index) const;

  ShardLayout original_layout_;
  Buffer masters_, gradients_, exp_avg_, exp_avg_sq_, originals_;
  std::vector<const BF16*> bits_;  // per parameter, of those held and not owned
};

}  // namespace accord::trainer
