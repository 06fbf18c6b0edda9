#pragma once
// Saving a run and finding where to continue. checkpoints/step_N/ holds
//   hf/                        a Hugging Face directory of the policy (bf16 of the masters)
//   training_state-*           masters and moments, fp32 (training_state.hpp)
//   state.json                 step, seed, prompts consumed, optimizer steps, plan and manifest digests
//   recipe.yaml                as it was
#include "controller/pools.hpp"
#include "controller/run_directory.hpp"
#include "controller/run_inputs.hpp"
#include "controller/step_loop.hpp"
#include "weights/ledger.hpp"

namespace accord::controller {

inline constexpr char kHfDirectory[] = "hf";
inline constexpr char kRunStateFile[] = "state.json";

Status save_checkpoint(const RunInputs& inputs, const Pools& pools, RunDirectory& directory, uint64_t step,
                       uint64_t version);

// The newest checkpoint that verifies and belongs to this plan and seed; says which, and why newer ones were
// passed over. Without `resume`: a fresh start. With `resume` but no usable checkpoint: an error when the
// directory holds any, a fresh start when it holds none.
StatusOr<LoopOptions> find_resume_point(const RunInputs& inputs, const RunDirectory& directory, bool resume);

Status append_ledger(weights::Ledger& ledger, const RunInputs& inputs, const std::string& build,
                     uint64_t version, const std::vector<TensorRecord>& records);

}  // namespace accord::controller
