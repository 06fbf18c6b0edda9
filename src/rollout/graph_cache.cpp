#include "rollout/graph_cache.hpp"

#include <utility>

namespace accord::rollout {

Status GraphCache::run(const GraphKey& key, const std::vector<const void*>& addresses,
                       const std::function<Status()>& launches) {
  if (addresses != addresses_) {
    ACCORD_RETURN_IF_ERROR(drop());
    addresses_ = addresses;
  }
  if (seen_.insert(key).second) return launches();
  Graph& graph = graphs_[key];
  if (graph.empty()) {
    StatusOr<Graph> captured = Graph::capture(stream_, launches);
    if (!captured.ok()) {
      return annotate(captured.status(), fmt::format("rollout: no CUDA graph of a step of {} rows (set "
                                                     "rollout.cuda_graphs: false to do without)",
                                                     key.rows));
    }
    graph = *std::move(captured);
    ++counts_.captures;
  }
  counts_.replays += key.part == GraphKey::Part::kForward ? 1 : 0;
  return graph.launch(stream_);
}

// Queued work may still be theirs.
Status GraphCache::drop() {
  if (graphs_.empty()) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(stream_.synchronize());
  graphs_.clear();
  return absl::OkStatus();
}

GraphCounts GraphCache::take_counts() { return std::exchange(counts_, {}); }

}  // namespace accord::rollout
