// All collectives are built from gloo's point-to-point messages: gloo's own ones apply a timeout per message
// and do not say which peer failed.
//   broadcast       a chain root, root+1, ... in chunks: each rank receives chunk i+1 while it sends chunk i
//   all_reduce_sum  rank r owns the r-th part of a block: it gets that part of every rank, sums in rank order
//                   and sends the sum to every rank
//   all_to_all      in rounds: every rank sends chunk i to every other rank while it receives theirs
//   barrier         an all_gather of one byte
#include "comm/gloo_communicator.hpp"

#include <gloo/rendezvous/context.h>
#include <gloo/rendezvous/store.h>
#include <gloo/transport/tcp/device.h>
#include <gloo/transport/unbound_buffer.h>
#include <net/if.h>
#include <netdb.h>
#include <sys/socket.h>

#include <algorithm>
#include <csignal>
#include <cstring>
#include <functional>
#include <optional>
#include <thread>
#include <utility>
#include <vector>

#include "base/files.hpp"

namespace accord::comm {
namespace {

using gloo::transport::UnboundBuffer;

constexpr int64_t kMaxChunkBytes = int64_t{256} << 20;

// Leaves gloo's calls with one of our errors; caught at the border below.
struct Failure : std::runtime_error {
  explicit Failure(Status s) : std::runtime_error(std::string(message_of(s))), status(std::move(s)) {}
  Status status;
};

class StoreAdapter : public gloo::rendezvous::Store {
 public:
  StoreAdapter(comm::Store& store, std::string prefix, Deadline deadline)
      : store_(store), prefix_(std::move(prefix)), deadline_(deadline) {}

  void set(const std::string& key, const std::vector<char>& data) override {
    const Status status = store_.set(prefix_ + key, std::string(data.begin(), data.end()));
    if (!status.ok()) {
      throw Failure(status);
    }
  }
  std::vector<char> get(const std::string& key) override {
    const auto value = store_.get(prefix_ + key, deadline_);
    if (!value.ok()) {
      throw Failure(value.status());
    }
    return {value->begin(), value->end()};
  }
  void wait(const std::vector<std::string>& keys) override {
    for (const std::string& key : keys) {
      get(key);
    }
  }
  void wait(const std::vector<std::string>& keys, const std::chrono::milliseconds& /*timeout*/) override {
    wait(keys);  // the deadline of the whole rendezvous holds
  }

 private:
  comm::Store& store_;
  std::string prefix_;
  Deadline deadline_;
};

bool can_bind(const addrinfo& address) {
  const FileDescriptor fd(
      ::socket(address.ai_family, address.ai_socktype | SOCK_CLOEXEC, address.ai_protocol));
  return fd.valid() && ::bind(fd.get(), address.ai_addr, address.ai_addrlen) == 0;
}

// gloo crashes on a host name that does not resolve and leaks on one of another machine.
Status check_listen_address(const GlooOptions& options) {
  if (!options.interface.empty()) {
    if (::if_nametoindex(options.interface.c_str()) == 0) {
      return unavailable_error("communicator '{}': there is no network interface {}", options.group,
                               options.interface);
    }
    return absl::OkStatus();
  }
  addrinfo hints{};
  hints.ai_socktype = SOCK_STREAM;
  addrinfo* found = nullptr;
  const int error = ::getaddrinfo(options.hostname.c_str(), nullptr, &hints, &found);
  if (error != 0) {
    return unavailable_error("communicator '{}': cannot resolve {}: {}", options.group, options.hostname,
                             ::gai_strerror(error));
  }
  bool usable = false;
  for (const addrinfo* address = found; address != nullptr && !usable; address = address->ai_next) {
    usable = can_bind(*address);
  }
  ::freeaddrinfo(found);
  if (!usable) {
    return unavailable_error("communicator '{}': cannot listen on {}, which is no address of this machine",
                             options.group, options.hostname);
  }
  return absl::OkStatus();
}

// gloo writes to sockets without MSG_NOSIGNAL.
void ignore_broken_pipes() {
  struct sigaction current {};
  if (sigaction(SIGPIPE, nullptr, &current) == 0 && current.sa_handler == SIG_DFL) {
    std::signal(SIGPIPE, SIG_IGN);
  }
}

}  // namespace

struct GlooCommunicator::Impl {
  GlooOptions options;
  std::shared_ptr<gloo::rendezvous::Context> context;  // null in a group of one
  Status broken;                                       // the first error
  std::vector<float> scratch;
  std::byte watched{};  // what `watch` would receive; nobody sends it
  std::unique_ptr<UnboundBuffer> watch;
  std::thread watcher;
  // Of the operation in progress:
  Deadline deadline = Deadline::after(std::chrono::milliseconds(0));
  int peer = -1;

