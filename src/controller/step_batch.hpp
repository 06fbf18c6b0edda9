#pragma once
// batches/step_000012.safetensors: everything that one step trains on, as `debug.dump_batches` records it
// before the training. B samples in the step's order (groups are consecutive), padded to T tokens:
//
//   input_ids            [B,T] I32     0 after total_len
//   prompt_len           [B] I32       total_len [B] I32
//   old_logprobs         [B,T-1] F32   the sampler's, of token t+1 in column t; 0 outside the response
//   sampling_logprobs    [B,T-1] F32   of the distribution drawn from, after top-k and top-p
//   routing              [B,T,L,k] I32 expert ids in the L MoE layers, where the samples carry them; -1 in
//   the
//                        rows that have none, from the last token on
//   rewards, penalties   [B] F64       the reward (penalty for overlong responses included; NaN: none came),
//                                      and that part
//   advantages           [B] F64
//   trained              [B] U8        0: left out by algorithm.filter_zero_std or reward.on_failure
//   truncated            [B] U8
//   prompt_id            [B] I64       sample_index [B] I32
//
// Metadata: step, weight_version, seed, samples_per_prompt, temperature, plan, manifest, build; with routing
// num_experts.
// `accord replay CKPT BATCH OUT` reads these files too.
#include <cstdint>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "controller/worker.hpp"

namespace accord::controller {

struct BatchSample {
  Sample sample;        // its weight_version is the batch's
  double reward = 0.0;  // NaN: it has none, and is not trained on
  double penalty = 0.0;
  double advantage = 0.0;
  bool trained = true;
};

// Of the samples' routing; zeros where they carry none.
struct RoutingShape {
  int64_t layers = 0;
  int64_t experts_per_token = 0;
  int64_t num_experts = 0;
  bool operator==(const RoutingShape&) const = default;
};

struct StepBatch {
  uint64_t step = 0;
  uint64_t weight_version = 0;  // that drew the samples
  uint64_t seed = 0;
  int64_t samples_per_prompt = 0;
  double temperature = 1.0;
  RoutingShape routing;
  std::string plan_digest;
  std::string manifest_digest;
  std::string build;
  std::vector<BatchSample> samples;  // at least one
};

inline constexpr char kBatchesDirectory[] = "batches";
std::string batch_file_name(uint64_t step);  // step_000012.safetensors

// Whole or not at all.
Status write_step_batch(const std::string& path, const StepBatch& batch);
// Errors: kBadData names the file, the tensor and the rule.
StatusOr<StepBatch> read_step_batch(const std::string& path);

// The file with the batch of a step: `source` itself, or its file of that step where it is a directory.
std::string batch_path(const std::string& source, uint64_t step);

// A holder of recorded samples (TrainSampleRef::holder), and what is behind it; empty: `holder` is an
// address.
std::string recorded_holder(const std::string& batch_path);
std::string recorded_path(const std::string& holder);

// Reads samples of recorded holders from their files, others through `next` (which may be empty).
FetchSamples fetch_recorded(FetchSamples next);

// The step's training: the samples that were trained on, with the advantages that were recorded.
TrainJob recorded_train_job(const StepBatch& batch, const std::string& path, Millis timeout);

}  // namespace accord::controller
