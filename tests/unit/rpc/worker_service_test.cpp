// The worker's port behind the controller's client: identity, pools, trajectories, errors on their way back.
#include "rpc/worker_service.hpp"

#include <grpcpp/grpcpp.h>

#include <bit>
#include <cstring>
#include <limits>
#include <map>
#include <mutex>
#include <optional>
#include <thread>

#include "rpc/grpc_status.hpp"
#include "rpc/worker_client.hpp"
#include "support/catch.hpp"

namespace accord::rpc {
namespace {

using namespace std::chrono_literals;

const Identity kIdentity{"run-a", 3};

// A value that the test and the service's threads share. The lock tells race detectors of the order that the
// calls give, which they cannot see inside gRPC.
template <class T>
class Shared {
 public:
  T get() const {
    const std::lock_guard lock(mutex_);
    return value_;
  }
  void set(T value) {
    const std::lock_guard lock(mutex_);
    value_ = std::move(value);
  }

 private:
  mutable std::mutex mutex_;
  T value_{};
};

// Remembers what it was asked.
class FakeRollout final : public controller::RolloutWorker {
 public:
  std::string address() const override { return ""; }
  StatusOr<controller::SetupReport> setup(const controller::SetupJob& job) override {
    setup_job.set(job);
    return data_error("model.safetensors: is truncated");
  }
  Status join(const controller::GroupJob&) override {
    std::this_thread::sleep_for(delay.get());
    return absl::OkStatus();
  }
  StatusOr<controller::SyncReport> sync(const controller::SyncJob& job) override {
    return controller::SyncReport{job.version, 77, 2};
  }
  StatusOr<controller::HeldWeights> held_weights() override {
    return controller::HeldWeights{std::nullopt, {{"model.norm.weight", "0123"}, {"lm_head.weight", "4567"}}};
  }
  Status generate(const controller::GenerateJob& job, const OnSample& on_sample) override {
    generate_job.set(job);
    for (uint32_t i = 0; i < 3; ++i) {
      on_sample({{job.step, 9, i}, 5, 4, 2, i == 1, "text"});
    }
    return absl::OkStatus();
  }
  StatusOr<std::vector<Sample>> fetch(std::span<const SampleKey> keys) override {
    const std::map<SampleKey, Sample> samples = held.get();
    std::vector<Sample> out;
    for (const SampleKey& key : keys) {
      const auto it = samples.find(key);
      if (it == samples.end()) {
        return data_error("rollout/0 does not hold sample {}", key.sample_index);
      }
      out.push_back(it->second);
    }
    return out;
  }
  Status release(uint64_t step) override {
    released.set(step);
    return absl::OkStatus();
  }

  Shared<std::chrono::milliseconds> delay;
  Shared<controller::SetupJob> setup_job;
  Shared<controller::GenerateJob> generate_job;
  Shared<std::map<SampleKey, Sample>> held;
  Shared<std::optional<uint64_t>> released;
};

struct Fixture {
  FakeRollout worker;
  WorkerService service{&worker, nullptr};
  std::unique_ptr<grpc::Server> server;
  std::string address;
  WaitList waits;
  Canceller canceller;

  explicit Fixture(bool registered = true) {
    if (registered) {
      service.set_identity(kIdentity);
    }
    grpc::ServerBuilder builder;
    int port = 0;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
    builder.RegisterService(&service);
    server = builder.BuildAndStart();
    REQUIRE(server);
    address = "127.0.0.1:" + std::to_string(port);
  }
  ~Fixture() { server->Shutdown(std::chrono::system_clock::now() + 1s); }

