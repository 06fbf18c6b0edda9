#include "rpc/worker_service.hpp"

#include "rpc/convert.hpp"
#include "rpc/grpc_status.hpp"
#include "rpc/trajectories.hpp"

namespace accord::rpc {
WorkerService::WorkerService(controller::RolloutWorker* rollout, controller::TrainerWorker* trainer)
    : rollout_(rollout), trainer_(trainer) {}

void WorkerService::set_identity(const Identity& identity) {
  const std::lock_guard lock(identity_mutex_);
  identity_ = identity;
}

Status WorkerService::check(grpc::ServerContext* context) const {
  const std::lock_guard lock(identity_mutex_);
  if (identity_.run_id.empty()) {
    return absl::FailedPreconditionError("this worker has not registered with its controller yet");
  }
  return check_identity(*context, identity_);
}

controller::Worker& WorkerService::worker() const {
  return rollout_ != nullptr ? static_cast<controller::Worker&>(*rollout_) : *trainer_;
}

Status WorkerService::require_rollout(grpc::ServerContext* context, const char* call) const {
  ACCORD_RETURN_IF_ERROR(check(context));
  if (rollout_ == nullptr) {
    return internal_error("{} was asked of a trainer worker; it is a rollout worker's call", call);
  }
  return absl::OkStatus();
}

Status WorkerService::require_trainer(grpc::ServerContext* context, const char* call) const {
  ACCORD_RETURN_IF_ERROR(check(context));
  if (trainer_ == nullptr) {
    return internal_error("{} was asked of a rollout worker; it is a trainer worker's call", call);
  }
  return absl::OkStatus();
}

grpc::Status WorkerService::Setup(grpc::ServerContext* context, const v1::SetupRequest* request,
                                  v1::SetupReply* reply) {
  if (const Status status = check(context); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  const StatusOr<controller::SetupReport> report = worker().setup(
      {request->recipe_yaml(), request->plan_digest(), request->manifest_digest(), request->resume_dir()});
  if (report.ok()) {
    reply->set_device(report->device);
    reply->set_arithmetic(report->arithmetic);
    reply->set_arena_bytes(report->arena_bytes);
    reply->set_threads(report->threads);
  }
  return to_grpc(report.status());
}

grpc::Status WorkerService::Join(grpc::ServerContext* context, const v1::JoinRequest* request,
                                 v1::JoinReply*) {
  if (const Status status = check(context); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  const StatusOr<controller::GroupJob> job = from_proto(*request);
  return to_grpc(job.ok() ? worker().join(*job) : job.status());
}

grpc::Status WorkerService::Export(grpc::ServerContext* context, const v1::ExportRequest* request,
                                   v1::ExportReply* reply) {
  if (const Status status = require_trainer(context, "Export"); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  const auto records =
      trainer_->export_weights({request->version(), controller::Millis(request->timeout_ms())});
  if (records.ok()) {
    for (const controller::TensorRecord& record : *records) {
      *reply->add_tensors() = to_proto(record);
    }
  }
  return to_grpc(records.status());
}

grpc::Status WorkerService::Sync(grpc::ServerContext* context, const v1::SyncRequest* request,
                                 v1::SyncReply* reply) {
  if (const Status status = check(context); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  const StatusOr<controller::SyncReport> report = worker().sync(
      {request->version(), request->manifest_digest(), controller::Millis(request->timeout_ms())});
  if (report.ok()) {
    reply->set_version(report->version);
    reply->set_bytes(report->bytes);
    reply->set_attempts(report->attempts);
  }
  return to_grpc(report.status());
}

grpc::Status WorkerService::HeldWeights(grpc::ServerContext* context, const v1::HeldWeightsRequest*,
                                        v1::HeldWeightsReply* reply) {
  if (const Status status = check(context); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  const StatusOr<controller::HeldWeights> held = worker().held_weights();
  if (held.ok()) {
    reply->set_has_version(held->version.has_value());
    reply->set_version(held->version.value_or(0));
    for (const controller::HeldWeights::Tensor& tensor : held->tensors) {
      v1::HeldTensor* out = reply->add_tensors();
      out->set_name(tensor.name);
      out->set_digest(tensor.digest);
    }
  }
  return to_grpc(held.status());
}

grpc::Status WorkerService::Generate(grpc::ServerContext* context, const v1::GenerateRequest* request,
                                     grpc::ServerWriter<v1::SampleSummary>* writer) {
  if (const Status status = require_rollout(context, "Generate"); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  return to_grpc(rollout_->generate(from_proto(*request), [&](const controller::SampleSummary& summary) {
    writer->Write(to_proto(summary));
  }));
}

grpc::Status WorkerService::Fetch(grpc::ServerContext* context, const v1::FetchRequest* request,
                                  grpc::ServerWriter<v1::TrajectoryChunk>* writer) {
  if (const Status status = require_rollout(context, "Fetch"); !status.ok()) {
    return to_grpc(status);
  }
  std::vector<SampleKey> keys;
  for (const v1::SampleKeyMessage& key : request->keys()) {
    keys.push_back(from_proto(key));
  }
  const StatusOr<std::vector<Sample>> samples = rollout_->fetch(keys);
  if (!samples.ok()) {
    return to_grpc(samples.status());
  }
  TrajectoryWriter out([writer](const v1::TrajectoryChunk& chunk) { return writer->Write(chunk); });
  for (const Sample& sample : *samples) {
    if (!out.add(sample)) {
      return grpc::Status(grpc::StatusCode::CANCELLED, "the caller is gone");
    }
  }
  out.finish();
  return grpc::Status::OK;
}

grpc::Status WorkerService::Release(grpc::ServerContext* context, const v1::ReleaseRequest* request,
                                    v1::ReleaseReply*) {
  if (const Status status = require_rollout(context, "Release"); !status.ok()) {
    return to_grpc(status);
  }
  return to_grpc(rollout_->release(request->step()));
}

grpc::Status WorkerService::Train(grpc::ServerContext* context, const v1::TrainRequest* request,
                                  v1::TrainReply* reply) {
  if (const Status status = require_trainer(context, "Train"); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  const StatusOr<Metrics> metrics = trainer_->train(from_proto(*request));
  if (metrics.ok()) {
    *reply = to_proto(*metrics);
  }
  return to_grpc(metrics.status());
}

grpc::Status WorkerService::Sft(grpc::ServerContext* context, const v1::SftRequest* request,
                                v1::TrainReply* reply) {
  if (const Status status = require_trainer(context, "Sft"); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  const StatusOr<Metrics> metrics = trainer_->sft(from_proto(*request));
  if (metrics.ok()) {
    *reply = to_proto(*metrics);
  }
  return to_grpc(metrics.status());
}

grpc::Status WorkerService::Save(grpc::ServerContext* context, const v1::SaveRequest* request,
                                 v1::SaveReply*) {
  if (const Status status = require_trainer(context, "Save"); !status.ok()) {
    return to_grpc(status);
  }
  const std::lock_guard lock(state_mutex_);
  return to_grpc(
      trainer_->save({request->directory(), request->save_hf(), controller::Millis(request->timeout_ms())}));
}

}  // namespace accord::rpc
