#include "weights/spans.hpp"

#include <string>
#include <vector>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::weights;

namespace {

WeightManifest manifest_of(const std::vector<int64_t>& sizes) {
  WeightManifest manifest;
  for (const int64_t bytes : sizes) {
    WeightEntry entry;
    entry.name = "t" + std::to_string(manifest.entries.size());
    entry.data_offset = manifest.arena_bytes;
    entry.data_bytes = bytes;
    manifest.entries.push_back(entry);
    manifest.arena_bytes += bytes;
  }
  return manifest;
}

}  // namespace

TEST_CASE("An update begins at the largest tensor and goes round the arena once") {
  const WeightManifest manifest = manifest_of({700, 30, 40, 700, 20});
  CHECK(first_sent(manifest) == 770);  // the last of the two largest
  CHECK(first_sent(manifest_of({700, 30, 40})) == 0);
  for (const std::vector<int32_t>& owners :
       {std::vector<int32_t>{0, 0, 0, 0, 0}, {0, 1, 1, 0, 0}, {0, 0, 1, 1, 0}}) {
    const std::vector<ArenaSpan> spans = arena_spans(manifest, owners);
    for (const int64_t chunk_bytes : {int64_t{1}, int64_t{64}, int64_t{1000}, int64_t{5000}}) {
      for (const int64_t first : {int64_t{0}, int64_t{730}, int64_t{770}}) {
        CAPTURE(chunk_bytes);
        CAPTURE(first);
        const std::vector<ArenaSpan> chunks = chunks_from(first, spans, chunk_bytes);
        int64_t next = first;
        int64_t wrong = 0;
        for (const ArenaSpan& chunk : chunks) {
          wrong += chunk.begin == next && chunk.end > chunk.begin && chunk.end - chunk.begin <= chunk_bytes
                       ? 0
                       : 1;
          wrong += chunk.begin < first && chunk.end > first ? 1 : 0;
          for (size_t i = 0; i < owners.size(); ++i) {
            const ArenaSpan tensor = tensor_span(manifest, i);
            const bool overlaps = chunk.begin < tensor.end && tensor.begin < chunk.end;
            wrong += overlaps && chunk.owner != owners[i] ? 1 : 0;
          }
          next = chunk.end == manifest.arena_bytes ? 0 : chunk.end;
        }
        CHECK(wrong == 0);
        CHECK(next == first);
      }
    }
  }
}
