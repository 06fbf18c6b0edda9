#pragma once
// Launches and copies of one stream, recorded once and submitted again as a whole with one call.
//
// A graph holds addresses, sizes and everything else that the launches got by value; what lies at the
// addresses is read anew each time it runs. Whoever changes one of the recorded values drops the graph.
#include <functional>
#include <memory>

#include "base/status.hpp"
#include "device/device.hpp"
#include "device/stream.hpp"
#include "device/stream_handle.hpp"

namespace accord {

struct GraphDeleter {
  int device = 0;
  void operator()(GraphHandle graph) const;
};

class Graph {
 public:
  Graph() = default;  // empty
  // Records what `work` submits to `stream`; nothing of it runs. `work` must not wait, allocate or free, and
  // its kernels must have run before on the device. Errors: work's own; one that names the call with which
  // recording failed; on the CPU, which has no graphs.
  static StatusOr<Graph> capture(const Stream& stream, const std::function<Status()>& work);

  bool empty() const { return handle_ == nullptr; }
  // In stream order. The graph must outlive its work.
  Status launch(const Stream& stream) const;

 private:
  std::unique_ptr<CUgraphExec_st, GraphDeleter> handle_;
};

}  // namespace accord
