#pragma once
// Trainer ranks as threads of one process, each with its fixture, joined by a communicator.
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/communicator.hpp"
#include "unit/trainer/fixture.hpp"

namespace accord::trainer {

// Calls body(rank, communicator) in one thread per rank of a group. Catch's macros stay in the main thread.
std::vector<Status> run_ranks(int32_t size,
                              const std::function<Status(int32_t rank, Communicator& communicator)>& body);

// Every weight in `format`.
recipe::PrecisionPart everywhere(WeightFormat format);

// `count` recorded samples of different lengths, prompts repeated.
std::vector<TrainSample> uneven_samples(size_t count);

// |mine - reference| / |reference|
double relative_frobenius(const std::vector<float>& mine, const std::vector<float>& reference);

class RankPool {
 public:
  RankPool(const std::string& model, const TrainerOptions& options, int32_t size,
           const recipe::PrecisionPart& precision = {});

  int32_t size() const { return static_cast<int32_t>(ranks.size()); }
  // One call on every rank, with a fresh group, and fresh expert groups.
  std::vector<Status> run(const std::function<Status(int32_t rank, Trainer& trainer)>& body);

  // Every rank's report of a step on its share of the samples. `assigned`: the rank of each sample.
  struct Step {
    std::vector<Status> statuses;
    std::vector<StepReport> reports;
    std::vector<std::vector<float>> logprobs;  // per sample of the step
  };
  Step train(const std::vector<TrainSample>& samples, const std::vector<int32_t>& assigned, uint64_t step);
  Step train(const std::vector<TrainSample>& samples, uint64_t step);  // balanced
  std::vector<Metrics> sft(const std::vector<SftSample>& samples, uint64_t step);

  // Masters into every rank's arena, and originals to those who need them. Experts that a rank does not hold
  // are NaN there.
  void export_weights();

  // Of the owner.
  Trainer& owner(const std::string& name);
  std::vector<float> masters();    // canonical order
  std::vector<float> gradients();  // the same

  const int32_t expert_parallel;
  std::vector<std::unique_ptr<Fixture>> ranks;
};

}  // namespace accord::trainer
