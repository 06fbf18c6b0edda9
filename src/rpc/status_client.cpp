#include "rpc/status_client.hpp"

#include <grpcpp/grpcpp.h>

#include <algorithm>

#include "accord/v1/status.grpc.pb.h"
#include "base/natural_order.hpp"
#include "rpc/grpc_status.hpp"
#include "rpc/identity.hpp"

namespace accord::rpc {
namespace {

constexpr std::chrono::seconds kTimeout{10};

void set_deadline(grpc::ClientContext& context) {
  context.set_deadline(std::chrono::system_clock::now() + kTimeout);
}

// Mostly the run is over, or the address is an older run's.
Status answer(const grpc::Status& status, const std::string& call) {
  if (status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty()) {
    return unavailable_error(
        "{}: nobody answers there; the address of a run that still goes is in its run directory's lock file "
        "({})",
        call, status.error_message());
  }
  return from_grpc(status, call);
}

controller::StepRecord from_proto(const v1::StepMetrics& message) {
  controller::StepRecord record;
  record.step = message.step();
  record.metrics.insert(message.metrics().begin(), message.metrics().end());
  return record;
}

}  // namespace

StatusOr<StatusInfo> get_status(const std::string& address) {
  const auto stub = v1::Status::NewStub(make_channel(address));
  grpc::ClientContext context;
  set_deadline(context);
  v1::GetStatusReply reply;
  ACCORD_RETURN_IF_ERROR(answer(stub->GetStatus(&context, {}, &reply),
                                "asking the controller at " + address + " for its status"));
  StatusInfo info;
  info.run.run = reply.run();
  info.run.run_id = reply.run_id();
  info.run.epoch = reply.epoch();
  info.run.directory = reply.directory();
  info.run.phase = reply.phase();
  info.run.step = reply.step();
  info.run.steps = reply.steps();
  info.run.weight_version = reply.weight_version();
  for (const v1::WorkerStatus& worker : reply.workers()) {
    info.run.workers.push_back(
        {worker.name(), worker.address(), worker.pid(), worker.state(), worker.weight_version()});
  }
  std::sort(info.run.workers.begin(), info.run.workers.end(),
            [](const auto& a, const auto& b) { return natural_less(a.name, b.name); });
  info.run.warnings.assign(reply.warnings().begin(), reply.warnings().end());
  if (reply.has_last()) {
    info.run.last = from_proto(reply.last());
  }
  for (const v1::WaitStatus& wait : reply.waits()) {
    info.waits.push_back({wait.reason(), wait.elapsed_seconds(), wait.deadline_seconds()});
  }
  info.build = reply.build();
  return info;
}

Status watch(const std::string& address, const std::function<void(const controller::StepRecord&)>& on_step) {
  const auto stub = v1::Status::NewStub(make_channel(address));
  grpc::ClientContext context;
  const auto reader = stub->Watch(&context, {});
  v1::StepMetrics metrics;
  while (reader->Read(&metrics)) {
    on_step(from_proto(metrics));
  }
  return answer(reader->Finish(), "watching the controller at " + address);
}

StatusOr<uint64_t> stop(const std::string& address, const std::string& reason, bool drain) {
  const auto stub = v1::Status::NewStub(make_channel(address));
  grpc::ClientContext context;
  set_deadline(context);
  v1::StopRequest request;
  request.set_reason(reason);
  request.set_drain(drain);
  v1::StopReply reply;
  ACCORD_RETURN_IF_ERROR(
      answer(stub->Stop(&context, request, &reply), "asking the controller at " + address + " to stop"));
  return reply.step();
}

StatusOr<uint64_t> checkpoint(const std::string& address) {
  const auto stub = v1::Status::NewStub(make_channel(address));
  grpc::ClientContext context;
  set_deadline(context);
  v1::CheckpointReply reply;
  ACCORD_RETURN_IF_ERROR(answer(stub->Checkpoint(&context, {}, &reply),
                                "asking the controller at " + address + " for a checkpoint"));
  return reply.step();
}

StatusOr<controller::WeightCheck> verify_weights(const std::string& address) {
  const auto stub = v1::Status::NewStub(make_channel(address));
  grpc::ClientContext
      context;  // no deadline: a step may take long, and keepalive notices a controller that died
  v1::VerifyWeightsReply reply;
  ACCORD_RETURN_IF_ERROR(answer(stub->VerifyWeights(&context, {}, &reply),
                                "asking the controller at " + address + " to verify the weights"));
  controller::WeightCheck check;
  check.version = reply.version();
  check.workers = static_cast<size_t>(reply.workers());
  check.tensors = static_cast<size_t>(reply.tensors());
  for (const v1::WeightDifference& difference : reply.differences()) {
    check.differences.push_back(
        {difference.worker(), difference.tensor(), difference.ledger(), difference.held()});
  }
  return check;
}

}  // namespace accord::rpc
