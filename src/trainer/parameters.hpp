#pragma once
// Masters, gradients and AdamW moments of all parameters: four flat fp32 arrays with one layout. Tensors
// follow canonical order, each starting on a 64-byte boundary; the padding between them is zero and stays
// zero.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "device/buffer.hpp"

namespace accord::trainer {

class Parameters {
 public:
  // `no_decay` names weights besides the norms that do not decay. An unknown name is an error.
  static StatusOr<Parameters> create(const ModelConfig& config, std::span<const std::string> no_decay);

  std::span<const ParamSpec> specs() const { return specs_; }
  int64_t count() const { return static_cast<int64_t>(specs_.size()); }
  int64_t total() const { return total_; }     // elements with padding
  int64_t index(std::string_view name) const;  // -1: unknown
  bool decays(int64_t index) const { return decays_[static_cast<size_t>(index)]; }

  std::span<float> master(int64_t index) const { return view(masters_, index); }
  std::span<float> gradient(int64_t index) const { return view(gradients_, index); }
  std::span<float> exp_avg(int64_t index) const { return view(exp_avg_, index); }
  std::span<float> exp_avg_sq(int64_t index) const { return view(exp_avg_sq_, index); }
  std::span<float> all_gradients() const { return {gradients_.as<float>(), static_cast<size_t>(total_)}; }

  void clear_gradients();
  void clear_moments();

 private:
  std::span<float> view(const Buffer& buffer, int64_t index) const;

  std::vector<ParamSpec> specs_;
  std::vector<int64_t> offsets_;
  std::vector<bool> decays_;
  std::unordered_map<std::string, int64_t> by_name_;
  int64_t total_ = 0;
  Buffer masters_, gradients_, exp_avg_, exp_avg_sq_;
};

}  // namespace accord::trainer
