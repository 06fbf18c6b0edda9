#pragma once
// What becomes of a record that cannot be used.
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "text/dataset.hpp"

namespace accord::text {

class SkippedLog {
 public:
  // `problems` takes the first few messages.
  explicit SkippedLog(std::vector<std::string>& problems) : problems_(problems) {}

  // kFail: the error, with the key that would skip such records. kSkip: counted, noted, and OK.
  Status decide(const Status& error, OnBad policy, std::string_view key, int64_t& count);

 private:
  std::vector<std::string>& problems_;
};

}  // namespace accord::text
