#pragma once
// The loop of a run. What each phase consumes, produces and waits for:
//
//   phase     consumes                         produces                        waits for
//   start     model weights or a checkpoint    version 0 (or N) on every rank  trainer loads; broadcast acks
//   sft       sft records                      version 0                       trainer
//   rollout   prompts, version v               samples (held by rollout ranks) all rollout ranks
//   reward    response texts, labels           rewards, advantages             -
//   train     samples (fetched from holders)   masters, metrics                trainer
//   sync      masters                          version v+1 = Q(bf16(master))   trainer export; broadcast acks
//   eval      held-out prompts, version v+1    eval/<name>/pass1               all rollout ranks
//   commit    metrics                          metrics.jsonl, samples/, status -
//   save      masters, moments, HF weights     checkpoints/step_N              trainer
//
// Version N is what step N left behind. A step commits once, or never happened: an error leaves the run
// directory at the step before.
#include <memory>

#include "base/status.hpp"
#include "controller/pools.hpp"
#include "controller/run_directory.hpp"
#include "controller/run_inputs.hpp"
#include "controller/run_state.hpp"

namespace accord::controller {

struct LoopOptions {
  uint64_t resume_step = 0;  // 0: a fresh run
  std::string resume_dir;    // its checkpoint
  std::string build;         // goes into the ledger
};

class StepLoop {
 public:
  // All arguments must outlive the loop.
  StepLoop(const RunInputs& inputs, const Pools& pools, RunDirectory& directory, RunState& state,
           const LoopOptions& options);
  ~StepLoop();

  // Runs to the last step, or to the end of the step in which a stop was requested; then checkpoints.
  Status run();

 private:
  struct Impl;
  std::unique_ptr<Impl> impl_;
};

}  // namespace accord::controller
