#include "rpc/worker_client.hpp"

#include <map>
#include <mutex>

#include "accord/v1/worker.grpc.pb.h"
#include "rpc/convert.hpp"
#include "rpc/grpc_status.hpp"
#include "rpc/trajectories.hpp"

namespace accord::rpc {
namespace {

using controller::Millis;

// One call: identity, deadline, named wait, cancellation.
class Call {
 public:
  // `key` of the recipe's deadlines is the one that `timeout` comes from.
  Call(const ClientOptions& options, WaitList& waits, Canceller& canceller, const std::string& what,
       Millis timeout, const char* key)
      : key_(std::string("deadlines.") + key),
        name_(what + " on " + options.name),
        wait_(&waits, name_, Deadline::after(timeout)),
        scope_(canceller, context_) {
    attach_identity(context_, options.identity);
    context_.set_deadline(std::chrono::system_clock::now() + timeout);
  }

  grpc::ClientContext* context() { return &context_; }
  Status result(const grpc::Status& status) const { return from_grpc(status, name_, key_); }

 private:
  const std::string key_;
  std::string name_;
  grpc::ClientContext context_;
  Wait wait_;
  Canceller::Scope scope_;
};

StatusOr<std::vector<Sample>> fetch_from(v1::Worker::Stub& stub, grpc::ClientContext& context,
                                         std::span<const SampleKey> keys, const std::string& name) {
  v1::FetchRequest request;
  for (const SampleKey& key : keys) {
    *request.add_keys() = to_proto(key);
  }
  TrajectoryReader trajectories;
  v1::TrajectoryChunk chunk;
  const auto reader = stub.Fetch(&context, request);
  Status joined;
  while (reader->Read(&chunk)) {
    if (joined.ok()) {
      joined = trajectories.add(chunk);
    }
  }
  ACCORD_RETURN_IF_ERROR(from_grpc(reader->Finish(), "Fetch from " + name));
  ACCORD_RETURN_IF_ERROR(annotate(joined, "Fetch from " + name));
  ACCORD_ASSIGN_OR_RETURN(std::vector<Sample> samples, trajectories.finish());
  if (samples.size() != keys.size()) {
    return internal_error("Fetch from {}: {} trajectories came for {} keys", name, samples.size(),
                          keys.size());
  }
  return samples;
}

// What both pools have in common. Base is controller::RolloutWorker or controller::TrainerWorker.
template <class Base>
class Client : public Base {
 public:
  Client(const ClientOptions& options, WaitList& waits, Canceller& canceller)
      : options_(options),
        waits_(waits),
        canceller_(canceller),
        channel_(make_channel(options.address)),
        stub_(v1::Worker::NewStub(channel_)) {}

  std::string address() const override { return options_.address; }

  StatusOr<controller::SetupReport> setup(const controller::SetupJob& job) override {
    v1::SetupRequest request;
    request.set_recipe_yaml(job.recipe_yaml);
    request.set_plan_digest(job.plan_digest);
    request.set_manifest_digest(job.manifest_digest);
    request.set_resume_dir(job.resume_dir);
    v1::SetupReply reply;
    await_connection(*channel_);
    Call call(options_, waits_, canceller_, "Setup", options_.setup_timeout, "checkpoint");
    ACCORD_RETURN_IF_ERROR(call.result(stub_->Setup(call.context(), request, &reply)));
    return controller::SetupReport{reply.device(), reply.arithmetic(), reply.arena_bytes(), reply.threads()};
  }

  Status join(const controller::GroupJob& job) override {
    v1::JoinReply reply;
    Call call(options_, waits_, canceller_, "Join of group " + job.group, job.timeout, "register");
    return call.result(stub_->Join(call.context(), to_proto(job), &reply));
  }

  StatusOr<controller::SyncReport> sync(const controller::SyncJob& job) override {
    v1::SyncRequest request;
    request.set_version(job.version);
    request.set_manifest_digest(job.manifest_digest);
    request.set_timeout_ms(job.timeout.count());
    v1::SyncReply reply;
    Call call(options_, waits_, canceller_, fmt::format("Sync of version {}", job.version), job.timeout,
              "sync");
    ACCORD_RETURN_IF_ERROR(call.result(stub_->Sync(call.context(), request, &reply)));
    return controller::SyncReport{reply.version(), reply.bytes(), reply.attempts()};
  }

  StatusOr<controller::HeldWeights> held_weights() override {
    v1::HeldWeightsReply reply;
    Call call(options_, waits_, canceller_, "HeldWeights", options_.save_timeout, "checkpoint");
    ACCORD_RETURN_IF_ERROR(call.result(stub_->HeldWeights(call.context(), {}, &reply)));
    controller::HeldWeights held;
    if (reply.has_version()) {
      held.version = reply.version();
    }
    for (const v1::HeldTensor& tensor : reply.tensors()) {
      held.tensors.push_back({tensor.name(), tensor.digest()});
    }
    return held;
  }

