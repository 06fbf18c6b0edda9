#pragma once
// The handlers behind ControlServer. One object serves all workers; state is guarded by one mutex.
#include <condition_variable>
#include <map>
#include <mutex>
#include <set>
#include <string>

#include "accord/v1/control.grpc.pb.h"
#include "rpc/control_server.hpp"

namespace accord::rpc {

std::string member_name(v1::Pool pool, int rank);

class ControlService final : public v1::Control::Service {
 public:
  ControlService(const ControlServer::Options& options, controller::RunState& state,
                 ControlServer::OnLost on_lost);

  grpc::Status Register(grpc::ServerContext* context, const v1::RegisterRequest* request,
                        v1::RegisterReply* reply) override;
  grpc::Status Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                      grpc::ServerWriter<v1::AttachEvent>* writer) override;
  grpc::Status StoreSet(grpc::ServerContext* context, const v1::StoreSetRequest* request,
                        v1::StoreSetReply* reply) override;
  grpc::Status StoreGet(grpc::ServerContext* context, const v1::StoreGetRequest* request,
                        v1::StoreGetReply* reply) override;

  StatusOr<std::map<std::string, Member>> wait_registered(std::chrono::milliseconds timeout,
                                                          const std::function<Status()>& give_up);
  void shut_down(const std::string& reason);

 private:
  bool wait_shut_down(std::chrono::milliseconds timeout);

  const ControlServer::Options options_;
  controller::RunState& state_;
  const ControlServer::OnLost on_lost_;
  std::mutex mutex_;
  std::condition_variable changed_;
  std::map<std::string, Member> members_;
  std::set<std::string> attached_;
  std::map<std::string, std::chrono::steady_clock::time_point> registered_at_;
  bool complete_ = false;  // all members were there: from now on one that leaves is a loss
  std::map<std::string, std::string> store_;
  bool shutting_down_ = false;
  std::string shut_down_reason_;
};

}  // namespace accord::rpc
