#pragma once
// A trainer over one of the small checkpoints of tests/data/hf, with its arena. With several ranks it is one
// of them, whose arena is not filled yet.
#include <functional>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "checkpoint/hf_checkpoint.hpp"
#include "checkpoint/safetensors.hpp"
#include "device/thread_pool.hpp"
#include "precision/plan.hpp"
#include "support/catch.hpp"
#include "trainer/trainer.hpp"
#include "weights/arena.hpp"

namespace accord::trainer {

// Fails the test where there is none.
template <class T>
T value_of(StatusOr<T> result) {
  INFO(std::string(message_of(result.status())));
  REQUIRE(result.ok());
  return std::move(result).value();
}

// Of the small mixture of experts.
ModelConfig moe_config();

class Fixture {
 public:
  Fixture(const std::string& model, const TrainerOptions& options,
          const recipe::PrecisionPart& precision = {}, int threads = 2);

  void export_weights();  // masters into the arena
  void export_weights(const std::function<std::span<const float>(const std::string&)>& master);

  std::string dir;
  ModelConfig config;
  precision::PrecisionPlan plan;
  WeightManifest manifest;
  ThreadPool pool;
  std::unique_ptr<weights::Arena> arena;
  std::unique_ptr<Trainer> trainer;
};

std::vector<float> values_of(const StateTensor& tensor);

// MXFP8 in every weight that may have it.
recipe::PrecisionPart mxfp8_everywhere();

// The recorded batch of golden.safetensors, advantages by kStd over `group_size`.
std::vector<TrainSample> recorded_samples(const std::string& model, int64_t group_size);

std::vector<float> read_tensor(const checkpoint::SafetensorsFile& file, const std::string& name);

}  // namespace accord::trainer
