#pragma once
// metrics.jsonl: one JSON object per line and step, "step" first, then the metrics in ascending order.
//
//   {"step":3,"rollout/reward_mean":0.25,"train/grad_norm":"NaN"}
//
// Doubles are written in the shortest form that reads back to the same bits. JSON has no non-finite
// numbers, so these are the strings "NaN", "Infinity" and "-Infinity"; they are never left out or made 0.
#include <cstdint>
#include <memory>
#include <string>

#include "base/files.hpp"
#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord::telemetry {

// One line without its newline. A metric called "step" is an error.
StatusOr<std::string> format_metrics_line(int64_t step, const Metrics& metrics);

class MetricsWriter {
 public:
  // Opens `path` to append. Lines of steps beyond `last_step` (the step that a resumed run continues from;
  // -1 for a fresh run) are removed first, as are lines that are no metrics (a write that a crash cut off);
  // the log says how many. Errors: kIo.
  static StatusOr<std::unique_ptr<MetricsWriter>> open(const std::string& path, int64_t last_step);

  // Appends one line and hands it to the operating system. Steps must ascend. Errors: kInternal, kIo.
  Status write(int64_t step, const Metrics& metrics);

 private:
  MetricsWriter(std::string path, FileDescriptor fd, int64_t last_step);

  std::string path_;
  FileDescriptor fd_;
  int64_t last_step_;
};

}  // namespace accord::telemetry
