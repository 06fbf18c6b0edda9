#include "weights/digest.hpp"

#include "base/hash.hpp"

namespace accord::weights {

std::string tensor_digest(const WeightEntry& entry, const std::byte* arena) {
  Hasher hasher;
  hasher.update(arena + entry.data_offset, static_cast<size_t>(entry.data_bytes));
  hasher.update(arena + entry.scale_offset, static_cast<size_t>(entry.scale_bytes));
  hasher.update(arena + entry.outer_offset, static_cast<size_t>(entry.outer_bytes));
  return hasher.hex();
}

std::vector<std::string> per_tensor_digests(const WeightManifest& manifest, const std::byte* arena,
                                            ThreadPool& pool) {
  std::vector<std::string> digests(manifest.entries.size());
  pool.parallel_for(static_cast<int64_t>(digests.size()), [&](int64_t i) {
    const auto index = static_cast<size_t>(i);
    digests[index] = tensor_digest(manifest.entries[index], arena);
  });
  return digests;
}

}  // namespace accord::weights