  // A message under way. The memory must stay until it is finished.
  struct Message {
    std::unique_ptr<UnboundBuffer> buffer;
    int peer = -1;
  };

  Message send(const void* data, int64_t bytes, int to, uint64_t slot) {
    peer = to;
    // gloo does not write to a buffer that is only sent.
    Message message{context->createUnboundBuffer(const_cast<void*>(data), static_cast<size_t>(bytes)), to};
    message.buffer->send(to, slot);
    return message;
  }
  Message receive(void* data, int64_t bytes, int from, uint64_t slot) {
    peer = from;
    Message message{context->createUnboundBuffer(data, static_cast<size_t>(bytes)), from};
    message.buffer->recv(from, slot);
    return message;
  }
  std::chrono::milliseconds time_left() const {
    return std::max(deadline.remaining(), std::chrono::milliseconds(1));  // 0 would mean no limit
  }
  void finish_send(Message& message) {
    peer = message.peer;
    message.buffer->waitSend(time_left());
  }
  void finish_receive(Message& message) {
    peer = message.peer;
    message.buffer->waitRecv(time_left());
  }
  uint64_t next_slot() { return static_cast<uint64_t>(context->nextSlot()); }

  void broadcast(std::byte* data, int64_t bytes, int root);
  void all_gather(const std::byte* in, int64_t bytes, std::byte* out);
  void all_to_all(const std::byte* in, std::span<const int64_t> in_bytes, std::byte* out,
                  std::span<const int64_t> out_bytes);
  void reduce_block(float* data, int64_t count);
};

void GlooCommunicator::Impl::broadcast(std::byte* data, int64_t bytes, int root) {
  const int size = options.size;
  const int place = (options.rank - root + size) % size;  // in the chain
  const int previous = (options.rank - 1 + size) % size;
  const int next = (options.rank + 1) % size;
  const uint64_t slot = next_slot();
  std::optional<Message> sending;
  for (int64_t begin = 0; begin < bytes; begin += options.chunk_bytes) {
    const int64_t length = std::min(options.chunk_bytes, bytes - begin);
    if (place > 0) {
      Message incoming = receive(data + begin, length, previous, slot);
      finish_receive(incoming);
    }
    if (place + 1 < size) {
      if (sending) {
        finish_send(*sending);
      }
      sending = send(data + begin, length, next, slot);
    }
  }
  if (sending) {
    finish_send(*sending);
  }
}

void GlooCommunicator::Impl::all_gather(const std::byte* in, int64_t bytes, std::byte* out) {
  const int rank = options.rank;
  std::memcpy(out + rank * bytes, in, static_cast<size_t>(bytes));
  for (int64_t begin = 0; begin < bytes; begin += options.chunk_bytes) {
    const int64_t length = std::min(options.chunk_bytes, bytes - begin);
    const uint64_t slot = next_slot();
    std::vector<Message> incoming;
    std::vector<Message> outgoing;
    for (int r = 0; r < options.size; ++r) {
      if (r != rank) {
        incoming.push_back(receive(out + r * bytes + begin, length, r, slot));
      }
    }
    for (int r = 0; r < options.size; ++r) {
      if (r != rank) {
        outgoing.push_back(send(in + begin, length, r, slot));
      }
    }
    for (Message& message : incoming) {
      finish_receive(message);
    }
    for (Message& message : outgoing) {
      finish_send(message);
    }
  }
}

void GlooCommunicator::Impl::all_to_all(const std::byte* in, std::span<const int64_t> in_bytes,
                                        std::byte* out, std::span<const int64_t> out_bytes) {
  const size_t size = in_bytes.size();
  std::vector<int64_t> in_begin(size);
  std::vector<int64_t> out_begin(size);
  int64_t largest = 0;
  for (size_t r = 1; r < size; ++r) {
    in_begin[r] = in_begin[r - 1] + in_bytes[r - 1];
    out_begin[r] = out_begin[r - 1] + out_bytes[r - 1];
  }
  for (size_t r = 0; r < size; ++r) {
    if (static_cast<int>(r) == options.rank) {
      if (in_bytes[r] > 0) {
        std::memcpy(out + out_begin[r], in + in_begin[r], static_cast<size_t>(in_bytes[r]));
      }
    } else {
      largest = std::max({largest, in_bytes[r], out_bytes[r]});
    }
  }
  // One slot for all rounds: a pair's messages keep their order, and ranks may have different numbers of
  // rounds.
  const uint64_t slot = next_slot();
  for (int64_t begin = 0; begin < largest; begin += options.chunk_bytes) {
    std::vector<Message> incoming;
    std::vector<Message> outgoing;
    for (size_t r = 0; r < size; ++r) {
      const int64_t length = std::min(options.chunk_bytes, out_bytes[r] - begin);
      if (static_cast<int>(r) != options.rank && length > 0) {
        incoming.push_back(receive(out + out_begin[r] + begin, length, static_cast<int>(r), slot));
      }
    }
    for (size_t r = 0; r < size; ++r) {
      const int64_t length = std::min(options.chunk_bytes, in_bytes[r] - begin);
      if (static_cast<int>(r) != options.rank && length > 0) {
        outgoing.push_back(send(in + in_begin[r] + begin, length, static_cast<int>(r), slot));
      }
    }
    for (Message& message : incoming) {
      finish_receive(message);
    }
    for (Message& message : outgoing) {
      finish_send(message);
    }
  }
}

void GlooCommunicator::Impl::reduce_block(float* data, int64_t count) {
  const int rank = options.rank;
  const int size = options.size;
  const int64_t per_rank = (count + size - 1) / size;
  const auto begin_of = [&](int r) { return std::min(count, r * per_rank); };
  const auto bytes_of = [&](int r) {
    return (begin_of(r + 1) - begin_of(r)) * static_cast<int64_t>(sizeof(float));
  };
  const uint64_t slot = next_slot();
  const int64_t mine = begin_of(rank + 1) - begin_of(rank);
  scratch.resize(static_cast<size_t>(mine * size));
  std::vector<Message> incoming;
  std::vector<Message> outgoing;
  for (int r = 0; r < size; ++r) {
    if (r != rank && mine > 0) {
      incoming.push_back(receive(scratch.data() + r * mine, bytes_of(rank), r, slot));
    }
  }
  for (int r = 0; r < size; ++r) {
    if (r != rank && bytes_of(r) > 0) {
      outgoing.push_back(send(data + begin_of(r), bytes_of(r), r, slot));
    }
  }
  for (Message& message : incoming) {
    finish_receive(message);
  }
  for (Message& message : outgoing) {
    finish_send(message);
  }
  float* own = data + begin_of(rank);
  std::copy_n(own, mine, scratch.data() + rank * mine);
  std::copy_n(scratch.data(), mine, own);
  for (int r = 1; r < size; ++r) {
    const float* other = scratch.data() + r * mine;
    for (int64_t i = 0; i < mine; ++i) {
      own[i] += other[i];
    }
  }
  incoming.clear();
  outgoing.clear();
  const uint64_t back_slot = next_slot();
  for (int r = 0; r < size; ++r) {
    if (r != rank && bytes_of(r) > 0) {
      incoming.push_back(receive(data + begin_of(r), bytes_of(r), r, back_slot));
    }
  }
  for (int r = 0; r < size; ++r) {
    if (r != rank && mine > 0) {
      outgoing.push_back(send(own, bytes_of(rank), r, back_slot));
    }
  }
  for (Message& message : incoming) {
    finish_receive(message);
  }
  for (Message& message : outgoing) {
    finish_send(message);
  }
}

StatusOr<std::unique_ptr<GlooCommunicator>> GlooCommunicator::create(const GlooOptions& options, Store& store,
                                                                     Deadline deadline) {
  if (options.size < 1 || options.rank < 0 || options.rank >= options.size) {
    return usage_error("communicator '{}': rank {} of {} does not exist", options.group, options.rank,
                       options.size);
  }
  if (options.chunk_bytes < static_cast<int64_t>(sizeof(float)) || options.chunk_bytes > kMaxChunkBytes) {
    return usage_error("communicator '{}': chunks of {} bytes; give 4 to {}", options.group,
                       options.chunk_bytes, kMaxChunkBytes);
  }
  auto impl = std::make_unique<Impl>();
  impl->options = options;
  if (options.size > 1) {
    ACCORD_RETURN_IF_ERROR(check_listen_address(options));
    ignore_broken_pipes();
    gloo::transport::tcp::attr attr;
    attr.iface = options.interface;
    attr.hostname = options.interface.empty() ? options.hostname : "";
    StoreAdapter adapter(store, "comm/" + options.group + "/", deadline);
    try {
      auto device = gloo::transport::tcp::CreateDevice(attr);
      impl->context = std::make_shared<gloo::rendezvous::Context>(options.rank, options.size);
      // gloo waits five times this for each peer, one after the other.
      constexpr int kConnectFactor = 5;
      impl->context->setTimeout(
          std::max(deadline.remaining() / (kConnectFactor * options.size), std::chrono::milliseconds(1)));
      impl->context->connectFullMesh(adapter, device);
    } catch (const Failure& failure) {
      return annotate(failure.status, fmt::format("communicator '{}', rank {} of {}: no rendezvous",
                                                  options.group, options.rank, options.size));
    } catch (const std::exception& e) {
      return unavailable_error("communicator '{}', rank {} of {}: cannot connect over {}: {}", options.group,
                               options.rank, options.size,
                               options.interface.empty() ? options.hostname : options.interface, e.what());
    }
  }
  return std::unique_ptr<GlooCommunicator>(new GlooCommunicator(std::move(impl)));
}

GlooCommunicator::GlooCommunicator(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
GlooCommunicator::~GlooCommunicator() {
  if (impl_->watcher.joinable()) {
    impl_->watch->abortWaitRecv();
    impl_->watcher.join();
  }
}
int GlooCommunicator::rank() const { return impl_->options.rank; }
int GlooCommunicator::size() const { return impl_->options.size; }

Status GlooCommunicator::run(const char* operation, Deadline deadline, const std::function<void()>& body) {
  Impl& impl = *impl_;
  ACCORD_RETURN_IF_ERROR(impl.broken);
  impl.deadline = deadline;
  impl.peer = -1;
  try {
    body();
    return absl::OkStatus();
  } catch (const std::exception& e) {
    const bool late = deadline.expired();
    impl.broken = make_error(late ? absl::StatusCode::kDeadlineExceeded : absl::StatusCode::kUnavailable,
                             ExitCode::kUnavailable,
                             fmt::format("communicator '{}', rank {} of {}: {} with rank {} {}: {}",
                                         impl.options.group, impl.options.rank, impl.options.size, operation,
                                         impl.peer, late ? "missed its deadline" : "failed", e.what()));
  }
  try {
    impl.context->closeConnections();
  } catch (const std::exception&) {
    // They are broken already, which is what this call is for.
  }
  return impl.broken;
}

Status GlooCommunicator::broadcast(void* data, int64_t bytes, int root, Deadline deadline) {
  if (root < 0 || root >= size()) {
    return usage_error("broadcast from rank {} of {}", root, size());
  }
  if (size() == 1 || bytes == 0) {
    return impl_->broken;
  }
  return run("broadcast", deadline, [&] { impl_->broadcast(static_cast<std::byte*>(data), bytes, root); });
}

Status GlooCommunicator::all_reduce_sum(float* data, int64_t count, Deadline deadline) {
  if (size() == 1 || count == 0) {
    return impl_->broken;
  }
  return run("all_reduce_sum", deadline, [&] {
    const int64_t block = impl_->options.chunk_bytes / static_cast<int64_t>(sizeof(float)) * size();
    for (int64_t begin = 0; begin < count; begin += block) {
      impl_->reduce_block(data + begin, std::min(block, count - begin));
    }
  });
}

Status GlooCommunicator::all_gather(const void* in, int64_t bytes, void* out, Deadline deadline) {
  if (size() == 1) {
    std::memcpy(out, in, static_cast<size_t>(bytes));
    return impl_->broken;
  }
  if (bytes == 0) {
    return impl_->broken;
  }
  return run("all_gather", deadline, [&] {
    impl_->all_gather(static_cast<const std::byte*>(in), bytes, static_cast<std::byte*>(out));
  });
}

Status GlooCommunicator::all_to_all(const void* in, std::span<const int64_t> in_bytes, void* out,
                                    std::span<const int64_t> out_bytes, Deadline deadline) {
  const size_t ranks = static_cast<size_t>(size());
  const auto negative = [](int64_t bytes) { return bytes < 0; };
  if (in_bytes.size() != ranks || out_bytes.size() != ranks || std::ranges::any_of(in_bytes, negative) ||
      std::ranges::any_of(out_bytes, negative)) {
    return internal_error("all_to_all takes {} sizes each way, none of them negative", size());
  }
  const size_t self = static_cast<size_t>(rank());
  if (in_bytes[self] != out_bytes[self]) {
    return internal_error("all_to_all: rank {} sends itself {} bytes and expects {}", rank(), in_bytes[self],
                          out_bytes[self]);
  }
  if (size() == 1) {
    if (in_bytes[0] > 0) {
      std::memcpy(out, in, static_cast<size_t>(in_bytes[0]));
    }
    return impl_->broken;
  }
  return run("all_to_all", deadline, [&] {
    impl_->all_to_all(static_cast<const std::byte*>(in), in_bytes, static_cast<std::byte*>(out), out_bytes);
  });
}

Status GlooCommunicator::barrier(Deadline deadline) {
  if (size() == 1) {
    return impl_->broken;
  }
  return run("barrier", deadline, [&] {
    const std::byte here{1};
    std::vector<std::byte> all(static_cast<size_t>(size()));
    impl_->all_gather(&here, 1, all.data());
  });
}

Status GlooCommunicator::watch_next(std::function<void()> lost) {
  ACCORD_RETURN_IF_ERROR(impl_->broken);
  if (size() == 1) {
    return absl::OkStatus();
  }
  if (impl_->watch) {
    return internal_error("communicator '{}' has a watch already", impl_->options.group);
  }
  try {
    impl_->watch = impl_->context->createUnboundBuffer(&impl_->watched, sizeof(impl_->watched));
    impl_->watch->recv((rank() + 1) % size(), impl_->next_slot());
  } catch (const std::exception& e) {
    return unavailable_error("communicator '{}', rank {} of {}: {}", impl_->options.group, rank(), size(),
                             e.what());
  }
  impl_->watcher = std::thread([watch = impl_->watch.get(), lost = std::move(lost)] {
    constexpr std::chrono::hours kNeverEnds(24 * 365);
    try {
      if (watch->waitRecv(kNeverEnds)) {
        lost();  // a message that no rank sends: not one of ours
      }
    } catch (const std::exception&) {
      lost();
    }
  });
  return absl::OkStatus();
}

}  // namespace accord::comm
