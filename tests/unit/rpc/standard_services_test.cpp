// Health and reflection, as standard tools ask for them. Their messages are encoded by hand here: the
// generated code of these services is not installed with the library.
#include <grpcpp/generic/generic_stub.h>
#include <grpcpp/grpcpp.h>

#include <string>

#include "rpc/control_server.hpp"
#include "support/catch.hpp"

namespace accord::rpc {
namespace {

grpc::ByteBuffer buffer_of(const std::string& bytes) {
  const grpc::Slice slice(bytes);
  return {&slice, 1};
}

std::string bytes_of(const grpc::ByteBuffer& buffer) {
  std::vector<grpc::Slice> slices;
  static_cast<void>(buffer.Dump(&slices));
  std::string bytes;
  for (const grpc::Slice& slice : slices) {
    bytes.append(reinterpret_cast<const char*>(slice.begin()), slice.size());
  }
  return bytes;
}

// One message each way over a call of any kind.
grpc::Status call(const std::string& address, const std::string& method, const std::string& request,
                  std::string* reply) {
  grpc::GenericStub stub(make_channel(address));
  grpc::ClientContext context;
  context.set_deadline(std::chrono::system_clock::now() + std::chrono::seconds(20));
  grpc::CompletionQueue queue;
  const auto stream = stub.PrepareCall(&context, method, &queue);
  const auto done = [&queue] {
    void* tag = nullptr;
    bool ok = false;
    return queue.Next(&tag, &ok) && ok;
  };
  stream->StartCall(nullptr);
  done();
  stream->WriteLast(buffer_of(request), grpc::WriteOptions(), nullptr);
  done();
  grpc::ByteBuffer answer;
  stream->Read(&answer, nullptr);
  if (done()) {
    *reply = bytes_of(answer);
  }
  grpc::Status status;
  stream->Finish(&status, nullptr);
  done();
  return status;
}

std::unique_ptr<ControlServer> start(controller::RunState& state) {
  ControlServer::Options options;
  options.listen = "127.0.0.1:0";
  options.build = "build-1";
  options.identity.run_id = "run-a";
  options.expected.emplace_back("trainer/0");
  auto server = ControlServer::start(options, state, [](const std::string&) {});
  REQUIRE(server.ok());
  return *std::move(server);
}

}  // namespace

TEST_CASE("the health service answers SERVING") {
  controller::RunState state;
  const auto server = start(state);
  std::string reply;
  REQUIRE(call(server->address(), "/grpc.health.v1.Health/Check", "", &reply).ok());
  CHECK(reply == std::string("\x08\x01"));  // HealthCheckResponse{status: SERVING}
  // A service that is not there is not found, so the answer above means something.
  const grpc::Status unknown =
      call(server->address(), "/grpc.health.v1.Health/Check", std::string("\x0a\x04nope"), &reply);
  CHECK(unknown.error_code() == grpc::StatusCode::NOT_FOUND);
}

TEST_CASE("reflection lists the services and describes their messages") {
  controller::RunState state;
  const auto server = start(state);
  const std::string method = "/grpc.reflection.v1alpha.ServerReflection/ServerReflectionInfo";
  std::string reply;
  REQUIRE(call(server->address(), method, std::string("\x3a\x01*"), &reply).ok());  // list_services: "*"
  for (const char* service : {"accord.v1.Control", "accord.v1.Status", "grpc.health.v1.Health"}) {
    CAPTURE(service);
    CHECK(reply.find(service) != std::string::npos);
  }
  const std::string symbol = "accord.v1.Status";
  const std::string by_symbol = std::string("\x22") + static_cast<char>(symbol.size()) + symbol;
  REQUIRE(call(server->address(), method, by_symbol, &reply).ok());  // file_containing_symbol
  CHECK(reply.find("accord/v1/status.proto") != std::string::npos);
  CHECK(reply.find("GetStatusReply") != std::string::npos);
}

}  // namespace accord::rpc
