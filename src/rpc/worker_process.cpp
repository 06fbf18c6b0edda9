#include "rpc/worker_process.hpp"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>
#include <unistd.h>

#include <cstdlib>
#include <thread>

#include "accord/v1/control.grpc.pb.h"
#include "base/deadline.hpp"
#include "base/log.hpp"
#include "rpc/grpc_status.hpp"
#include "rpc/identity.hpp"
#include "rpc/worker_client.hpp"
#include "rpc/worker_service.hpp"

namespace accord::rpc {
namespace {

using namespace std::chrono_literals;

constexpr auto kRetryInterval = 300ms;
constexpr auto kRegisterCallTimeout = 10s;

// The controller may start later than its workers: an unreachable one is asked again until the deadline.
StatusOr<Identity> register_worker(v1::Control::Stub& stub, const WorkerProcessOptions& options,
                                   const std::string& address) {
  v1::RegisterRequest request;
  request.set_pool(options.trainer ? v1::POOL_TRAINER : v1::POOL_ROLLOUT);
  request.set_rank(options.rank);
  request.set_address(address);
  request.set_pid(getpid());
  request.set_build(options.build);
  const Wait wait(nullptr, "the controller at " + options.controller,
                  Deadline::after(options.register_timeout));
  while (true) {
    grpc::ClientContext context;
    context.set_deadline(std::chrono::system_clock::now() + kRegisterCallTimeout);
    v1::RegisterReply reply;
    const grpc::Status status = stub.Register(&context, request, &reply);
    if (status.ok()) {
      return Identity{reply.run_id(), reply.epoch()};
    }
    const bool unreachable =
        status.error_code() == grpc::StatusCode::UNAVAILABLE && status.error_details().empty();
    if (!unreachable) {
      return from_grpc(status, "registering with the controller at " + options.controller);
    }
    if (wait.deadline().expired()) {
      return wait.timed_out();
    }
    std::this_thread::sleep_for(kRetryInterval);
  }
}

// OK: told to leave. Otherwise the controller is gone.
Status stay_attached(v1::Control::Stub& stub, const WorkerProcessOptions& options, const std::string& address,
                     const Identity& identity) {
  grpc::ClientContext context;
  attach_identity(context, identity);
  v1::AttachRequest request;
  request.set_pool(options.trainer ? v1::POOL_TRAINER : v1::POOL_ROLLOUT);
  request.set_rank(options.rank);
  request.set_address(address);
  const auto reader = stub.Attach(&context, request);
  v1::AttachEvent event;
  while (reader->Read(&event)) {
    if (event.shut_down()) {
      log::info("leaving: {}", event.reason());
      return absl::OkStatus();
    }
  }
  return from_grpc(reader->Finish(), "the connection to the controller at " + options.controller);
}

}  // namespace

Status run_worker(const WorkerProcessOptions& options, WorkerLinks& links, controller::RolloutWorker* rollout,
                  controller::TrainerWorker* trainer, std::string* served_address) {
  grpc::EnableDefaultHealthCheckService(true);
  grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  WorkerService service(rollout, trainer);
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  allow_keepalive(builder);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server || port == 0) {
    return unavailable_error("this worker cannot listen on any loopback port");
  }
  *served_address = "127.0.0.1:" + std::to_string(port);

  const auto stub = v1::Control::NewStub(make_channel(options.controller));
  ACCORD_ASSIGN_OR_RETURN(const Identity identity, register_worker(*stub, options, *served_address));
  links.store.connect(options.controller, identity);
  links.fetch = make_sample_fetcher(identity, options.register_timeout);
  service.set_identity(identity);
  log::info("registered with {} (run {}, epoch {}), serving on {}", options.controller, identity.run_id,
            identity.epoch, *served_address);

  const Status attached = stay_attached(*stub, options, *served_address, identity);
  if (!attached.ok()) {
    log::error("the controller is gone ({}); this worker ends", message_of(attached));
    std::_Exit(static_cast<int>(ExitCode::kWorkerLost));
  }
  server->Shutdown(std::chrono::system_clock::now() + 2s);
  return absl::OkStatus();
}

}  // namespace accord::rpc
