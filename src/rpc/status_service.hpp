#pragma once
// What users ask of a running controller: status, watch, stop.
#include "accord/v1/status.grpc.pb.h"
#include "controller/run_state.hpp"

namespace accord::rpc {

class StatusService final : public v1::Status::Service {
 public:
  StatusService(controller::RunState& state, std::string build) : state_(state), build_(std::move(build)) {}

  grpc::Status GetStatus(grpc::ServerContext* context, const v1::GetStatusRequest* request,
                         v1::GetStatusReply* reply) override;
  grpc::Status Watch(grpc::ServerContext* context, const v1::WatchRequest* request,
                     grpc::ServerWriter<v1::StepMetrics>* writer) override;
  grpc::Status Stop(grpc::ServerContext* context, const v1::StopRequest* request,
                    v1::StopReply* reply) override;
  grpc::Status Checkpoint(grpc::ServerContext* context, const v1::CheckpointRequest* request,
                          v1::CheckpointReply* reply) override;

  grpc::Status VerifyWeights(grpc::ServerContext* context, const v1::VerifyWeightsRequest* request,
                             v1::VerifyWeightsReply* reply) override;

 private:
  controller::RunState& state_;
  const std::string build_;
};

}  // namespace accord::rpc
