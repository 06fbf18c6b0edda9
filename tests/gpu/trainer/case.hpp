#pragma once
// A trainer of one of the small checkpoints on a device, with its arena there, as a worker has them.
#include <cstdint>
#include <functional>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "device/memory.hpp"
#include "device/thread_pool.hpp"
#include "device_policy.hpp"
#include "gpu.hpp"
#include "trainer/trainer.hpp"

namespace gpu_test {

using Tensors = std::map<std::string, std::vector<float>>;

// What a step left.
struct TrainedStep {
  accord::trainer::StepReport report;
  Tensors gradients;
  Tensors masters;
};

class TrainerCase {
 public:
  // `model`: a folder of tests/data/hf, where latent attention is plain, or with " absorbed" after it. Every
  // weight that may be quantized has `format`.
  TrainerCase(const Gpu& gpu, accord::DeviceId device, const std::string& model, accord::WeightFormat format,
              const accord::trainer::TrainerOptions& options);
  // With a plan for the model's weights.
  using MakePlan = std::function<accord::precision::PrecisionPlan(const accord::ModelConfig& config)>;
  TrainerCase(const Gpu& gpu, accord::DeviceId device, const std::string& model, const MakePlan& plan,
              const accord::trainer::TrainerOptions& options);

  accord::trainer::Trainer& trainer() { return *trainer_; }
  const accord::ModelConfig& config() const { return config_; }
  const accord::precision::PrecisionPlan& plan() const { return plan_; }
  const accord::WeightManifest& manifest() const { return manifest_; }
  const accord::Memory& arena() const { return arena_; }  // on a device
  bool decays(const accord::ParamSpec& spec) const;
  // Masters into the arena: those of this rank, or of all ranks of a pool, and bf16(master) is not shared.
  void export_weights();
  void export_weights(const std::vector<TrainerCase*>& ranks);
  TrainedStep step(const std::vector<accord::trainer::TrainSample>& samples, uint64_t step = 1);
  Tensors masters() const;  // of the tensors that this rank owns
  Tensors gradients() const;

 private:
  const Gpu& gpu_;
  accord::ModelConfig config_;
  accord::precision::PrecisionPlan plan_;
  accord::WeightManifest manifest_;
  accord::ThreadPool pool_;
  std::unique_ptr<accord::weights::Arena> host_;
  accord::Memory arena_;  // on a device
  std::unique_ptr<accord::trainer::Trainer> trainer_;
};

// GRPO with an entropy bonus and clipping of the gradient, in BF16.
accord::trainer::TrainerOptions trainer_options(accord::recipe::BackwardMode mode);

// Sequences of 1 to 130 rows with random tokens and advantages; log-probs of the sampler are close to those
// of `trainer`.
std::vector<accord::trainer::TrainSample> training_samples(accord::trainer::Trainer& trainer, int64_t vocab);

}  // namespace gpu_test
