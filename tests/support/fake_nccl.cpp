#include "support/fake_nccl.hpp"

#include <cstring>
#include <deque>
#include <map>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <utility>
#include <vector>

#include "device/backend.hpp"

namespace {

using accord::StreamHandle;
using accord::testing::NcclFaults;

using Message = std::vector<std::byte>;

struct Op {
  void* to = nullptr;
  size_t bytes = 0;
  int from = 0;
  StreamHandle stream = nullptr;
};

// All communicators of the process, found by their ids.
struct Hub {
  std::mutex mutex;
  NcclFaults faults;
  int ids = 0;
  int aborted = 0;
  int destroyed = 0;
  int64_t messages = 0;
  std::map<std::string, std::set<int>> arrived;
  std::map<std::string, std::map<std::pair<int, int>, std::deque<Message>>> boxes;  // id, (from, to)
};

Hub& hub() {
  static Hub instance;
  return instance;
}

void copy(void* to, const void* from, size_t bytes, StreamHandle stream) {
  if (stream == nullptr) {
    std::memcpy(to, from, bytes);
    return;
  }
  (void)accord::backend::copy(to, from, bytes, stream);
  (void)accord::backend::synchronize_stream(stream);
}

}  // namespace

struct ncclComm {
  std::string id;
  int rank = 0;
  int size = 0;
  std::deque<Op> waiting;
};

namespace {

constexpr int kInternalError = 3;
constexpr int kInvalidArgument = 4;

int get_unique_id(accord::comm::NcclId* id) {
  const std::lock_guard lock(hub().mutex);
  if (hub().faults.no_id) return kInternalError;
  const std::string text = "fake " + std::to_string(hub().ids++);
  std::memcpy(id->bytes, text.data(), text.size());
  return accord::comm::kNcclSuccess;
}

int init(accord::comm::NcclHandle* comm, int size, accord::comm::NcclId id, int rank,
         accord::comm::NcclConfig* config) {
  if (config->blocking != 0 || config->magic != 0xcafebeef) return kInvalidArgument;
  const std::lock_guard lock(hub().mutex);
  *comm = new ncclComm{id.bytes, rank, size, {}};
  if (rank != hub().faults.stay_away) hub().arrived[id.bytes].insert(rank);
  return accord::comm::kNcclInProgress;
}

int get_async_error(accord::comm::NcclHandle comm, int* state) {
  const std::lock_guard lock(hub().mutex);
  *state = accord::comm::kNcclInProgress;
  if (static_cast<int>(hub().arrived[comm->id].size()) < comm->size) return accord::comm::kNcclSuccess;
  if (comm->rank == hub().faults.error_on) {
    *state = kInternalError;
    return accord::comm::kNcclSuccess;
  }
  auto& boxes = hub().boxes[comm->id];
  while (!comm->waiting.empty()) {
    const Op& op = comm->waiting.front();
    std::deque<Message>& box = boxes[{op.from, comm->rank}];
    if (box.empty()) return accord::comm::kNcclSuccess;
    if (box.front().size() != op.bytes) {
      *state = kInvalidArgument;
      return accord::comm::kNcclSuccess;
    }
    copy(op.to, box.front().data(), op.bytes, op.stream);
    box.pop_front();
    comm->waiting.pop_front();
  }
  *state = accord::comm::kNcclSuccess;
  return accord::comm::kNcclSuccess;
}

int send(const void* data, size_t count, int /*type*/, int peer, accord::comm::NcclHandle comm,
         StreamHandle stream) {
  Message message(count);
  copy(message.data(), data, count, stream);
  const std::lock_guard lock(hub().mutex);
  if (hub().messages++ == hub().faults.corrupt) message[0] ^= std::byte{1};
  hub().boxes[comm->id][{comm->rank, peer}].push_back(std::move(message));
  return accord::comm::kNcclSuccess;
}

int recv(void* data, size_t count, int /*type*/, int peer, accord::comm::NcclHandle comm,
         StreamHandle stream) {
  comm->waiting.push_back({data, count, peer, stream});
  return accord::comm::kNcclInProgress;
}

int broadcast(const void* in, void* out, size_t count, int type, int root, accord::comm::NcclHandle comm,
              StreamHandle stream) {
  if (comm->rank != root) return recv(out, count, type, root, comm, stream);
  for (int r = 0; r < comm->size; ++r) {
    if (r != root) send(in, count, type, r, comm, stream);
  }
  return accord::comm::kNcclSuccess;
}

int all_gather(const void* in, void* out, size_t count, int type, accord::comm::NcclHandle comm,
               StreamHandle stream) {
  auto* const to = static_cast<std::byte*>(out);
  for (int r = 0; r < comm->size; ++r) {
    if (r == comm->rank) {
      copy(to + static_cast<size_t>(r) * count, in, count, stream);
    } else {
      send(in, count, type, r, comm, stream);
      recv(to + static_cast<size_t>(r) * count, count, type, r, comm, stream);
    }
  }
  return accord::comm::kNcclInProgress;
}

int release(accord::comm::NcclHandle comm, int& counter) {
  const std::lock_guard lock(hub().mutex);
  ++counter;
  delete comm;
  return accord::comm::kNcclSuccess;
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
  api.comm_finalize = [](comm::NcclHandle) { return comm::kNcclSuccess; };
  api.comm_destroy = [](comm::NcclHandle comm) { return release(comm, hub().destroyed); };
  api.comm_abort = [](comm::NcclHandle comm) { return release(comm, hub().aborted); };
  api.group_start = [] { return comm::kNcclSuccess; };
  api.group_end = [] { return comm::kNcclInProgress; };
  api.send = send;
  api.recv = recv;
  api.broadcast = broadcast;
  api.all_gather = all_gather;
  api.get_error_string = [](int result) { return result == kInternalError ? "internal error" : "wrong use"; };
  api.get_last_error = [](comm::NcclHandle) { return "as asked"; };
  return api;
}

void set_faults(const NcclFaults& faults) {
  const std::lock_guard lock(hub().mutex);
  hub().faults = faults;
  hub().aborted = hub().destroyed = 0;
  hub().messages = 0;
  hub().arrived.clear();
  hub().boxes.clear();
}

int aborted() {
  const std::lock_guard lock(hub().mutex);
  return hub().aborted;
}

int destroyed() {
  const std::lock_guard lock(hub().mutex);
  return hub().destroyed;
}

}  // namespace accord::testing
