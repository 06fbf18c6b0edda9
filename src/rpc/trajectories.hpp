#pragma once
// Trajectories on the wire: chunks of about 1 MiB. One that does not fit in the rest of a chunk is cut, and
// its pieces follow each other; each piece appends to the lists of the one before.
#include <cstddef>
#include <functional>
#include <vector>

#include "accord/v1/worker.pb.h"
#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord::rpc {

inline constexpr size_t kChunkBytes = size_t{1} << 20;

class TrajectoryWriter {
 public:
  // `send` gets each chunk and says whether the stream still stands.
  using Send = std::function<bool(const v1::TrajectoryChunk&)>;
  explicit TrajectoryWriter(Send send, size_t chunk_bytes = kChunkBytes);

  // False once the stream is broken.
  bool add(const Sample& sample);
  bool finish();  // sends what is left

 private:
  bool flush();

  const Send send_;
  const size_t chunk_bytes_;
  v1::TrajectoryChunk chunk_;
  size_t used_ = 0;
};

class TrajectoryReader {
 public:
  // Errors: a piece that does not continue the trajectory before it.
  Status add(const v1::TrajectoryChunk& chunk);
  // The trajectories in the order they were written. Error: the last one is not whole.
  StatusOr<std::vector<Sample>> finish();

 private:
  std::vector<Sample> samples_;
  bool open_ = false;  // the last sample continues
};

}  // namespace accord::rpc
