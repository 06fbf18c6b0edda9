#include "weights/ledger.hpp"

#include <fcntl.h>
#include <fmt/format.h>
#include <unistd.h>

#include <cerrno>
#include <charconv>
#include <cstring>
#include <fstream>
#include <optional>
#include <string_view>
#include <utility>

#include "base/hash.hpp"
#include "base/json_text.hpp"
#include "base/log.hpp"

namespace accord::weights {
namespace {

constexpr size_t kDigestDigits = 32;
const std::string kNoPrevious(kDigestDigits, '0');

struct LineHead {
  int64_t step = 0;
  int64_t version = 0;
  std::string_view previous;
};

bool consume(std::string_view& text, std::string_view prefix) {
  if (text.substr(0, prefix.size()) != prefix) {
    return false;
  }
  text.remove_prefix(prefix.size());
  return true;
}

bool consume_number(std::string_view& text, int64_t& value) {
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  if (result.ec != std::errc()) {
    return false;
  }
  text.remove_prefix(static_cast<size_t>(result.ptr - text.data()));
  return true;
}

// The fields that every line of ours begins with; lines can be megabytes, so the rest is not parsed.
std::optional<LineHead> head_of(std::string_view line) {
  LineHead head;
  if (!consume(line, "{\"step\":") || !consume_number(line, head.step) || !consume(line, ",\"version\":") ||
      !consume_number(line, head.version) || !consume(line, ",\"previous\":\"") ||
      line.size() <= kDigestDigits || line[kDigestDigits] != '"' || line.back() != '}') {
    return std::nullopt;
  }
  head.previous = line.substr(0, kDigestDigits);
  return head;
}

std::string_view tensors_of(std::string_view line) {
  const size_t begin = line.find(",\"tensors\":[");
  return begin == std::string_view::npos ? std::string_view() : line.substr(begin);
}

}  // namespace

struct Ledger::Kept {
  int64_t bytes = 0;
  Last last{kNoPrevious, "", -1};
  bool dropped = false;
};

StatusOr<Ledger::Kept> Ledger::scan(const std::string& path, int64_t last_step) {
  Kept kept;
  std::ifstream in(path, std::ios::binary);
  if (!in) {
    return io_error("{}: cannot read: {}", path, std::strerror(errno));
  }
  std::string line;
  for (int64_t number = 1; std::getline(in, line); ++number) {
    if (in.eof()) {
      log::warn("{}:{}: dropped a line that was cut off", path, number);
      kept.dropped = true;
      break;
    }
    const std::optional<LineHead> head = head_of(line);
    if (!head) {
      return data_error("{}:{}: not a ledger record; move the file away to begin a new ledger", path, number);
    }
    if (head->step > last_step) {  // steps ascend: all that follow are beyond too
      log::info("{}: dropped the records from line {} on, of steps after {}", path, number, last_step);
      kept.dropped = true;
      break;
    }
    if (head->previous != kept.last.digest) {
      log::warn("{}:{}: the chain is broken: a line before was changed or removed", path, number);
    }
    kept.last = {digest_hex(line), digest_hex(tensors_of(line)), head->version};
    kept.bytes += static_cast<int64_t>(line.size()) + 1;
  }
  if (in.bad()) {
    return io_error("{}: cannot read: {}", path, std::strerror(errno));
  }
  return kept;
}

StatusOr<std::unique_ptr<Ledger>> Ledger::open(const std::string& path, int64_t last_step) {
  Kept kept;
  if (::access(path.c_str(), F_OK) == 0) {
    ACCORD_ASSIGN_OR_RETURN(kept, scan(path, last_step));
  }
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return io_error("{}: cannot open to append: {}", path, std::strerror(errno));
  }
  if (kept.dropped && ::ftruncate(fd.get(), kept.bytes) != 0) {
    return io_error("{}: cannot truncate: {}", path, std::strerror(errno));
  }
  return std::unique_ptr<Ledger>(new Ledger(path, std::move(fd), std::move(kept.last)));
}

Ledger::Ledger(std::string path, FileDescriptor fd, Last last)
    : path_(std::move(path)), fd_(std::move(fd)), last_(std::move(last)) {}

Status Ledger::append(const LedgerRecord& record) {
  std::string line = fmt::format(
      "{{\"step\":{},\"version\":{},\"previous\":\"{}\",\"plan\":{},\"manifest\":{},\"build\":{},\"tensors\":"
      "[",
      record.step, record.version, last_.digest, json_string(record.plan_digest),
      json_string(record.manifest_digest), json_string(record.build_id));
  bool first = true;
  for (const LedgerTensor& tensor : record.tensors) {
    line += fmt::format("{}{{\"name\":{},\"digest\":{},\"amax\":{},\"saturated\":{},\"flushed\":{}}}",
                        first ? "" : ",", json_string(tensor.name), json_string(tensor.digest),
                        json_number(tensor.amax), json_number(tensor.saturated), json_number(tensor.flushed));
    first = false;
  }
  line += "]}";
  Last next{digest_hex(line), digest_hex(tensors_of(line)), static_cast<int64_t>(record.version)};
  if (next.version == last_.version) {
    if (next.tensors == last_.tensors) {
      return absl::OkStatus();
    }
    log::warn("{}: version {} was exported again with other bytes; both records stay", path_, record.version);
  }
  line += '\n';
  ACCORD_RETURN_IF_ERROR(write_fully(fd_.get(), path_, line));
  last_ = std::move(next);
  return absl::OkStatus();
}

}  // namespace accord::weights
