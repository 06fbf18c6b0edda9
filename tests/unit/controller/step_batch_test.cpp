#include "controller/step_batch.hpp"

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <limits>
#include <string>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::controller;

namespace {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "accord-XXXXXX").string();
    REQUIRE(::mkdtemp(name.data()) != nullptr);
    path_ = name;
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  TempDir(const TempDir&) = delete;
  TempDir& operator=(const TempDir&) = delete;
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

StepBatch example() {
  StepBatch batch;
  batch.step = 12;
  batch.weight_version = 11;
  batch.seed = std::numeric_limits<uint64_t>::max();
  batch.samples_per_prompt = 2;
  batch.temperature = 0.1;
  batch.plan_digest = "plan";
  batch.manifest_digest = "manifest";
  batch.build = "build 1";
  for (uint32_t i = 0; i < 4; ++i) {
    BatchSample& s = batch.samples.emplace_back();
    s.reward = 0.1 * i;
    s.penalty = -0.3 * i;
    s.advantage = 1.0 / 3.0 - i;
    s.trained = i < 2;
    s.sample.key = {12, 40 + i / 2, i % 2};
    s.sample.weight_version = 11;
    s.sample.prompt_length = static_cast<int32_t>(1 + i / 2);
    s.sample.finish = i == 3 ? FinishReason::kLength : FinishReason::kStop;
    for (uint32_t t = 0; t < static_cast<uint32_t>(s.sample.prompt_length) + i + 1; ++t) {
      s.sample.tokens.push_back(static_cast<int32_t>(100 * i + t));
    }
    for (uint32_t t = 0; t < i + 1; ++t) {
      s.sample.logprobs.push_back(-0.7F - static_cast<float>(t));
      s.sample.sampling_logprobs.push_back(-0.6F - static_cast<float>(t));
    }
  }
  return batch;
}

}  // namespace

TEST_CASE("a batch reads back as it was written") {
  const TempDir dir;
  const std::string path = dir.file(batch_file_name(12));
  CHECK(path.ends_with("/step_000012.safetensors"));
  const StepBatch batch = example();
  REQUIRE(write_step_batch(path, batch).ok());
  const StatusOr<StepBatch> read = read_step_batch(path);
  REQUIRE(read.ok());
  CHECK(read->step == 12);
  CHECK(read->weight_version == 11);
  CHECK(read->seed == batch.seed);
  CHECK(read->samples_per_prompt == 2);
  CHECK(read->temperature == 0.1);
  CHECK(read->plan_digest == "plan");
  CHECK(read->manifest_digest == "manifest");
  CHECK(read->build == "build 1");
  REQUIRE(read->samples.size() == 4);
  for (size_t i = 0; i < 4; ++i) {
    CAPTURE(i);
    const BatchSample& a = batch.samples[i];
    const BatchSample& b = read->samples[i];
    CHECK(a.reward == b.reward);
    CHECK(a.penalty == b.penalty);
    CHECK(a.advantage == b.advantage);
    CHECK(a.trained == b.trained);
    CHECK(a.sample.key == b.sample.key);
    CHECK(a.sample.weight_version == b.sample.weight_version);
    CHECK(a.sample.tokens == b.sample.tokens);
    CHECK(a.sample.prompt_length == b.sample.prompt_length);
    CHECK(a.sample.finish == b.sample.finish);
    CHECK(a.sample.logprobs == b.sample.logprobs);
    CHECK(a.sample.sampling_logprobs == b.sample.sampling_logprobs);
  }
}

