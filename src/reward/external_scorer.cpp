#include "reward/external_scorer.hpp"

#include <algorithm>
#include <atomic>
#include <cmath>
#include <thread>

#include "base/log.hpp"

namespace accord::reward {
namespace {

// The end of a process's standard error follows; it is in its log already.
std::string_view first_line(std::string_view message) { return message.substr(0, message.find('\n')); }

constexpr std::chrono::milliseconds kCancelPoll{100};

class ExternalScorer : public BatchScorer {
 public:
  ExternalScorer(std::unique_ptr<Transport> transport, const ExternalOptions& options)
      : transport_(std::move(transport)), options_(options) {}

  Status start() {
    const Wait wait(options_.waits, "the reward scorer to start", Deadline::after(options_.deadline));
    return transport_->start(wait.deadline());
  }

  Status check_label(std::string_view) const override { return absl::OkStatus(); }
  bool scores_failures() const override { return options_.failure_score.has_value(); }

  StatusOr<std::vector<Reward>> score(std::span<const ScoreRequest> requests) override {
    std::vector<Reward> rewards(requests.size());
    const Deadline total = Deadline::after(options_.total_deadline);
    const auto size = static_cast<size_t>(options_.batch_size);
    const size_t batches = (requests.size() + size - 1) / size;
    std::vector<Status> results(batches, absl::OkStatus());
    std::atomic<size_t> next{0};
    std::atomic<bool> failed{false};
    const auto work = [&] {
      for (size_t b = next++; b < batches && !failed; b = next++) {
        const size_t begin = b * size;
        const size_t count = std::min(size, requests.size() - begin);
        results[b] =
            score_batch(requests.subspan(begin, count), std::span(rewards).subspan(begin, count), total);
        if (!results[b].ok()) {
          failed = true;
        }
      }
    };
    const auto workers =
        std::min<size_t>(batches, static_cast<size_t>(std::max(1, transport_->concurrency())));
    if (workers <= 1) {
      work();
    } else {
      std::vector<std::thread> threads;
      for (size_t i = 0; i < workers; ++i) {
        threads.emplace_back(work);
      }
      for (std::thread& thread : threads) {
        thread.join();
      }
    }
    for (const Status& result : results) {
      ACCORD_RETURN_IF_ERROR(result);
    }
    return rewards;
  }

 private:
  Status score_batch(std::span<const ScoreRequest> batch, std::span<Reward> rewards, const Deadline& total) {
    const ScoreRequest& first = batch.front();
    const std::string name =
        fmt::format("{} samples of {} in step {}, the first of prompt {} with index {}", batch.size(),
                    first.set, first.step, first.prompt_id, first.sample_index);
    const int64_t attempts = options_.retries + 1;
    std::chrono::milliseconds pause = options_.pause;
    Status last =
        unavailable_error("not asked for: the time for all batches is over (reward.total_deadline_s)");
    int64_t made = 0;
    while (made < attempts && !total.expired()) {
      if (made > 0) {
        sleep(total.within(pause));
        pause = std::min(2 * pause, kMaxPause);
      }
      if (is_cancelled()) {
        return annotate(cancelled_error(), "rewards of " + name);
      }
      ++made;
      StatusOr<std::vector<Reward>> scored = try_once(batch, name, total);
      if (scored.ok()) {
        std::move(scored->begin(), scored->end(), rewards.begin());
        return absl::OkStatus();
      }
      last = scored.status();
      if (absl::IsCancelled(last)) {
        return annotate(last, "rewards of " + name);
      }
      log::warn("rewards of {}: attempt {} of {} failed: {}", name, made, attempts,
                first_line(message_of(last)));
    }
    if (!options_.failure_score) {
      return annotate(last,
                      fmt::format("rewards of {}: {} of {} attempts failed (reward.retries, deadline_s, "
                                  "total_deadline_s and on_failure decide about it); the last",
                                  name, made, attempts));
    }
    log::warn("rewards of {}: they {}: {}", name,
              std::isnan(*options_.failure_score)
                  ? "have no score"
                  : fmt::format("count as failed and score {}", *options_.failure_score),
              first_line(message_of(last)));
    for (Reward& reward : rewards) {
      reward = {*options_.failure_score, std::nullopt, "", true};
    }
    return absl::OkStatus();
  }

  bool is_cancelled() const { return options_.cancelled && options_.cancelled(); }

  // Until then, or until nobody waits any more.
  void sleep(const Deadline& until) const {
    while (!until.expired() && !is_cancelled()) {
      std::this_thread::sleep_for(std::min(until.remaining() + std::chrono::milliseconds(1), kCancelPoll));
    }
  }

  StatusOr<std::vector<Reward>> try_once(std::span<const ScoreRequest> batch, const std::string& name,
                                         const Deadline& total) {
    const Wait wait(options_.waits, "rewards of " + name, total.within(options_.deadline));
    ACCORD_ASSIGN_OR_RETURN(std::vector<Reward> rewards, transport_->attempt(batch, wait.deadline()));
    if (rewards.size() != batch.size()) {
      return data_error("the scorer gave {} replies to {} samples", rewards.size(), batch.size());
    }
    for (size_t i = 0; i < rewards.size(); ++i) {
      if (!std::isfinite(rewards[i].score)) {
        return data_error("the scorer's reply {} has the score {}; it must be a finite number", i,
                          rewards[i].score);
      }
    }
    return rewards;
  }

  const std::unique_ptr<Transport> transport_;
  const ExternalOptions options_;
};

}  // namespace

Status cancelled_error() {
  return make_error(absl::StatusCode::kCancelled, ExitCode::kUnavailable, "cancelled: the run ends");
}

StatusOr<std::unique_ptr<BatchScorer>> make_external_scorer(std::unique_ptr<Transport> transport,
                                                            const ExternalOptions& options) {
  auto scorer = std::make_unique<ExternalScorer>(std::move(transport), options);
  ACCORD_RETURN_IF_ERROR(scorer->start());
  return std::unique_ptr<BatchScorer>(std::move(scorer));
}

}  // namespace accord::reward
