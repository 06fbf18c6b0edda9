#include "rpc/control_server.hpp"

#include <grpcpp/ext/proto_server_reflection_plugin.h>
#include <grpcpp/grpcpp.h>
#include <grpcpp/health_check_service_interface.h>

#include <cstdlib>
#include <mutex>

#include "rpc/control_service.hpp"
#include "rpc/status_service.hpp"

namespace accord::rpc {
namespace {

// Reflection is a plugin of the process's server builders; it must be added before the first one.
void enable_plugins_once() {
  static std::once_flag once;
  std::call_once(once, [] {
    // What fails is reported here, in words; the library would print its own lines to stderr as well.
    setenv("GRPC_VERBOSITY", "NONE", /*overwrite=*/0);
    grpc::EnableDefaultHealthCheckService(true);
    grpc::reflection::InitProtoReflectionServerBuilderPlugin();
  });
}

}  // namespace

struct ControlServer::Impl {
  Impl(const Options& options, controller::RunState& state, OnLost on_lost)
      : control(options, state, std::move(on_lost)), status(state, options.build) {}

  ControlService control;
  StatusService status;
  std::unique_ptr<grpc::Server> server;
  std::string address;
};

ControlServer::ControlServer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}

StatusOr<std::unique_ptr<ControlServer>> ControlServer::start(const Options& options,
                                                              controller::RunState& state, OnLost on_lost) {
  ACCORD_RETURN_IF_ERROR(check_loopback(options.listen));
  enable_plugins_once();
  auto impl = std::make_unique<Impl>(options, state, std::move(on_lost));
  grpc::ServerBuilder builder;
  int port = 0;
  builder.AddChannelArgument(GRPC_ARG_ALLOW_REUSEPORT, 0);  // a port in use is an error, not shared
  builder.AddListeningPort(options.listen, grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&impl->control);
  builder.RegisterService(&impl->status);
  allow_keepalive(builder);
  builder.SetMaxReceiveMessageSize(kMaxMessageBytes);
  builder.SetMaxSendMessageSize(kMaxMessageBytes);
  impl->server = builder.BuildAndStart();
  if (!impl->server || port == 0) {
    return unavailable_error("cannot listen on {}: the port is in use, or not allowed", options.listen);
  }
  impl->address = options.listen.substr(0, options.listen.rfind(':') + 1) + std::to_string(port);
  return std::unique_ptr<ControlServer>(new ControlServer(std::move(impl)));
}

ControlServer::~ControlServer() {
  impl_->control.shut_down("the controller ends");
  impl_->server->Shutdown(std::chrono::system_clock::now() + std::chrono::seconds(2));
}

const std::string& ControlServer::address() const { return impl_->address; }

StatusOr<std::map<std::string, Member>> ControlServer::wait_registered(
    std::chrono::milliseconds timeout, const std::function<Status()>& give_up) {
  return impl_->control.wait_registered(timeout, give_up);
}

void ControlServer::shut_down_workers(const std::string& reason) { impl_->control.shut_down(reason); }

}  // namespace accord::rpc
