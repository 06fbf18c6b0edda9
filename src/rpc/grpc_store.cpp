#include "rpc/grpc_store.hpp"

#include "accord/v1/control.grpc.pb.h"
#include "rpc/grpc_status.hpp"

namespace accord::rpc {
namespace {
constexpr std::chrono::seconds kSetTimeout{10};
constexpr std::chrono::seconds kAnswerMargin{5};  // the server answers a missing key at the deadline itself
}  // namespace

struct GrpcStore::Impl {
  std::unique_ptr<v1::Control::Stub> stub;
  Identity identity;
};

GrpcStore::GrpcStore() : impl_(std::make_unique<Impl>()) {}
GrpcStore::~GrpcStore() = default;

void GrpcStore::connect(const std::string& controller, const Identity& identity) {
  impl_->stub = v1::Control::NewStub(make_channel(controller));
  impl_->identity = identity;
}

Status GrpcStore::set(const std::string& key, const std::string& value) {
  grpc::ClientContext context;
  attach_identity(context, impl_->identity);
  context.set_deadline(std::chrono::system_clock::now() + kSetTimeout);
  v1::StoreSetRequest request;
  request.set_key(key);
  request.set_value(value);
  v1::StoreSetReply reply;
  return from_grpc(impl_->stub->StoreSet(&context, request, &reply), "setting the store key " + key);
}

StatusOr<std::string> GrpcStore::get(const std::string& key, Deadline deadline) {
  grpc::ClientContext context;
  attach_identity(context, impl_->identity);
  context.set_deadline(std::chrono::system_clock::now() + deadline.remaining() + kAnswerMargin);
  v1::StoreGetRequest request;
  request.set_key(key);
  request.set_timeout_ms(deadline.remaining().count());
  v1::StoreGetReply reply;
  ACCORD_RETURN_IF_ERROR(
      from_grpc(impl_->stub->StoreGet(&context, request, &reply), "waiting for the store key " + key));
  return reply.value();
}

}  // namespace accord::rpc
