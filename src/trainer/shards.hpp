#pragma once
// Who has which parameter when several trainer ranks train one policy.
//
//   holds  the rank computes with the tensor and makes a gradient for it: every rank for dense tensors; for
//   an
//          expert's, the ranks of its place
//   owns   one of the holders keeps the fp32 master and the moments and updates them (optimizer state
//          sharded over ranks as in ZeRO, Rajbhandari et al., arXiv 1910.02054)
//
// Rank r has place r % E in its expert group r / E, E = expert_parallel. Expert e of a layer lives on place
// e / (num_experts / E). Ownership follows from (config, units, size, E) alone, so every rank computes it.
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/model_config.hpp"
#include "base/status.hpp"

namespace accord::trainer {

struct ShardOptions {
  int32_t rank = 0;
  int32_t size = 1;
  int32_t expert_parallel = 1;  // divides size and the number of experts
  // Per parameter, canonical order: tensors with the same name have one owner, because they are quantized
  // together. An empty name, or no list: the tensor is alone.
  std::vector<std::string> units;
};

class Shards {
 public:
  Shards() = default;  // one rank that owns everything

  // Units go to the least loaded of the ranks that may own them, the largest first; load counts elements.
  // Equal units keep canonical order, equal loads the lower rank. Errors: kBadRecipe (expert_parallel),
  // kInternal (rank, units).
  static StatusOr<Shards> create(const ModelConfig& config, const ShardOptions& options);

  int32_t rank() const { return rank_; }
  int32_t size() const { return size_; }
  int32_t expert_parallel() const { return expert_parallel_; }
  int32_t place(int32_t rank) const { return rank % expert_parallel_; }

  int32_t owner(int64_t parameter) const {
    return owners_.empty() ? 0 : owners_[static_cast<size_t>(parameter)];
  }
  bool owns(int64_t parameter) const { return owner(parameter) == rank_; }
  bool holds(int64_t parameter) const { return holds(parameter, rank_); }
  bool holds(int64_t parameter, int32_t rank) const {
    const int32_t place_of = home(parameter);
    return place_of < 0 || place_of == place(rank);
  }
  // The place that alone holds the parameter; -1: all places do.
  int32_t home(int64_t parameter) const {
    return homes_.empty() ? -1 : homes_[static_cast<size_t>(parameter)];
  }

 private:
  int32_t rank_ = 0;
  int32_t size_ = 1;
  int32_t expert_parallel_ = 1;
  std::vector<int32_t> owners_, homes_;  // per parameter; empty: rank 0 owns, all places hold
};

// A flat array of tensors that one rank holds, in one section per owner. Section o of rank s is a prefix of
// section o of rank o: tensors that all places hold come first, else canonical order holds. Every tensor
// starts at a multiple of `alignment` elements, and sizes count elements with that padding.
class ShardLayout {
 public:
  static constexpr int64_t kAlignment = 16;  // elements: 64 bytes of fp32

  // Takes the parameters that `chosen` accepts (the same on all ranks) and this rank holds. Without
  // `with_own` the own section takes no room.
  ShardLayout() = default;
  ShardLayout(const Shards& shards, std::span<const ParamSpec> specs,
              const std::function<bool(int64_t)>& chosen, bool with_own, int64_t alignment = kAlignment);

  int64_t total() const { return total_; }
  // Where a parameter starts in the array; -1: not in it.
  int64_t offset(int64_t parameter) const;
  int64_t section_begin(int32_t owner) const { return begins_[static_cast<size_t>(owner)]; }
  // The length of section `owner` on `rank`.
  int64_t section(int32_t owner, int32_t rank) const;
  // The own section's parameters in order, also without `with_own`, and where each starts in it.
  std::span<const int64_t> own_parameters() const { return own_; }
  int64_t offset_in_section(int64_t parameter) const { return in_section_[static_cast<size_t>(parameter)]; }

 private:
  int32_t places_ = 1;
  int64_t total_ = 0;
  std::vector<int64_t> begins_;      // per owner
  std::vector<int64_t> lengths_;     // [owner, place]
  std::vector<int64_t> in_section_;  // per parameter; -1
  std::vector<int64_t> offsets_;     // per parameter; -1
  std::vector<int64_t> own_;
};

}  // namespace accord::trainer
