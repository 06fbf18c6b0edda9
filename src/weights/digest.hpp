#pragma once
// Digests of the tensors in an arena, or in a buffer with an arena's layout.
#include <cstddef>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "device/thread_pool.hpp"

namespace accord::weights {

// Over data, block scales and outer scale, in this order.
std::string tensor_digest(const WeightEntry& entry, const std::byte* arena);

// In manifest order.
std::vector<std::string> per_tensor_digests(const WeightManifest& manifest, const std::byte* arena,
                                            ThreadPool& pool);

}  // namespace accord::weights
