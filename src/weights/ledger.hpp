#pragma once
// ledger.jsonl: one line per weight version, what was broadcast and how well its formats held it.
//
//   {"step":3,"version":3,"previous":"<digest of the line
//   before>","plan":"...","manifest":"...","build":"...",
//    "tensors":[{"name":"...","digest":"...","amax":0.5,"saturated":0,"flushed":0.01},...]}
//
// `previous` chains the lines (32 zeros in the first), so that a changed or missing line shows.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "base/status.hpp"

namespace accord::weights {

struct LedgerTensor {
  std::string name;
  std::string digest;
  double amax = 0.0;
  double saturated = 0.0;  // shares of the tensor's elements
  double flushed = 0.0;
};

struct LedgerRecord {
  int64_t step = 0;
  uint64_t version = 0;
  std::string plan_digest;
  std::string manifest_digest;
  std::string build_id;
  std::vector<LedgerTensor> tensors;
};

class Ledger {
 public:
  // Opens `path` to append. Lines of steps beyond `last_step` (-1 for a fresh run) and a last line that a
  // crash cut off are removed, which is logged; a broken chain is logged with its line number. Errors: kIo;
  // kBadData for a line inside that is no record.
  static StatusOr<std::unique_ptr<Ledger>> open(const std::string& path, int64_t last_step);

  // Appends one line and hands it to the operating system. The last version again (a resumed run exports it
  // anew) adds no line if its tensors are the same; if they differ, that is logged and both lines stay.
  // Errors: kIo.
  Status append(const LedgerRecord& record);

 private:
  // What is remembered of a line.
  struct Last {
    std::string digest;   // of the line
    std::string tensors;  // digest of its tensors
    int64_t version = -1;
  };
  struct Kept;
  static StatusOr<Kept> scan(const std::string& path, int64_t last_step);
  Ledger(std::string path, FileDescriptor fd, Last last);

  std::string path_;
  FileDescriptor fd_;
  Last last_;
};

}  // namespace accord::weights
