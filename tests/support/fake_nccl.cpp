#include "support/fake_nccl.hpp"

#include <poll.h>
#include <sys/socket.h>
#include <sys/un.h>
#include <unistd.h>

#include <cstddef>
#include <cstring>
#include <deque>
#include <map>
#include <mutex>
#include <string>
#include <thread>
#include <utility>
#include <vector>

#include "device/backend.hpp"

namespace {

using accord::StreamHandle;
using accord::testing::NcclFaults;

using Message = std::vector<std::byte>;

constexpr int kSystemError = 2;
constexpr int kInternalError = 3;
constexpr int kInvalidArgument = 4;
constexpr int kRemoteError = 6;

struct Counts {
  std::mutex mutex;
  NcclFaults faults;
  int ids = 0;
  int aborted = 0;
  int destroyed = 0;
  int64_t messages = 0;
};

Counts& counts() {
  static Counts instance;
  return instance;
}

NcclFaults faults() {
  const std::lock_guard lock(counts().mutex);
  return counts().faults;
}

void copy(void* to, const void* from, size_t bytes, StreamHandle stream) {
  if (stream == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  (void)accord::backend::copy(to, from, bytes, stream);
  (void)accord::backend::synchronize_stream(stream);
}

// A name of no file: it ends with its socket.
socklen_t address_of(const std::string& id, int rank, sockaddr_un& address) {
  const std::string name = id + "/" + std::to_string(rank);
  address = {};
  address.sun_family = AF_UNIX;
  std::memcpy(address.sun_path + 1, name.data(), name.size());
  return static_cast<socklen_t>(offsetof(sockaddr_un, sun_path) + 1 + name.size());
}

bool write_all(int fd, const void* data, size_t bytes) {
  const auto* p = static_cast<const std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = ::send(fd, p, bytes, MSG_NOSIGNAL);
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

bool read_all(int fd, void* data, size_t bytes) {
  auto* p = static_cast<std::byte*>(data);
  while (bytes > 0) {
    const ssize_t n = ::recv(fd, p, bytes, 0);
    if (n <= 0) return false;
    p += n;
    bytes -= static_cast<size_t>(n);
  }
  return true;
}

struct Op {
  void* to = nullptr;
  size_t bytes = 0;
  int from = 0;
  StreamHandle stream = nullptr;
};

}  // namespace

struct ncclComm {
  std::string id;
  int rank = 0;
  int size = 0;
  std::map<int, int> outgoing;  // per peer: a connection
  std::deque<Op> waiting;
  int stop[2] = {-1, -1};
  std::thread receiver;  // keeps what comes, so that no sender waits

  std::mutex mutex;
  std::map<int, std::deque<Message>> received;  // per peer

  bool listen();
  bool connect_all();
  void receive(int listener);
  bool take(int fd, int from);
  ~ncclComm();
};

bool ncclComm::listen() {
  sockaddr_un address;
  const socklen_t length = address_of(id, rank, address);
  const int listener = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
  if (listener < 0 || ::bind(listener, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
      ::listen(listener, size) != 0 || ::pipe(stop) != 0) {
    return false;
  }
  receiver = std::thread([this, listener] { receive(listener); });
  return true;
}

bool ncclComm::connect_all() {
  for (int peer = 0; peer < size; ++peer) {
    if (peer == rank || outgoing.count(peer) > 0) continue;
    sockaddr_un address;
    const socklen_t length = address_of(id, peer, address);
    const int fd = ::socket(AF_UNIX, SOCK_STREAM | SOCK_CLOEXEC, 0);
    if (::connect(fd, reinterpret_cast<sockaddr*>(&address), length) != 0 ||
        !write_all(fd, &rank, sizeof(rank))) {
      ::close(fd);
      return false;
    }
    outgoing[peer] = fd;
  }
  return true;
}

bool ncclComm::take(int fd, int from) {
  uint64_t bytes = 0;
  if (!read_all(fd, &bytes, sizeof(bytes))) return false;
  Message message(bytes);
  if (!read_all(fd, message.data(), bytes)) return false;
  const std::lock_guard lock(mutex);
  received[from].push_back(std::move(message));
  return true;
}

void ncclComm::receive(int listener) {
  std::vector<pollfd> fds = {{stop[0], POLLIN, 0}, {listener, POLLIN, 0}};
  std::map<int, int> peer_of;
  while (::poll(fds.data(), fds.size(), -1) > 0 && fds[0].revents == 0) {
    for (size_t i = fds.size(); i-- > 2;) {
      if (fds[i].revents != 0 && !take(fds[i].fd, peer_of[fds[i].fd])) {
        ::close(fds[i].fd);
        fds.erase(fds.begin() + static_cast<std::ptrdiff_t>(i));
      }
    }
    if (fds[1].revents != 0) {
      const int fd = ::accept(listener, nullptr, nullptr);
      int peer = -1;
      if (fd >= 0 && read_all(fd, &peer, sizeof(peer))) {
        peer_of[fd] = peer;
        fds.push_back({fd, POLLIN, 0});
      }
    }
  }
  for (size_t i = 1; i < fds.size(); ++i) ::close(fds[i].fd);
}

ncclComm::~ncclComm() {
  if (receiver.joinable()) {
    (void)!::write(stop[1], "", 1);
    receiver.join();
  }
  for (const auto& [peer, fd] : outgoing) ::close(fd);
  for (const int fd : stop) {
    if (fd >= 0) ::close(fd);
  }
}

namespace {

using accord::comm::kNcclInProgress;
using accord::comm::kNcclSuccess;
using accord::comm::NcclHandle;

int get_unique_id(accord::comm::NcclId* id) {
  const std::lock_guard lock(counts().mutex);
  if (counts().faults.no_id) return kInternalError;
  const std::string text = "fake nccl " + std::to_string(::getpid()) + " " + std::to_string(counts().ids++);
  std::memcpy(id->bytes, text.data(), text.size());
  return kNcclSuccess;
}

int init(NcclHandle* comm, int size, accord::comm::NcclId id, int rank, accord::comm::NcclConfig* config) {
  if (config->blocking != 0 || config->magic != 0xcafebeef) return kInvalidArgument;
  *comm = new ncclComm();
  (*comm)->id = id.bytes;
  (*comm)->rank = rank;
  (*comm)->size = size;
  if (rank != faults().stay_away && !(*comm)->listen()) return kSystemError;
  return kNcclInProgress;
}

int get_async_error(NcclHandle comm, int* state) {
  *state = kNcclInProgress;
  if (comm->rank == faults().stay_away || !comm->connect_all()) return kNcclSuccess;
  if (comm->rank == faults().error_on) {
    *state = kInternalError;
    return kNcclSuccess;
  }
  const std::lock_guard lock(comm->mutex);
  while (!comm->waiting.empty()) {
    const Op& op = comm->waiting.front();
    std::deque<Message>& box = comm->received[op.from];
    if (box.empty()) return kNcclSuccess;
    if (box.front().size() != op.bytes) {
      *state = kInvalidArgument;
      return kNcclSuccess;
    }
    copy(op.to, box.front().data(), op.bytes, op.stream);
    box.pop_front();
    comm->waiting.pop_front();
  }
  *state = kNcclSuccess;
  return kNcclSuccess;
}

int send(const void* data, size_t count, int /*type*/, int peer, NcclHandle comm, StreamHandle stream) {
  Message message(count);
  copy(message.data(), data, count, stream);
  {
    const std::lock_guard lock(counts().mutex);
    if (counts().messages++ == counts().faults.corrupt) message[0] ^= std::byte{1};
  }
  const uint64_t bytes = count;
  const int fd = comm->outgoing[peer];
  return write_all(fd, &bytes, sizeof(bytes)) && write_all(fd, message.data(), count) ? kNcclSuccess
                                                                                      : kRemoteError;
}

int recv(void* data, size_t count, int /*type*/, int peer, NcclHandle comm, StreamHandle stream) {
  comm->waiting.push_back({data, count, peer, stream});
  return kNcclInProgress;
}

int broadcast(const void* in, void* out, size_t count, int type, int root, NcclHandle comm,
              StreamHandle stream) {
  if (comm->rank != root) return recv(out, count, type, root, comm, stream);
  for (int r = 0; r < comm->size; ++r) {
    if (r == root) continue;
    if (const int result = send(in, count, type, r, comm, stream); result != kNcclSuccess) return result;
  }
  return kNcclSuccess;
}

int all_gather(const void* in, void* out, size_t count, int type, NcclHandle comm, StreamHandle stream) {
  auto* const to = static_cast<std::byte*>(out);
  for (int r = 0; r < comm->size; ++r) {
    if (r == comm->rank) {
      // Through the host: device memory is not one with it.
      Message own(count);
      copy(own.data(), in, count, stream);
      copy(to + static_cast<size_t>(r) * count, own.data(), count, stream);
    } else {
      if (const int result = send(in, count, type, r, comm, stream); result != kNcclSuccess) return result;
      recv(to + static_cast<size_t>(r) * count, count, type, r, comm, stream);
    }
  }
  return kNcclInProgress;
}

int release(NcclHandle comm, int& counter) {
  delete comm;
  const std::lock_guard lock(counts().mutex);
  ++counter;
  return kNcclSuccess;
}

}  // namespace

namespace accord::testing {

comm::NcclApi fake_nccl() {
  comm::NcclApi api;
  api.origin = "the tests' NCCL";
  api.version = 22800;
  api.get_unique_id = get_unique_id;
  api.comm_init_rank_config = init;
  api.comm_get_async_error = get_async_error;
  api.comm_finalize = [](NcclHandle) { return kNcclSuccess; };
  api.comm_destroy = [](NcclHandle comm) { return release(comm, counts().destroyed); };
  api.comm_abort = [](NcclHandle comm) { return release(comm, counts().aborted); };
  api.group_start = [] { return kNcclSuccess; };
  api.group_end = [] { return kNcclInProgress; };
  api.send = send;
  api.recv = recv;
  api.broadcast = broadcast;
  api.all_gather = all_gather;
  api.get_error_string = [](int result) { return result == kInternalError ? "internal error" : "wrong use"; };
  api.get_last_error = [](NcclHandle) { return "as asked"; };
  return api;
}

void set_faults(const NcclFaults& faults) {
  const std::lock_guard lock(counts().mutex);
  counts().faults = faults;
  counts().aborted = counts().destroyed = 0;
  counts().messages = 0;
}

int aborted() {
  const std::lock_guard lock(counts().mutex);
  return counts().aborted;
}

int destroyed() {
  const std::lock_guard lock(counts().mutex);
  return counts().destroyed;
}

}  // namespace accord::testing
