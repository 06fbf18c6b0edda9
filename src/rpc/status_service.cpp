#include "rpc/status_service.hpp"

#include <algorithm>
#include <chrono>

#include "base/log.hpp"
#include "rpc/convert.hpp"
#include "rpc/grpc_status.hpp"

namespace accord::rpc {

grpc::Status StatusService::GetStatus(grpc::ServerContext*, const v1::GetStatusRequest*,
                                      v1::GetStatusReply* reply) {
  *reply = to_proto(state_.snapshot());
  for (const WaitList::Entry& entry : state_.waits().snapshot()) {
    v1::WaitStatus* wait = reply->add_waits();
    wait->set_reason(entry.reason);
    wait->set_elapsed_seconds(entry.waited_s);
    wait->set_deadline_seconds(entry.waited_s + entry.remaining_s);
  }
  reply->set_build(build_);
  return grpc::Status::OK;
}

grpc::Status StatusService::Watch(grpc::ServerContext* context, const v1::WatchRequest*,
                                  grpc::ServerWriter<v1::StepMetrics>* writer) {
  constexpr std::chrono::milliseconds kPoll{500};  // how fast a watcher that left is noticed
  size_t seen = 0;
  bool finished = false;
  while (!finished && !context->IsCancelled()) {
    for (const controller::StepRecord& record : state_.wait_records(seen, kPoll, &finished)) {
      ++seen;
      if (!writer->Write(to_proto(record))) {
        return grpc::Status::OK;
      }
    }
  }
  return grpc::Status::OK;
}

grpc::Status StatusService::Stop(grpc::ServerContext*, const v1::StopRequest* request, v1::StopReply* reply) {
  log::info("{} requested: {}", request->drain() ? "drain" : "stop", request->reason());
  reply->set_step(state_.effective_step());
  state_.request_stop({request->reason(), request->drain()});
  return grpc::Status::OK;
}

grpc::Status StatusService::Checkpoint(grpc::ServerContext*, const v1::CheckpointRequest*,
                                       v1::CheckpointReply* reply) {
  log::info("checkpoint requested");
  reply->set_step(state_.effective_step());
  state_.request_checkpoint();
  return grpc::Status::OK;
}

grpc::Status StatusService::VerifyWeights(grpc::ServerContext* context, const v1::VerifyWeightsRequest*,
                                          v1::VerifyWeightsReply* reply) {
  log::info("verification of the weights requested");
  const StatusOr<controller::WeightCheck> check =
      state_.wait_weight_check([context] { return context->IsCancelled(); });
  if (check.ok()) {
    reply->set_version(check->version);
    reply->set_workers(static_cast<int32_t>(check->workers));
    reply->set_tensors(static_cast<int32_t>(check->tensors));
    for (const controller::WeightDifference& difference : check->differences) {
      v1::WeightDifference* out = reply->add_differences();
      out->set_worker(difference.worker);
      out->set_tensor(difference.tensor);
      out->set_ledger(difference.ledger);
      out->set_held(difference.held);
    }
  }
  return to_grpc(check.status());
}

}  // namespace accord::rpc
