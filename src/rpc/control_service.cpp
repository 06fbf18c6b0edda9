#include "rpc/control_service.hpp"

#include <algorithm>

#include "base/log.hpp"
#include "rpc/grpc_status.hpp"

namespace accord::rpc {
namespace {

using namespace std::chrono_literals;

constexpr auto kPollInterval = 200ms;  // how fast a closed connection or a shutdown order is seen
constexpr int kPollsPerHeartbeat = 10;
constexpr size_t kMaxStoreValue = 1 << 20;

}  // namespace

std::string member_name(v1::Pool pool, int rank) {
  return fmt::format("{}/{}", pool == v1::POOL_TRAINER ? "trainer" : "rollout", rank);
}

ControlService::ControlService(const ControlServer::Options& options, controller::RunState& state,
                               ControlServer::OnLost on_lost)
    : options_(options), state_(state), on_lost_(std::move(on_lost)) {}

grpc::Status ControlService::Register(grpc::ServerContext*, const v1::RegisterRequest* request,
                                      v1::RegisterReply* reply) {
  const std::string name = member_name(request->pool(), request->rank());
  if (request->build() != options_.build) {
    return to_grpc(make_error(
        ExitCode::kUnavailable,
        fmt::format("{} is build '{}', the controller is build '{}'; start the same program on every machine",
                    name, request->build(), options_.build)));
  }
  if (std::find(options_.expected.begin(), options_.expected.end(), name) == options_.expected.end()) {
    return to_grpc(
        usage_error("this run has no {}; its members are: {}", name, fmt::join(options_.expected, ", ")));
  }
  const std::lock_guard lock(mutex_);
  const auto known = members_.find(name);
  if (known != members_.end()) {
    // The same process asking again (its first answer was lost) is fine; another one is a duplicate, unless
    // the first died before it attached.
    const bool same = known->second.pid == request->pid() && known->second.address == request->address();
    const bool vanished = attached_.count(name) == 0 &&
                          std::chrono::steady_clock::now() - registered_at_[name] > options_.attach_within;
    if (!same && !vanished) {
      return to_grpc(usage_error(
          "{} is already registered by pid {} at {}; end that process first, or start this one with "
          "another --rank",
          name, known->second.pid, known->second.address));
    }
  }
  if (known == members_.end() || known->second.pid != request->pid() ||
      known->second.address != request->address()) {
    members_[name] = {name, request->address(), request->pid()};
    state_.set_worker({name, request->address(), request->pid(), "registered", 0});
    log::info("{} registered from {} (pid {})", name, request->address(), request->pid());
    registered_at_[name] = std::chrono::steady_clock::now();
    changed_.notify_all();
  }
  reply->set_run_id(options_.identity.run_id);
  reply->set_epoch(options_.identity.epoch);
  return grpc::Status::OK;
}

grpc::Status ControlService::Attach(grpc::ServerContext* context, const v1::AttachRequest* request,
                                    grpc::ServerWriter<v1::AttachEvent>* writer) {
  if (const Status status = check_identity(*context, options_.identity); !status.ok()) {
    return to_grpc(status);
  }
  const std::string name = member_name(request->pool(), request->rank());
  {
    const std::lock_guard lock(mutex_);
    const auto member = members_.find(name);
    if (member == members_.end() || member->second.address != request->address() ||
        !attached_.insert(name).second) {
      return to_grpc(usage_error("{} is not registered, or attached already", name));
    }
    changed_.notify_all();
  }
  bool alive = writer->Write(v1::AttachEvent());
  for (int poll = 0; alive && !context->IsCancelled(); ++poll) {
    if (wait_shut_down(kPollInterval)) {
      v1::AttachEvent event;
      event.set_shut_down(true);
      event.set_reason(shut_down_reason_);
      writer->Write(event);
      return grpc::Status::OK;
    }
    if (poll % kPollsPerHeartbeat == 0) {
      alive = writer->Write(v1::AttachEvent());
    }
  }
  {
    const std::lock_guard lock(mutex_);
    if (shutting_down_) {
      return grpc::Status::OK;
    }
    if (!complete_) {
      members_.erase(name);
      attached_.erase(name);
      registered_at_.erase(name);
      log::warn("{} left before the run began; another worker may take its place", name);
      state_.update_worker(name, "lost", 0);
      return grpc::Status::OK;
    }
  }
  const Member member = [&] {
    const std::lock_guard lock(mutex_);
    return members_[name];
  }();
  state_.set_worker({name, member.address, member.pid, "lost", 0});
  on_lost_(name);
  return grpc::Status::OK;
}

grpc::Status ControlService::StoreSet(grpc::ServerContext* context, const v1::StoreSetRequest* request,
                                      v1::StoreSetReply*) {
  if (const Status status = check_identity(*context, options_.identity); !status.ok()) {
    return to_grpc(status);
  }
  if (request->value().size() > kMaxStoreValue) {
    return to_grpc(data_error("store value of {} bytes for '{}': the limit is {}", request->value().size(),
                              request->key(), kMaxStoreValue));
  }
  const std::lock_guard lock(mutex_);
  store_[request->key()] = request->value();
  changed_.notify_all();
  return grpc::Status::OK;
}

grpc::Status ControlService::StoreGet(grpc::ServerContext* context, const v1::StoreGetRequest* request,
                                      v1::StoreGetReply* reply) {
  if (const Status status = check_identity(*context, options_.identity); !status.ok()) {
    return to_grpc(status);
  }
  const auto deadline = std::chrono::steady_clock::now() + std::chrono::milliseconds(request->timeout_ms());
  std::unique_lock lock(mutex_);
  while (store_.find(request->key()) == store_.end()) {
    if (shutting_down_ || context->IsCancelled() || std::chrono::steady_clock::now() >= deadline) {
      return to_grpc(unavailable_error("nobody set the store key '{}' within {} ms", request->key(),
                                       request->timeout_ms()));
    }
    changed_.wait_for(lock, kPollInterval);
  }
  reply->set_value(store_[request->key()]);
  return grpc::Status::OK;
}

StatusOr<std::map<std::string, Member>> ControlService::wait_registered(
    std::chrono::milliseconds timeout, const std::function<Status()>& give_up) {
  const auto deadline = std::chrono::steady_clock::now() + timeout;
  std::unique_lock lock(mutex_);
  while (attached_.size() < options_.expected.size()) {
    lock.unlock();
    ACCORD_RETURN_IF_ERROR(give_up());
    lock.lock();
    if (std::chrono::steady_clock::now() >= deadline) {
      std::vector<std::string> missing;
      for (const std::string& name : options_.expected) {
        if (attached_.count(name) == 0) {
          missing.push_back(name);
        }
      }
      return make_error(
          ExitCode::kWorkerLost,
          fmt::format("these workers did not register within {} s: {}; start them with 'accord worker', "
                      "or raise deadlines.register",
                      timeout.count() / 1000, fmt::join(missing, ", ")));
    }
    changed_.wait_for(lock, kPollInterval);
  }
  complete_ = true;
  return members_;
}

bool ControlService::wait_shut_down(std::chrono::milliseconds timeout) {
  std::unique_lock lock(mutex_);
  changed_.wait_for(lock, timeout, [this] { return shutting_down_; });
  return shutting_down_;
}

void ControlService::shut_down(const std::string& reason) {
  const std::lock_guard lock(mutex_);
  if (!shutting_down_) {
    shutting_down_ = true;
    shut_down_reason_ = reason;
  }
  changed_.notify_all();
}

}  // namespace accord::rpc
