#pragma once
// What the step loop asks of pool members. Implemented twice: by the workers themselves (rollout_worker,
// trainer_worker) and by the rpc room, which carries the calls to another process.
#include <chrono>
#include <cstdint>
#include <functional>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"

namespace accord::controller {

using Millis = std::chrono::milliseconds;

struct SetupJob {
  std::string recipe_yaml;  // resolved
  std::string plan_digest;  // the controller's; a worker that computes another one refuses
  std::string manifest_digest;
  std::string resume_dir;  // trainer: a checkpoint's directory; empty: start from the model's weights
};

struct SetupReport {
  std::string device;      // for people: cpu, cuda:0 NVIDIA H200
  std::string arithmetic;  // of the device (Device::arithmetic), and what else computes products
  int64_t arena_bytes = 0;
  int32_t threads = 0;
};

// What a communicator group is for.
enum class GroupRole : uint8_t {
  kWeights,   // all workers, trainers first: weight updates
  kTrainers,  // the trainer pool: gradients, arenas, training state
  kExperts,   // the trainers that share one set of experts
};

// Membership in a communicator group. Group names are unique per epoch.
struct GroupJob {
  GroupRole role = GroupRole::kWeights;
  std::string group;
  int32_t rank = 0;
  int32_t size = 0;
  Millis timeout{0};
};

struct TensorRecord {
  std::string name;
  std::string digest;
  double amax = 0.0;
  double saturated = 0.0;  // shares of the tensor's elements
  double flushed = 0.0;
};

struct SyncJob {
  uint64_t version = 0;
  std::string manifest_digest;
  Millis timeout{0};
};

struct SyncReport {
  uint64_t version = 0;  // the version that is served from now on
  int64_t bytes = 0;
  int32_t attempts = 0;
};

// What an arena holds now, digested anew.
struct HeldWeights {
  std::optional<uint64_t> version;  // none: no whole version, or masters that are ahead of the arena
  struct Tensor {
    std::string name;
    std::string digest;
  };
  std::vector<Tensor> tensors;  // manifest order
};

struct GenerateJob {
  uint64_t step = 0;            // part of every sample's identity
  std::vector<Prompt> prompts;  // labels stay with the controller
  // [prompts] sample index of each prompt's first sample: a prompt that comes twice in a step (its batch
  // straddles two epochs) must not draw the same samples twice.
  std::vector<uint32_t> first_sample;
  int32_t num_samples = 1;
  SamplingParams sampling;
  bool keep = false;  // hold the trajectories until release()
  Millis timeout{0};
};

// What the controller learns of a sample; the tokens stay with their holder.
struct SampleSummary {
  SampleKey key;
  uint64_t weight_version = 0;
  int32_t prompt_length = 0;
  int32_t response_length = 0;
  bool truncated = false;
  std::string response_text;
};

struct TrainSampleRef {
  SampleKey key;
  std::string holder;  // address of the rollout worker that has the trajectory
  int32_t num_tokens = 0;
  int32_t response_length = 0;
  double advantage = 0.0;
  int32_t rank = 0;  // the trainer that trains on it
};

// Every trainer gets the whole list, from which it knows the sizes of the batch.
struct TrainJob {
  uint64_t step = 0;
  uint64_t weight_version = 0;
  std::vector<TrainSampleRef> samples;
  Millis timeout{0};
};

struct SftSample {
  std::vector<int32_t> tokens;
  int32_t prompt_length = 0;
};

// Every trainer gets the whole batch and trains on its share.
struct SftJob {
  uint64_t step = 0;
  std::vector<SftSample> samples;
  Millis timeout{0};
};

struct ExportJob {
  uint64_t version = 0;
  Millis timeout{0};
};

struct SaveJob {
  std::string directory;  // the checkpoint's temporary directory
  bool save_hf = true;
  Millis timeout{0};
};

// Members of both pools.
class Worker {
 public:
  virtual ~Worker() = default;
  virtual std::string address() const = 0;
  virtual StatusOr<SetupReport> setup(const SetupJob& job) = 0;
  virtual Status join(const GroupJob& job) = 0;
  // One end of the weight broadcast: the trainer sends, rollout workers receive and verify.
  virtual StatusOr<SyncReport> sync(const SyncJob& job) = 0;
  virtual StatusOr<HeldWeights> held_weights() = 0;
};

class RolloutWorker : public Worker {
 public:
  using OnSample = std::function<void(const SampleSummary&)>;
  virtual Status generate(const GenerateJob& job, const OnSample& on_sample) = 0;
  virtual StatusOr<std::vector<Sample>> fetch(std::span<const SampleKey> keys) = 0;
  virtual Status release(uint64_t step) = 0;  // forgets the trajectories of this step and older ones
};

// With several trainers every call is collective: all of them get it at the same time, and when one fails its
// groups close, so that the others fail too. Metrics and records are the same on all.
class TrainerWorker : public Worker {
 public:
  // Quantizes the masters into the arena as `version`; the records, of all tensors, go to the ledger.
  virtual StatusOr<std::vector<TensorRecord>> export_weights(const ExportJob& job) = 0;
  virtual StatusOr<Metrics> train(const TrainJob& job) = 0;
  virtual StatusOr<Metrics> sft(const SftJob& job) = 0;
  virtual Status save(const SaveJob& job) = 0;
};

// How a trainer reaches the rollout worker at an address.
using FetchSamples =
    std::function<StatusOr<std::vector<Sample>>(const std::string& holder, std::span<const SampleKey>)>;

}  // namespace accord::controller
