#pragma once
// This rank's share of the training state, in flat arrays: gradients of the tensors that it holds, fp32
// masters and AdamW moments of those that it owns (shards.hpp), and, for those that it holds but does not
// own, where bf16(master) is read. Each tensor starts on a 64-byte boundary; the padding between them is zero
// and stays zero. A single rank has everything, in canonical order.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"
#include "device/buffer.hpp"
#include "trainer/shards.hpp"

namespace accord::trainer {

class Parameters {
 public:
  // `no_decay` names weights besides the norms that do not decay. An unknown name is an error.
  static StatusOr<Parameters> create(const ModelConfig& config, std::span<const std::string> no_decay,
                                     Shards shards = {});

  const Shards& shards() const { return shards_; }
  std::span<const ParamSpec> specs() const { return specs_; }
  int64_t count() const { return static_cast<int64_t>(specs_.size()); }
  int64_t index(std::string_view name) const;  // -1: unknown
  bool decays(int64_t index) const { return decays_[static_cast<size_t>(index)]; }

  // Empty where this rank does not own the tensor.
  std::span<float> master(int64_t index) const { return view(masters_, owned_, index); }
  std::span<float> exp_avg(int64_t index) const { return view(exp_avg_, owned_, index); }
  std::span<float> exp_avg_sq(int64_t index) const { return view(exp_avg_sq_, owned_, index); }
  // Empty where this rank does not hold the tensor.
  std::span<float> gradient(int64_t index) const { return view(gradients_, held_, index); }
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
  const ShardLayout& gradient_layout() const { return held_; }
  float* gradients() const { return gradients_.as<float>(); }
  const ShardLayout& original_layout() const { return original_layout_; }  // of the copies; BF16 elements
  BF16* originals() const { return originals_.as<BF16>(); }

 private:
  std::span<float> view(const Buffer& buffer, const ShardLayout& layout, int64_t index) const;

  Shards shards_;
  std::vector<ParamSpec> specs_;
  std::vector<bool> decays_;
  std::unordered_map<std::string, int64_t> by_name_;
  ShardLayout held_, owned_, original_layout_;
  Buffer masters_, gradients_, exp_avg_, exp_avg_sq_, originals_;
  std::vector<const BF16*> bits_;  // per parameter, of those held and not owned
};

}  // namespace accord::trainer
