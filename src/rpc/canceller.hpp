#pragma once
// The calls in flight. When a worker is lost, the calls to all others are cancelled too, so that nobody
// waits out a deadline for a step that cannot finish.
#include <grpcpp/grpcpp.h>

#include <mutex>
#include <set>

namespace accord::rpc {

class Canceller {
 public:
  // A call is in flight for the life of this object.
  class Scope {
   public:
    Scope(Canceller& canceller, grpc::ClientContext& context);
    ~Scope();
    Scope(const Scope&) = delete;
    Scope& operator=(const Scope&) = delete;

   private:
    Canceller& canceller_;
    grpc::ClientContext& context_;
  };

  // Cancels what is in flight and everything that starts later.
  void cancel_all();
  bool cancelled() const;

 private:
  mutable std::mutex mutex_;
  std::set<grpc::ClientContext*> calls_;
  bool cancelled_ = false;
};

}  // namespace accord::rpc
