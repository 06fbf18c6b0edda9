#include "text/skipped.hpp"

#include "base/log.hpp"

namespace accord::text {
namespace {

constexpr size_t kMaxProblems = 5;

}  // namespace

Status SkippedLog::decide(const Status& error, OnBad policy, std::string_view key, int64_t& count) {
  if (policy == OnBad::kFail) {
    return key.empty() ? data_error("{} (correct the record)", message_of(error))
                       : data_error("{} (correct the record, or set {}: skip)", message_of(error), key);
  }
  ++count;
  if (problems_.size() < kMaxProblems) {
    problems_.emplace_back(message_of(error));
    log::warn("skipped: {}", message_of(error));
  }
  return absl::OkStatus();
}

}  // namespace accord::text