TEST_CASE("routing is recorded where the samples carry it") {
  const TempDir dir;
  const std::string path = dir.file("routing.safetensors");
  for (int64_t experts : {8, 1000}) {
    CAPTURE(experts);
    StepBatch batch = example();
    batch.routing = {3, 2, experts};
    for (BatchSample& s : batch.samples) {
      std::vector<int32_t> ids;
      for (size_t i = 0; i < (s.sample.tokens.size() - 1) * 6; ++i) {
        ids.push_back(static_cast<int32_t>((i * 37 + s.sample.tokens.size()) % static_cast<size_t>(experts)));
      }
      s.sample.routing = pack_expert_ids(ids, experts);
    }
    REQUIRE(write_step_batch(path, batch).ok());
    const StatusOr<StepBatch> read = read_step_batch(path);
    REQUIRE(read.ok());
    CHECK(read->routing == batch.routing);
    for (size_t i = 0; i < 4; ++i) CHECK(read->samples[i].sample.routing == batch.samples[i].sample.routing);
    batch.samples[2].sample.routing.bytes.pop_back();
    CHECK(std::string(message_of(write_step_batch(path, batch))).find("sample 2") != std::string::npos);
  }
  REQUIRE(write_step_batch(path, example()).ok());
  CHECK(read_step_batch(path)->routing == RoutingShape{});
}

TEST_CASE("recorded samples are fetched from their file and the rest from workers") {
  const TempDir dir;
  const std::string path = dir.file("a.safetensors");
  const StepBatch batch = example();
  REQUIRE(write_step_batch(path, batch).ok());
  const TrainJob job = recorded_train_job(batch, path, Millis(5));
  REQUIRE(job.samples.size() == 2);  // of the group that was trained on
  CHECK(job.step == 12);
  CHECK(job.weight_version == 11);
  CHECK(job.samples[1].advantage == batch.samples[1].advantage);
  CHECK(recorded_path(job.samples[0].holder) == path);
  CHECK(recorded_path("127.0.0.1:80").empty());

  std::string asked;
  const FetchSamples fetch = fetch_recorded([&](const std::string& holder, std::span<const SampleKey>) {
    asked = holder;
    return StatusOr<std::vector<Sample>>(std::vector<Sample>());
  });
  const std::vector<SampleKey> keys = {batch.samples[3].sample.key, batch.samples[0].sample.key};
  const auto samples = fetch(recorded_holder(path), keys);
  REQUIRE(samples.ok());
  REQUIRE(samples->size() == 2);
  CHECK((*samples)[0].tokens == batch.samples[3].sample.tokens);
  CHECK((*samples)[1].logprobs == batch.samples[0].sample.logprobs);
  CHECK(asked.empty());
  REQUIRE(fetch("127.0.0.1:80", keys).ok());
  CHECK(asked == "127.0.0.1:80");

  const std::vector<SampleKey> unknown = {{12, 99, 0}};
  const auto missing = fetch(recorded_holder(path), unknown);
  CHECK(exit_code(missing.status()) == ExitCode::kBadData);
  CHECK(std::string(message_of(missing.status())).find("prompt 99") != std::string::npos);
}

TEST_CASE("a batch that cannot be right is refused with the file's name") {
  const TempDir dir;
  const std::string path = dir.file("a.safetensors");
  const auto error_of = [&](const StepBatch& batch) {
    CHECK(write_step_batch(path, batch).ok());
    const StatusOr<StepBatch> read = read_step_batch(path);
    CHECK(exit_code(read.status()) == ExitCode::kBadData);
    const std::string message(message_of(read.status()));
    CHECK(message.find(path) != std::string::npos);
    return message;
  };
  StepBatch batch = example();
  batch.samples_per_prompt = 3;
  CHECK(error_of(batch).find("groups of 3") != std::string::npos);
  batch = example();
  batch.samples[1].reward = std::nan("");
  CHECK(error_of(batch).find("sample 1 has reward nan") != std::string::npos);
  batch = example();
  batch.samples[2].reward = std::numeric_limits<double>::infinity();
  CHECK(error_of(batch).find("sample 2 has reward inf") != std::string::npos);
  batch = example();
  batch.samples[2].reward = std::nan("");  // not trained on: none came
  CHECK(write_step_batch(path, batch).ok());
  const StatusOr<StepBatch> failed = read_step_batch(path);
  REQUIRE(failed.ok());
  CHECK(std::isnan(failed->samples[2].reward));
  batch = example();
  batch.samples.clear();
  CHECK(!write_step_batch(dir.file("b.safetensors"), batch).ok());
  CHECK(!std::filesystem::exists(dir.file("b.safetensors")));
  CHECK(exit_code(read_step_batch(dir.file("none.safetensors")).status()) == ExitCode::kIo);
}
