#include "controller/trainer_pool.hpp"

#include <limits>
#include <numeric>

#include "support/catch.hpp"

namespace accord::controller {
namespace {

// Answers every call with what it was made with, and remembers the groups it was asked to join.
class FakeTrainer final : public TrainerWorker {
 public:
  explicit FakeTrainer(StatusOr<Metrics> answer) : answer_(std::move(answer)) {}

  std::string address() const override { return ""; }
  StatusOr<SetupReport> setup(const SetupJob&) override { return SetupReport{}; }
  Status join(const GroupJob& job) override {
    groups.push_back(job);
    return absl::OkStatus();
  }
  StatusOr<HeldWeights> held_weights() override { return HeldWeights{}; }
  StatusOr<SyncReport> sync(const SyncJob&) override { return SyncReport{}; }
  StatusOr<std::vector<TensorRecord>> export_weights(const ExportJob&) override {
    return std::vector<TensorRecord>{};
  }
  StatusOr<Metrics> train(const TrainJob&) override { return answer_; }
  StatusOr<Metrics> sft(const SftJob&) override { return answer_; }
  Status save(const SaveJob&) override { return absl::OkStatus(); }

  std::vector<GroupJob> groups;

 private:
  StatusOr<Metrics> answer_;
};

Pools pools_of(std::vector<StatusOr<Metrics>> answers) {
  Pools pools;
  for (StatusOr<Metrics>& answer : answers) {
    pools.trainer.push_back(std::make_unique<FakeTrainer>(std::move(answer)));
  }
  return pools;
}

StatusOr<Metrics> train(const Pools& pools) {
  return on_all_trainers(pools, [](TrainerWorker& trainer) { return trainer.train({}); });
}

recipe::Recipe recipe_of(int64_t workers, int64_t places, int64_t updates = 1) {
  recipe::Recipe recipe;
  recipe.trainer.workers = workers;
  recipe.trainer.expert_parallel = places;
  recipe.trainer.updates_per_step = updates;
  recipe.rollout.samples_per_prompt = 2;
  return recipe;
}

bool mentions(const Status& status, const char* text) {
  return std::string(message_of(status)).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("pools whose workers compute differently are refused and both are named") {
  Pools pools = pools_of({Metrics{}, Metrics{}});
  const SetupReport h200{"cuda:0 NVIDIA H200", "sm_90", 1, 1};
  CHECK(check_arithmetic(pools, std::vector<SetupReport>{h200, h200}).ok());
  const Status mixed = check_arithmetic(pools, std::vector<SetupReport>{h200, {"cpu", "cpu", 1, 1}});
  CHECK(exit_code(mixed) == ExitCode::kBadRecipe);
  for (const char* part : {"trainer/0", "cuda:0 NVIDIA H200", "sm_90", "trainer/1", "(cpu)", "--device"}) {
    CAPTURE(part);
    CHECK(mentions(mixed, part));
  }
}

TEST_CASE("trainers that agree give one answer, a NaN included") {
  const double nan = std::numeric_limits<double>::quiet_NaN();
  const Metrics answer{{"train/loss", 0.5}, {"train/entropy", nan}};
  const StatusOr<Metrics> got = train(pools_of({answer, answer, answer}));
  REQUIRE(got.ok());
  CHECK(same_answer(*got, answer));
}

TEST_CASE("a trainer that answers otherwise is named") {
  const Metrics answer{{"train/loss", 0.5}};
  const std::vector<Metrics> others{{{"train/loss", 0.5000000001}}, {}, {{"train/grad_norm", 0.5}}};
  for (const Metrics& other : others) {
    CHECK(mentions(train(pools_of({answer, answer, other})).status(), "trainer/2 and trainer/0"));
  }
}

TEST_CASE("the failure with a cause is reported before the lost connections that it makes") {
  const Status lost = unavailable_error("connection closed");
  const Status cause = data_error("step 3: the loss is not finite");
  CHECK(train(pools_of({lost, lost, cause, lost})).status() == cause);
  CHECK(train(pools_of({cause, lost})).status() == cause);
  CHECK(train(pools_of({Metrics{}, lost})).status() == lost);
}

TEST_CASE("groups: everybody, the trainers, and the trainers of one set of experts") {
  const Pools pools = pools_of(std::vector<StatusOr<Metrics>>(4, Metrics{}));
  REQUIRE(join_groups(pools, recipe_of(4, 2)).ok());
  for (int32_t rank = 0; rank < 4; ++rank) {
    const auto& groups = static_cast<FakeTrainer&>(*pools.trainer[static_cast<size_t>(rank)]).groups;
    REQUIRE(groups.size() == 3);
    CHECK((groups[0].role == GroupRole::kWeights && groups[0].rank == rank && groups[0].size == 4));
    CHECK((groups[1].role == GroupRole::kTrainers && groups[1].rank == rank && groups[1].size == 4));
    CHECK((groups[2].role == GroupRole::kExperts && groups[2].rank == rank % 2 && groups[2].size == 2));
    CHECK(groups[2].group == (rank < 2 ? "experts-0" : "experts-1"));
  }
  const Pools alone = pools_of({Metrics{}});
  REQUIRE(join_groups(alone, recipe_of(1, 0)).ok());
  CHECK(static_cast<FakeTrainer&>(*alone.trainer[0]).groups.size() == 1);
}

TEST_CASE("each update of a step is spread over the ranks by tokens") {
  std::vector<TrainSampleRef> samples(8);
  const int32_t tokens[] = {100, 10, 20, 70, 5, 5, 5, 5};
  for (size_t i = 0; i < samples.size(); ++i) {
    samples[i].num_tokens = tokens[i];
  }
  assign_ranks(recipe_of(2, 0, /*updates=*/2), 2, samples);
  std::vector<int32_t> ranks;
  for (const TrainSampleRef& sample : samples) {
    ranks.push_back(sample.rank);
  }
  // First update 100 | 70 + 20 + 10; second 5 + 5 | 5 + 5.
  CHECK(ranks == std::vector<int32_t>{0, 1, 1, 1, 0, 1, 0, 1});
}

}  // namespace accord::controller
