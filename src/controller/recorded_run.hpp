#pragma once
// Reading back what a run directory says about a step: its line of the metrics, its version in the ledger.
#include <cstdint>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord::controller {

struct RecordedVersion {
  uint64_t version = 0;
  std::string plan_digest;
  std::string manifest_digest;
  std::string build;
  struct Tensor {
    std::string name;
    std::string digest;
  };
  std::vector<Tensor> tensors;
};

// The last record of `version`. Errors: kIo; kBadData when there is none, or a line is no record.
StatusOr<RecordedVersion> read_ledger_version(const std::string& path, uint64_t version);

// The metrics of one step. Errors: as above.
StatusOr<Metrics> read_step_metrics(const std::string& path, uint64_t step);

}  // namespace accord::controller
