#include "rpc/canceller.hpp"

namespace accord::rpc {

Canceller::Scope::Scope(Canceller& canceller, grpc::ClientContext& context)
    : canceller_(canceller), context_(context) {
  const std::lock_guard lock(canceller_.mutex_);
  canceller_.calls_.insert(&context_);
  if (canceller_.cancelled_) {
    context_.TryCancel();
  }
}

Canceller::Scope::~Scope() {
  const std::lock_guard lock(canceller_.mutex_);
  canceller_.calls_.erase(&context_);
}

void Canceller::cancel_all() {
  const std::lock_guard lock(mutex_);
  cancelled_ = true;
  for (grpc::ClientContext* context : calls_) {
    context->TryCancel();
  }
}

bool Canceller::cancelled() const {
  const std::lock_guard lock(mutex_);
  return cancelled_;
}

}  // namespace accord::rpc
