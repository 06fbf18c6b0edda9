#include "comm/nccl_communicator.hpp"

#include <fmt/format.h>

#include <chrono>
#include <optional>
#include <string_view>
#include <thread>
#include <utility>

namespace accord::comm {
namespace {

using std::chrono::milliseconds;

// A peer that has done its part may leave while this rank's last bytes are still under way.
constexpr milliseconds kGrace(2000);
constexpr milliseconds kFinalize(5000);
constexpr int kBusyPolls = 2000;  // before the thread sleeps between polls
constexpr std::chrono::microseconds kPollPause(50);

std::string to_hex(const NcclId& id) {
  std::string text;
  for (const char c : id.bytes) {
    text += fmt::format("{:02x}", static_cast<unsigned char>(c));
  }
  return text;
}

bool from_hex(std::string_view text, NcclId& id) {
  if (text.size() != 2 * sizeof(id.bytes)) {
    return false;
  }
  const auto digit = [](char c) {
    return c >= '0' && c <= '9' ? c - '0' : c >= 'a' && c <= 'f' ? c - 'a' + 10 : -1;
  };
  for (size_t i = 0; i < sizeof(id.bytes); ++i) {
    const int high = digit(text[2 * i]);
    const int low = digit(text[2 * i + 1]);
    if (high < 0 || low < 0) {
      return false;
    }
    id.bytes[i] = static_cast<char>(high * 16 + low);
  }
  return true;
}

}  // namespace

NcclCommunicator::NcclCommunicator(const NcclApi& api, std::string group, const Device& device,
                                   std::unique_ptr<GlooCommunicator> host)
    : api_(api),
      group_(std::move(group)),
      device_(device),
      rank_(host->rank()),
      size_(host->size()),
      host_(std::move(host)) {}

NcclCommunicator::~NcclCommunicator() {
  if (comm_ == nullptr) {
    return;
  }
  // Lets transfers of the peers end; those that never come must not keep this process.
  (void)device_.make_current();
  const Status settled = settle("leaving", api_.comm_finalize(comm_), Deadline::after(kFinalize));
  (void)(settled.ok() ? api_.comm_destroy(comm_) : api_.comm_abort(comm_));
}

StatusOr<std::unique_ptr<Communicator>> NcclCommunicator::create(const NcclApi& api, const std::string& group,
                                                                 const Device& device,
                                                                 std::unique_ptr<GlooCommunicator> host,
                                                                 Store& store, Deadline deadline) {
  std::unique_ptr<NcclCommunicator> self(new NcclCommunicator(api, group, device, std::move(host)));
  ACCORD_ASSIGN_OR_RETURN(self->done_, Event::create(device));
  ACCORD_RETURN_IF_ERROR(self->host_->watch_next([flag = &self->peer_left_] { *flag = true; }));
  const Status made = self->init(store, deadline);
  if (!made.ok()) {
    return self->fail(made);
  }
  return std::unique_ptr<Communicator>(std::move(self));
}

StatusOr<NcclId> NcclCommunicator::share_id(Store& store, Deadline deadline) {
  const std::string key = "comm/" + group_ + "/nccl";
  NcclId id;
  if (rank_ == 0) {
    const int result = api_.get_unique_id(&id);
    const Status made = result == kNcclSuccess ? absl::OkStatus() : nccl_error("ncclGetUniqueId", result);
    // The others learn of a failure, too.
    ACCORD_RETURN_IF_ERROR(store.set(key, made.ok() ? to_hex(id) : std::string(message_of(made))));
    ACCORD_RETURN_IF_ERROR(made);
    return id;
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string text, store.get(key, deadline));
  if (!from_hex(text, id)) {
    return unavailable_error("rank 0 has no id for NCCL: {}", text);
  }
  return id;
}

Status NcclCommunicator::init(Store& store, Deadline deadline) {
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  const StatusOr<NcclId> id = share_id(store, deadline);
  if (!id.ok()) {
    return annotate(id.status(), fmt::format("communicator '{}', rank {} of {}", group_, rank_, size_));
  }
  NcclConfig config;
  config.blocking = 0;
  const int result = api_.comm_init_rank_config(&comm_, size_, *id, rank_, &config);
  return settle("meeting the other ranks", result, deadline);
}

Status NcclCommunicator::nccl_error(const std::string& what, int result) const {
  const char* const last = comm_ != nullptr ? api_.get_last_error(comm_) : nullptr;
  const bool more = last != nullptr && *last != '\0';
  return unavailable_error("communicator '{}', rank {} of {} over NCCL: {} failed: {}{}{}", group_, rank_,
                           size_, what, api_.get_error_string(result), more ? ": " : "", more ? last : "");
}

Status NcclCommunicator::fail(Status status) {
  if (broken_.ok()) {
    broken_ = std::move(status);
    if (comm_ != nullptr) {
      (void)api_.comm_abort(comm_);
      comm_ = nullptr;
    }
    host_.reset();
  }
  return broken_;
}

Status NcclCommunicator::poll(const std::string& what, Deadline deadline,
                              const std::function<StatusOr<bool>()>& done) {
  std::optional<Deadline> grace;
  for (int polls = 0;; ++polls) {
    // The state first: what is done after an error is not done.
    int state = kNcclSuccess;
    const int asked = api_.comm_get_async_error(comm_, &state);
    if (asked != kNcclSuccess || (state != kNcclSuccess && state != kNcclInProgress)) {
      return nccl_error(what, asked != kNcclSuccess ? asked : state);
    }
    if (state == kNcclSuccess) {
      ACCORD_ASSIGN_OR_RETURN(const bool finished, done());
      if (finished) {
        return absl::OkStatus();
      }
    }
    if (peer_left_ && !grace) {
      grace = Deadline::after(kGrace);
    }
    if (grace && grace->expired()) {
      return unavailable_error(
          "communicator '{}', rank {} of {} over NCCL: {} failed: rank {} closed its connection", group_,
          rank_, size_, what, (rank_ + 1) % size_);
    }
    if (deadline.expired()) {
      return make_error(absl::StatusCode::kDeadlineExceeded, ExitCode::kUnavailable,
                        fmt::format("communicator '{}', rank {} of {} over NCCL: {} missed its deadline",
                                    group_, rank_, size_, what));
    }
    if (polls < kBusyPolls) {
      std::this_thread::yield();
    } else {
      std::this_thread::sleep_for(kPollPause);
    }
  }
}

// A non-blocking call goes on after it has returned; the next one, and an event, must come after it.
Status NcclCommunicator::settle(const std::string& what, int result, Deadline deadline) {
  if (result != kNcclSuccess && result != kNcclInProgress) {
    return nccl_error(what, result);
  }
  return poll(what, deadline, [] { return true; });
}

Status NcclCommunicator::enqueue(const std::string& what, Deadline deadline,
                                 const std::function<int()>& call) {
  ACCORD_RETURN_IF_ERROR(broken_);
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  const Status status = settle(what, call(), deadline);
  return status.ok() ? status : fail(status);
}

Status NcclCommunicator::broadcast(void* data, int64_t bytes, int root, const Stream& stream,
                                   Deadline deadline) {
  if (root < 0 || root >= size_) {
    return usage_error("broadcast from rank {} of {}", root, size_);
  }
  if (size_ == 1 || bytes == 0) {
    return broken_;
  }
  return enqueue(fmt::format("broadcast of {} bytes from rank {}", bytes, root), deadline, [&] {
    return api_.broadcast(data, data, static_cast<size_t>(bytes), kNcclBytes, root, comm_, stream.handle());
  });
}

Status NcclCommunicator::all_gather(const void* in, int64_t bytes, void* out, const Stream& stream,
                                    Deadline deadline) {
  if (bytes == 0) {
    return broken_;
  }
  return enqueue(fmt::format("all_gather of {} bytes", bytes), deadline, [&] {
    return api_.all_gather(in, out, static_cast<size_t>(bytes), kNcclBytes, comm_, stream.handle());
  });
}

Status NcclCommunicator::exchange(std::span<const Part> out, std::span<const Part> in, const Stream& stream,
                                  Deadline deadline) {
  std::string peers;
  int64_t count = 0;
  for (const std::span<const Part> parts : {out, in}) {
    for (const Part& part : parts) {
      if (part.rank < 0 || part.rank >= size_ || part.rank == rank_ || part.bytes < 0) {
        return internal_error("exchange of {} bytes between ranks {} and {} of {}", part.bytes, rank_,
                              part.rank, size_);
      }
      if (part.bytes > 0) {
        peers += fmt::format("{}{}", count++ == 0 ? "" : ", ", part.rank);
      }
    }
  }
  if (count == 0) {
    return broken_;
  }
  return enqueue("exchange with ranks " + peers, deadline, [&] {
    int result = api_.group_start();
    const auto add = [&](int more) {
      if (result == kNcclSuccess && more != kNcclInProgress) {
        result = more;
      }
    };
    for (const Part& part : out) {
      if (part.bytes > 0) {
        add(api_.send(part.data, static_cast<size_t>(part.bytes), kNcclBytes, part.rank, comm_,
                      stream.handle()));
      }
    }
    for (const Part& part : in) {
      if (part.bytes > 0) {
        add(api_.recv(part.data, static_cast<size_t>(part.bytes), kNcclBytes, part.rank, comm_,
                      stream.handle()));
      }
    }
    const int ended = api_.group_end();
    return result != kNcclSuccess ? result : ended;
  });
}

Status NcclCommunicator::finish(const Stream& stream, Deadline deadline) {
  ACCORD_RETURN_IF_ERROR(broken_);
  ACCORD_RETURN_IF_ERROR(device_.make_current());
  ACCORD_RETURN_IF_ERROR(done_.record(stream));
  const Status status = poll("waiting for the transfers", deadline, [this] { return done_.finished(); });
  return status.ok() ? status : fail(status);
}

Status NcclCommunicator::on_host(const std::function<Status(Communicator&)>& call) {
  ACCORD_RETURN_IF_ERROR(broken_);
  const Status status = call(*host_);
  if (status.code() == absl::StatusCode::kUnavailable ||
      status.code() == absl::StatusCode::kDeadlineExceeded) {
    return fail(status);
  }
  return status;
}

Status NcclCommunicator::broadcast(void* data, int64_t bytes, int root, Deadline deadline) {
  return on_host([&](Communicator& host) { return host.broadcast(data, bytes, root, deadline); });
}
Status NcclCommunicator::all_reduce_sum(float* data, int64_t count, Deadline deadline) {
  return on_host([&](Communicator& host) { return host.all_reduce_sum(data, count, deadline); });
}
Status NcclCommunicator::all_gather(const void* in, int64_t bytes, void* out, Deadline deadline) {
  return on_host([&](Communicator& host) { return host.all_gather(in, bytes, out, deadline); });
}
Status NcclCommunicator::all_to_all(const void* in, std::span<const int64_t> in_bytes, void* out,
                                    std::span<const int64_t> out_bytes, Deadline deadline) {
  return on_host([&](Communicator& host) { return host.all_to_all(in, in_bytes, out, out_bytes, deadline); });
}
Status NcclCommunicator::barrier(Deadline deadline) {
  return on_host([&](Communicator& host) { return host.barrier(deadline); });
}

}  // namespace accord::comm
