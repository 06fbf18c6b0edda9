#pragma once
// Which bytes of an arena travel together: neighbouring tensors of one owner.
#include <cstdint>
#include <span>
#include <vector>

#include "base/flow.hpp"

namespace accord::weights {

// Bytes [begin, end) of an arena, padding after the last tensor included.
struct ArenaSpan {
  int64_t begin = 0;
  int64_t end = 0;
  int32_t owner = 0;
};

// Tensor `index` with its scales and the padding up to the next tensor.
ArenaSpan tensor_span(const WeightManifest& manifest, size_t index);

// The whole arena in ascending order, as few spans as there can be. `owners`: one per tensor.
std::vector<ArenaSpan> arena_spans(const WeightManifest& manifest, std::span<const int32_t> owners);

// The same bytes in the same order, no piece longer than `chunk_bytes`.
std::vector<ArenaSpan> chunks_of(std::span<const ArenaSpan> spans, int64_t chunk_bytes);

// Where an update begins: at the largest tensor, the last of equal ones. A digest has an order, so that of
// the largest takes longest and must not come last. The bytes before it follow those at the arena's end.
int64_t first_sent(const WeightManifest& manifest);
// chunks_of in that order; none reaches across `first`.
std::vector<ArenaSpan> chunks_from(int64_t first, std::span<const ArenaSpan> spans, int64_t chunk_bytes);

}  // namespace accord::weights
