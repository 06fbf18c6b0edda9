#pragma once
// Captured graphs of a policy's steps, by what they depend on.
#include <compare>
#include <cstdint>
#include <functional>
#include <map>
#include <set>
#include <vector>

#include "base/status.hpp"
#include "device/graph.hpp"
#include "device/stream.hpp"
#include "rollout/policy.hpp"

namespace accord::rollout {

// What the launches of a graph depend on, other than addresses.
struct GraphKey {
  enum class Part : uint8_t { kForward, kHead };
  Part part = Part::kForward;
  int64_t rows = 0;
  int32_t splits = 0;   // CudaModel::decode_splits
  bool record = false;  // the experts' ids are kept

  auto operator<=>(const GraphKey&) const = default;  // NOLINT: its 0 is no pointer
};

class GraphCache {
 public:
  explicit GraphCache(const Stream& stream) : stream_(stream) {}

  // Does what `launches` submits to the stream. A key's first time they run plainly, which loads their
  // kernels; then they are captured, and the graph is launched from there on. `addresses`: all that the
  // launches get; where one of them has changed, every graph is dropped and captured again. Errors: launches'
  // own; that a capture failed, with its cause.
  Status run(const GraphKey& key, const std::vector<const void*>& addresses,
             const std::function<Status()>& launches);

  GraphCounts take_counts();

 private:
  Status drop();

  const Stream& stream_;
  std::vector<const void*> addresses_;
  std::set<GraphKey> seen_;
  std::map<GraphKey, Graph> graphs_;
  GraphCounts counts_;
};

}  // namespace accord::rollout