  std::unique_ptr<controller::RolloutWorker> client(const Identity& identity = kIdentity) {
    return make_rollout_client({"rollout/0", address, identity, 20s, 20s}, waits, canceller);
  }
  std::unique_ptr<controller::TrainerWorker> trainer_client() {
    return make_trainer_client({"trainer/0", address, kIdentity, 20s, 20s}, waits, canceller);
  }
};

bool contains(const Status& status, const std::string& part) {
  return std::string(message_of(status)).find(part) != std::string::npos;
}

Sample make_sample(uint32_t index, size_t tokens) {
  Sample sample;
  sample.key = {7, 9, index};
  sample.weight_version = 6;
  sample.prompt_length = 3;
  for (size_t i = 0; i < tokens; ++i) {
    sample.tokens.push_back(static_cast<int32_t>(i * 31 + index));
  }
  for (size_t i = 3; i < tokens; ++i) {
    sample.logprobs.push_back(-0.1F * static_cast<float>(i));
    sample.sampling_logprobs.push_back(-0.05F * static_cast<float>(i));
  }
  sample.finish = index % 2 == 0 ? FinishReason::kStop : FinishReason::kLength;
  return sample;
}

}  // namespace

TEST_CASE("a worker refuses calls of another run or epoch before they reach it") {
  Fixture f;
  for (const Identity& wrong : {Identity{"run-b", 3}, Identity{"run-a", 2}, Identity{}}) {
    CAPTURE(wrong.run_id, wrong.epoch);
    const auto stub = v1::Worker::NewStub(make_channel(f.address));
    grpc::ClientContext context;
    attach_identity(context, wrong);
    v1::ReleaseReply reply;
    const grpc::Status answer = stub->Release(&context, v1::ReleaseRequest(), &reply);
    CHECK(answer.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    CHECK(answer.error_message().find("run-a") != std::string::npos);
    const auto client = f.client(wrong);
    CHECK_FALSE(client->release(1).ok());
    CHECK_FALSE(client->generate({}, [](const controller::SampleSummary&) {}).ok());
    CHECK_FALSE(client->setup({}).ok());
    CHECK_FALSE(client->sync({}).ok());
    CHECK_FALSE(client->join({}).ok());
    CHECK_FALSE(client->fetch({}).ok());
  }
  CHECK_FALSE(f.worker.released.get());
  CHECK(f.worker.generate_job.get().num_samples == 1);  // untouched
  REQUIRE(f.client()->release(4).ok());
  CHECK(f.worker.released.get() == 4);
}

TEST_CASE("a worker that has not registered refuses every call") {
  Fixture f(/*registered=*/false);
  const Status status = f.client(Identity{})->release(1);
  CHECK_FALSE(status.ok());
  CHECK(contains(status, "not registered"));
  CHECK_FALSE(f.worker.released.get());
}

TEST_CASE("a rollout worker refuses a trainer's calls") {
  Fixture f;
  const auto trainer = f.trainer_client();
  CHECK(contains(trainer->export_weights({1, controller::Millis(10000)}).status(), "Export"));
  CHECK(contains(trainer->train({1, 0, {}, 20s}).status(), "Train"));
  CHECK(contains(trainer->sft({1, {}, 20s}).status(), "Sft"));
  CHECK(contains(trainer->save({"somewhere", true, 20s}), "Save"));
}

TEST_CASE("an error keeps its text and exit code on its way back") {
  Fixture f;
  const auto report = f.client()->setup({"recipe", "plan", "manifest", "dir"});
  REQUIRE_FALSE(report.ok());
  CHECK(exit_code(report.status()) == ExitCode::kBadData);
  CHECK(std::string(message_of(report.status())) == "Setup on rollout/0: model.safetensors: is truncated");
  CHECK(f.worker.setup_job.get().recipe_yaml == "recipe");
  CHECK(f.worker.setup_job.get().plan_digest == "plan");
  CHECK(f.worker.setup_job.get().manifest_digest == "manifest");
  CHECK(f.worker.setup_job.get().resume_dir == "dir");
}

TEST_CASE("a generate job and its summaries pass unchanged") {
  Fixture f;
  controller::GenerateJob job;
  job.step = 12;
  job.prompts = {{7, {1, 2, 3}, "label"}, {std::numeric_limits<uint64_t>::max(), {4}, ""}};
  job.first_sample = {0, 4};
  job.num_samples = 4;
  job.sampling = {0.7F, 0.9F, 40, 128, {258, 1}, {"\n\n", "stop"}};
  job.keep = true;
  job.timeout = 20s;
  std::vector<controller::SampleSummary> summaries;
  REQUIRE(
      f.client()->generate(job, [&](const controller::SampleSummary& s) { summaries.push_back(s); }).ok());
  const controller::GenerateJob got = f.worker.generate_job.get();
  CHECK(got.step == 12);
  REQUIRE(got.prompts.size() == 2);
  CHECK(got.prompts[0].tokens == std::vector<int32_t>{1, 2, 3});
  CHECK(got.prompts[0].label.empty());  // labels stay with the controller
  CHECK(got.prompts[1].id == std::numeric_limits<uint64_t>::max());
  CHECK(got.first_sample == job.first_sample);
  CHECK(got.num_samples == 4);
  CHECK(got.keep);
  CHECK(std::bit_cast<uint32_t>(got.sampling.temperature) == std::bit_cast<uint32_t>(0.7F));
  CHECK(std::bit_cast<uint32_t>(got.sampling.top_p) == std::bit_cast<uint32_t>(0.9F));
  CHECK(got.sampling.top_k == 40);
  CHECK(got.sampling.max_new_tokens == 128);
  CHECK(got.sampling.stop_tokens == job.sampling.stop_tokens);
  CHECK(got.sampling.stop_strings == job.sampling.stop_strings);

  REQUIRE(summaries.size() == 3);
  CHECK(summaries[2].key == SampleKey{12, 9, 2});
  CHECK(summaries[2].weight_version == 5);
  CHECK(summaries[2].prompt_length == 4);
  CHECK(summaries[2].response_length == 2);
  CHECK(summaries[1].truncated);
  CHECK_FALSE(summaries[2].truncated);
  CHECK(summaries[0].response_text == "text");
}

TEST_CASE("what a worker holds arrives as it said, and a missed deadline names its key") {
  Fixture f;
  const auto held = f.client()->held_weights();
  REQUIRE(held.ok());
  CHECK_FALSE(held->version);
  REQUIRE(held->tensors.size() == 2);
  CHECK(held->tensors[1].name == "lm_head.weight");
  CHECK(held->tensors[1].digest == "4567");

  const grpc::Status late(grpc::StatusCode::DEADLINE_EXCEEDED, "late");
  CHECK(
      contains(from_grpc(late, "Train of step 1 on trainer/0", "deadlines.train"), "raise deadlines.train"));
  f.worker.delay.set(500ms);
  controller::GroupJob job{controller::GroupRole::kWeights, "weights", 0, 1, controller::Millis(50)};
  CHECK(contains(f.client()->join(job), "raise deadlines.register"));
}

TEST_CASE("trajectories arrive complete and in order, over many chunks") {
  Fixture f;
  std::vector<SampleKey> keys;
  std::map<SampleKey, Sample> held;
  for (uint32_t i = 0; i < 40; ++i) {
    Sample sample = make_sample(39 - i, 5000 + i);  // 40 x 5000 tokens are four chunks
    keys.push_back(sample.key);
    held[sample.key] = std::move(sample);
  }
  held[keys[3]].logprobs[0] = std::numeric_limits<float>::denorm_min();
  held[keys[3]].logprobs[1] = -std::numeric_limits<float>::infinity();
  held[keys[3]].logprobs[2] = std::bit_cast<float>(0x7fc01234U);  // a NaN with a payload
  f.worker.held.set(held);
  const controller::FetchSamples fetch = make_sample_fetcher(kIdentity, 20s);
  const auto got = fetch(f.address, keys);
  REQUIRE(got.ok());
  REQUIRE(got->size() == keys.size());
  for (size_t i = 0; i < keys.size(); ++i) {
    const Sample& sample = (*got)[i];
    const Sample& expected = held[keys[i]];
    CAPTURE(i);
    CHECK(sample.key == keys[i]);
    CHECK(sample.weight_version == 6);
    CHECK(sample.prompt_length == 3);
    CHECK(sample.finish == expected.finish);
    CHECK(sample.tokens == expected.tokens);
    REQUIRE(sample.logprobs.size() == expected.logprobs.size());
    CHECK(std::memcmp(sample.logprobs.data(), expected.logprobs.data(), expected.logprobs.size() * 4) == 0);
  }
  const SampleKey unknown{7, 9, 99};
  const auto missing = fetch(f.address, {&unknown, 1});
  CHECK(exit_code(missing.status()) == ExitCode::kBadData);
  CHECK(contains(missing.status(), "does not hold sample 99"));
}

TEST_CASE("a cancelled run ends its calls, and starts no new ones") {
  Fixture f;
  f.canceller.cancel_all();
  const Status status = f.client()->release(1);
  CHECK(exit_code(status) == ExitCode::kUnavailable);
  CHECK(contains(status, "cancelled"));
  CHECK_FALSE(f.worker.released.get());
}

}  // namespace accord::rpc
