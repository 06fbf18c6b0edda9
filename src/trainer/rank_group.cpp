#include "trainer/rank_group.hpp"

#include <algorithm>
#include <cstring>
#include <string_view>

namespace accord::trainer {

namespace {

// A status as it travels. A longer message is cut.
struct StatusRecord {
  int32_t canonical = 0;  // 0: OK
  int32_t exit_code = 0;
  int32_t length = 0;
  char text[1012] = {};
};

StatusRecord to_record(const Status& status) {
  StatusRecord record;
  if (status.ok()) return record;
  const std::string_view text = message_of(status);
  record.canonical = static_cast<int32_t>(status.code());
  record.exit_code = static_cast<int32_t>(exit_code(status));
  record.length = static_cast<int32_t>(std::min(text.size(), sizeof(record.text)));
  std::memcpy(record.text, text.data(), static_cast<size_t>(record.length));
  return record;
}

Status to_status(const StatusRecord& record) {
  return make_error(static_cast<absl::StatusCode>(record.canonical), static_cast<ExitCode>(record.exit_code),
                    std::string_view(record.text, static_cast<size_t>(record.length)));
}

}  // namespace

Status RankGroup::connect(Communicator& communicator) {
  if (communicator.rank() != rank_ || communicator.size() != size_) {
    return internal_error("trainer: rank {} of {} was given the communicator of rank {} of {}", rank_, size_,
                          communicator.rank(), communicator.size());
  }
  communicator_ = &communicator;
  return absl::OkStatus();
}

StatusOr<Communicator*> RankGroup::communicator() const {
  if (communicator_ == nullptr)
    return internal_error("trainer: rank {} of {} is not connected", rank_, size_);
  return communicator_;
}

Status RankGroup::gather_bytes(const void* in, int64_t bytes, void* out, Deadline deadline) const {
  if (alone()) {
    std::memcpy(out, in, static_cast<size_t>(bytes));
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(Communicator* const group, communicator());
  return group->all_gather(in, bytes, out, deadline);
}

Status RankGroup::concatenate_bytes(const void* in, std::span<const int64_t> counts, int64_t element_bytes,
                                    void* out, Deadline deadline) const {
  const int64_t mine = counts[static_cast<size_t>(rank_)] * element_bytes;
  if (alone()) {
    if (mine > 0) std::memcpy(out, in, static_cast<size_t>(mine));
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(Communicator* const group, communicator());
  std::byte* at = static_cast<std::byte*>(out);
  for (int32_t r = 0; r < size_; ++r) {
    const int64_t bytes = counts[static_cast<size_t>(r)] * element_bytes;
    if (r == rank_ && mine > 0) std::memcpy(at, in, static_cast<size_t>(mine));
    ACCORD_RETURN_IF_ERROR(group->broadcast(at, bytes, r, deadline));
    at += bytes;
  }
  return absl::OkStatus();
}

Status RankGroup::agree(const Status& mine, Deadline deadline) const {
  if (alone()) return mine;
  const auto all = gather(to_record(mine), deadline);
  if (!all.ok()) return mine.ok() ? all.status() : mine;
  for (const StatusRecord& record : *all) {
    if (record.canonical != 0) return to_status(record);
  }
  return absl::OkStatus();
}

}  // namespace accord::trainer
