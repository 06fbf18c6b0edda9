#include "weights/spans.hpp"

#include <algorithm>

namespace accord::weights {

ArenaSpan tensor_span(const WeightManifest& manifest, size_t index) {
  const bool last = index + 1 == manifest.entries.size();
  return {manifest.entries[index].data_offset,
          last ? manifest.arena_bytes : manifest.entries[index + 1].data_offset, 0};
}

std::vector<ArenaSpan> arena_spans(const WeightManifest& manifest, std::span<const int32_t> owners) {
  std::vector<ArenaSpan> spans;
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    ArenaSpan span = tensor_span(manifest, i);
    span.owner = owners[i];
    if (!spans.empty() && spans.back().owner == span.owner) {
      spans.back().end = span.end;
    } else {
      spans.push_back(span);
    }
  }
  return spans;
}

std::vector<ArenaSpan> chunks_of(std::span<const ArenaSpan> spans, int64_t chunk_bytes) {
  std::vector<ArenaSpan> chunks;
  for (const ArenaSpan& span : spans) {
    for (int64_t begin = span.begin; begin < span.end; begin += chunk_bytes) {
      chunks.push_back({begin, std::min(span.end, begin + chunk_bytes), span.owner});
    }
  }
  return chunks;
}

int64_t first_sent(const WeightManifest& manifest) {
  ArenaSpan largest;
  for (size_t i = 0; i < manifest.entries.size(); ++i) {
    const ArenaSpan span = tensor_span(manifest, i);
    if (span.end - span.begin >= largest.end - largest.begin) {
      largest = span;
    }
  }
  return largest.begin;
}

std::vector<ArenaSpan> chunks_from(int64_t first, std::span<const ArenaSpan> spans, int64_t chunk_bytes) {
  std::vector<ArenaSpan> before;
  std::vector<ArenaSpan> after;
  for (const ArenaSpan& span : spans) {
    if (span.begin < first) {
      before.push_back({span.begin, std::min(span.end, first), span.owner});
    }
    if (span.end > first) {
      after.push_back({std::max(span.begin, first), span.end, span.owner});
    }
  }
  std::vector<ArenaSpan> chunks = chunks_of(after, chunk_bytes);
  const std::vector<ArenaSpan> rest = chunks_of(before, chunk_bytes);
  chunks.insert(chunks.end(), rest.begin(), rest.end());
  return chunks;
}

}  // namespace accord::weights
