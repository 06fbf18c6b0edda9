#pragma once
// The worker's side of accord.v1.Worker: hands calls to the pool member behind it. Calls that change state
// run one at a time; Fetch may run beside them.
#include <mutex>

#include "accord/v1/worker.grpc.pb.h"
#include "controller/worker.hpp"
#include "rpc/identity.hpp"

namespace accord::rpc {

class WorkerService final : public v1::Worker::Service {
 public:
  // Exactly one of the two members is given; both must outlive the service.
  WorkerService(controller::RolloutWorker* rollout, controller::TrainerWorker* trainer);

  // Calls are refused until the identity is known.
  void set_identity(const Identity& identity);

  grpc::Status Setup(grpc::ServerContext*, const v1::SetupRequest*, v1::SetupReply*) override;
  grpc::Status Join(grpc::ServerContext*, const v1::JoinRequest*, v1::JoinReply*) override;
  grpc::Status Export(grpc::ServerContext*, const v1::ExportRequest*, v1::ExportReply*) override;
  grpc::Status Sync(grpc::ServerContext*, const v1::SyncRequest*, v1::SyncReply*) override;
  grpc::Status HeldWeights(grpc::ServerContext*, const v1::HeldWeightsRequest*,
                           v1::HeldWeightsReply*) override;
  grpc::Status Generate(grpc::ServerContext*, const v1::GenerateRequest*,
                        grpc::ServerWriter<v1::SampleSummary>*) override;
  grpc::Status Fetch(grpc::ServerContext*, const v1::FetchRequest*,
                     grpc::ServerWriter<v1::TrajectoryChunk>*) override;
  grpc::Status Release(grpc::ServerContext*, const v1::ReleaseRequest*, v1::ReleaseReply*) override;
  grpc::Status Train(grpc::ServerContext*, const v1::TrainRequest*, v1::TrainReply*) override;
  grpc::Status Sft(grpc::ServerContext*, const v1::SftRequest*, v1::TrainReply*) override;
  grpc::Status Save(grpc::ServerContext*, const v1::SaveRequest*, v1::SaveReply*) override;

 private:
  Status check(grpc::ServerContext* context) const;
  controller::Worker& worker() const;
  Status require_rollout(grpc::ServerContext* context, const char* call) const;
  Status require_trainer(grpc::ServerContext* context, const char* call) const;

  controller::RolloutWorker* const rollout_;
  controller::TrainerWorker* const trainer_;
  mutable std::mutex identity_mutex_;
  Identity identity_;
  std::mutex state_mutex_;
};

}  // namespace accord::rpc
