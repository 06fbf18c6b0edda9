#pragma once
// Rewards that another program computes: a process (process_scorer.hpp) or a gRPC service (rpc room). This is
// what both have in common:
//
//   samples -> batches of batch_size -> an attempt, with a deadline -> again, up to `retries` times
//           -> on_failure: an error, or failed rewards
//
// A batch counts as a whole or not at all: one reply that is missing, superfluous, out of order or not a
// finite number fails the attempt. The order of rewards is the order of samples, whatever batches do.
#include <chrono>
#include <functional>
#include <memory>

#include "base/deadline.hpp"
#include "reward/batch_scorer.hpp"

namespace accord::reward {

// Whether nobody waits for the result any more: the run is lost. Called from any thread.
using Cancelled = std::function<bool()>;
Status cancelled_error();

// How one batch reaches the other program.
class Transport {
 public:
  virtual ~Transport() = default;

  // Checks that the other side is there, before a run begins.
  virtual Status start(const Deadline& deadline) = 0;

  // One reward per request, none failed, or an error that says what the other side did. Returns by the
  // deadline. kCancelled: nobody waits for the result any more; it is neither repeated nor scored.
  virtual StatusOr<std::vector<Reward>> attempt(std::span<const ScoreRequest> batch,
                                                const Deadline& deadline) = 0;

  // Attempts that may run at the same time.
  virtual int32_t concurrency() const { return 1; }
};

struct ExternalOptions {
  int64_t batch_size = 16;
  std::chrono::milliseconds deadline{60'000};           // of one attempt
  std::chrono::milliseconds total_deadline{3'600'000};  // of one score(): what is not scored by then failed
  int64_t retries = 2;                                  // attempts after the first
  // Of a batch whose attempts all failed; NaN: it has none. Not set: that is an error.
  std::optional<double> failure_score;
  std::chrono::milliseconds pause{200};  // before the second attempt; doubles, up to kMaxPause
  Cancelled cancelled;                   // ends everything; may be empty
  WaitList* waits = nullptr;             // where status sees what is waited for; may be null
};
inline constexpr std::chrono::milliseconds kMaxPause{5'000};

// Starts the transport: an error if the other side is not there.
StatusOr<std::unique_ptr<BatchScorer>> make_external_scorer(std::unique_ptr<Transport> transport,
                                                            const ExternalOptions& options);

}  // namespace accord::reward
