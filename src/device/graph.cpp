#include "device/graph.hpp"

#include "device/backend.hpp"

namespace accord {

void GraphDeleter::operator()(GraphHandle graph) const { backend::destroy_graph(device, graph); }

StatusOr<Graph> Graph::capture(const Stream& stream, const std::function<Status()>& work) {
  if (stream.handle() == nullptr) return internal_error("a graph of the CPU's stream");
  ACCORD_RETURN_IF_ERROR(backend::begin_capture(stream.handle()));
  const Status status = work();
  StatusOr<GraphHandle> handle = backend::end_capture(stream.handle());
  Graph graph;
  if (handle.ok()) graph.handle_ = {*handle, GraphDeleter{stream.device().index}};
  ACCORD_RETURN_IF_ERROR(status);  // the cause, where both failed
  ACCORD_RETURN_IF_ERROR(handle.status());
  return graph;
}

Status Graph::launch(const Stream& stream) const {
  if (empty()) return internal_error("an empty graph was launched");
  return backend::launch_graph(handle_.get(), stream.handle());
}

}  // namespace accord
