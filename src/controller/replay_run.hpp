#pragma once
// A step of a finished or interrupted run, computed again from what the run recorded: its newest checkpoint
// before the step (or the model's weights) and the batches since (debug.dump_batches). Everything that the
// training produced is compared with the run's metrics and ledger, bit for bit.
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"

namespace accord::controller {

struct ReplayedValue {
  std::string name;  // train/loss, mismatch/equal_fraction
  double recorded = 0.0;
  double replayed = 0.0;
  bool equal() const;  // the same bits; both NaN; zeros of either sign, which JSON does not keep
};

struct TensorDifference {
  std::string name;
  std::string recorded;  // digest in the ledger; empty: it has no such tensor
  std::string replayed;
};

struct ReplayedStep {
  uint64_t step = 0;
  std::vector<ReplayedValue> values;  // none for the starting point
  size_t tensors = 0;                 // whose digests were compared, of the version that the step made
  std::vector<TensorDifference> differences;  // in manifest order
  bool equal() const;
};

struct ReplayedRun {
  std::string start;  // a checkpoint's directory, or the model's
  std::vector<ReplayedStep>
      steps;  // first the starting point (no values), then every step up to the one asked for
  bool equal() const;
};

// `overrides` are recipe keys (an experiment then shows as differences). Errors: kBadData or kIo when
// something that is needed was not recorded; the message says what.
StatusOr<ReplayedRun> replay_run(const std::string& run_dir, uint64_t step,
                                 const std::vector<std::string>& overrides);

}  // namespace accord::controller