 protected:
  const ClientOptions options_;
  WaitList& waits_;
  Canceller& canceller_;
  const std::shared_ptr<grpc::Channel> channel_;
  const std::unique_ptr<v1::Worker::Stub> stub_;
};

class RolloutClient final : public Client<controller::RolloutWorker> {
 public:
  using Client::Client;

  Status generate(const controller::GenerateJob& job, const OnSample& on_sample) override {
    Call call(options_, waits_, canceller_, fmt::format("Generate of step {}", job.step), job.timeout,
              "rollout");
    const auto reader = stub_->Generate(call.context(), to_proto(job));
    v1::SampleSummary summary;
    while (reader->Read(&summary)) {
      on_sample(from_proto(summary));
    }
    return call.result(reader->Finish());
  }

  StatusOr<std::vector<Sample>> fetch(std::span<const SampleKey> keys) override {
    Call call(options_, waits_, canceller_, "Fetch", options_.save_timeout, "checkpoint");
    return fetch_from(*stub_, *call.context(), keys, options_.name);
  }

  Status release(uint64_t step) override {
    v1::ReleaseRequest request;
    request.set_step(step);
    v1::ReleaseReply reply;
    Call call(options_, waits_, canceller_, "Release", options_.save_timeout, "checkpoint");
    return call.result(stub_->Release(call.context(), request, &reply));
  }
};

class TrainerClient final : public Client<controller::TrainerWorker> {
 public:
  using Client::Client;

  StatusOr<std::vector<controller::TensorRecord>> export_weights(const controller::ExportJob& job) override {
    v1::ExportRequest request;
    request.set_version(job.version);
    request.set_timeout_ms(job.timeout.count());
    v1::ExportReply reply;
    Call call(options_, waits_, canceller_, fmt::format("Export of version {}", job.version), job.timeout,
              "sync");
    ACCORD_RETURN_IF_ERROR(call.result(stub_->Export(call.context(), request, &reply)));
    std::vector<controller::TensorRecord> records;
    for (const v1::TensorRecord& record : reply.tensors()) {
      records.push_back(from_proto(record));
    }
    return records;
  }

  StatusOr<Metrics> train(const controller::TrainJob& job) override {
    v1::TrainReply reply;
    Call call(options_, waits_, canceller_, fmt::format("Train of step {}", job.step), job.timeout, "train");
    ACCORD_RETURN_IF_ERROR(call.result(stub_->Train(call.context(), to_proto(job), &reply)));
    return from_proto(reply);
  }

  StatusOr<Metrics> sft(const controller::SftJob& job) override {
    v1::TrainReply reply;
    Call call(options_, waits_, canceller_, fmt::format("Sft step {}", job.step), job.timeout, "train");
    ACCORD_RETURN_IF_ERROR(call.result(stub_->Sft(call.context(), to_proto(job), &reply)));
    return from_proto(reply);
  }

  Status save(const controller::SaveJob& job) override {
    v1::SaveRequest request;
    request.set_directory(job.directory);
    request.set_save_hf(job.save_hf);
    request.set_timeout_ms(job.timeout.count());
    v1::SaveReply reply;
    Call call(options_, waits_, canceller_, "Save to " + job.directory, job.timeout, "checkpoint");
    return call.result(stub_->Save(call.context(), request, &reply));
  }
};

// Shared by copies of one FetchSamples.
class Fetcher {
 public:
  Fetcher(const Identity& identity, Millis timeout) : identity_(identity), timeout_(timeout) {}

  StatusOr<std::vector<Sample>> operator()(const std::string& holder, std::span<const SampleKey> keys) {
    v1::Worker::Stub* stub = nullptr;
    {
      const std::lock_guard lock(mutex_);
      auto& slot = stubs_[holder];
      if (!slot) {
        const auto channel = make_channel(holder);
        await_connection(*channel);
        slot = v1::Worker::NewStub(channel);
      }
      stub = slot.get();
    }
    grpc::ClientContext context;
    attach_identity(context, identity_);
    context.set_deadline(std::chrono::system_clock::now() + timeout_);
    return fetch_from(*stub, context, keys, holder);
  }

 private:
  const Identity identity_;
  const Millis timeout_;
  std::mutex mutex_;
  std::map<std::string, std::unique_ptr<v1::Worker::Stub>> stubs_;
};

}  // namespace

std::unique_ptr<controller::RolloutWorker> make_rollout_client(const ClientOptions& options, WaitList& waits,
                                                               Canceller& canceller) {
  return std::make_unique<RolloutClient>(options, waits, canceller);
}

std::unique_ptr<controller::TrainerWorker> make_trainer_client(const ClientOptions& options, WaitList& waits,
                                                               Canceller& canceller) {
  return std::make_unique<TrainerClient>(options, waits, canceller);
}

controller::FetchSamples make_sample_fetcher(const Identity& identity, Millis timeout) {
  // std::function copies; the channels are shared by all copies.
  const auto fetcher = std::make_shared<Fetcher>(identity, timeout);
  return [fetcher](const std::string& holder, std::span<const SampleKey> keys) {
    return (*fetcher)(holder, keys);
  };
}

}  // namespace accord::rpc
