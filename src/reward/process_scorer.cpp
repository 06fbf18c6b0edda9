#include "reward/process_scorer.hpp"

#include <fmt/ranges.h>
#include <poll.h>
#include <signal.h>
#include <time.h>
#include <unistd.h>

#include <algorithm>
#include <array>
#include <cerrno>
#include <cstring>

#include "base/log.hpp"
#include "base/strict_json.hpp"
#include "reward/child_process.hpp"
#include "reward/score_lines.hpp"

namespace accord::reward {
namespace {

using namespace std::chrono_literals;

constexpr auto kLeaveGrace = 2s;      // to end after its stdin ended
constexpr auto kReapGrace = 500ms;    // to become reapable after its pipes broke
constexpr auto kCancelPoll = 200ms;   // between two looks whether anyone still waits for the result
constexpr size_t kMaxLine = 1 << 20;  // bytes of one reply

// While it lives, writing to a pipe that nobody reads is an error of write(), not a signal to this process.
class NoSigpipe {
 public:
  NoSigpipe() {
    sigemptyset(&pipe_);
    sigaddset(&pipe_, SIGPIPE);
    pthread_sigmask(SIG_BLOCK, &pipe_, &before_);
  }
  ~NoSigpipe() {
    if (sigismember(&before_, SIGPIPE) == 0) {
      const timespec now{0, 0};
      while (sigtimedwait(&pipe_, nullptr, &now) > 0) {
      }
      pthread_sigmask(SIG_SETMASK, &before_, nullptr);
    }
  }
  NoSigpipe(const NoSigpipe&) = delete;
  NoSigpipe& operator=(const NoSigpipe&) = delete;

 private:
  sigset_t pipe_{};
  sigset_t before_{};
};

// One batch on its way through the pipes.
class Exchange {
 public:
  Exchange(ChildProcess& child, std::span<const ScoreRequest> batch, uint64_t first_id,
           const Cancelled& cancelled)
      : child_(child), count_(batch.size()), first_id_(first_id), cancelled_(cancelled) {
    for (size_t i = 0; i < count_; ++i) {
      outgoing_ += request_line(batch[i], first_id + i, i, count_);
    }
  }

  StatusOr<std::vector<Reward>> run(const Deadline& deadline) {
    const NoSigpipe guard;
    const auto begin = Deadline::Clock::now();
    while (replies_.size() < count_) {
      const std::chrono::duration<double> waited = Deadline::Clock::now() - begin;
      if (deadline.expired()) {
        return make_error(absl::StatusCode::kDeadlineExceeded, ExitCode::kUnavailable,
                          fmt::format("it gave {} of {} replies within {:.1f} s (reward.deadline_s)",
                                      replies_.size(), count_, waited.count()));
      }
      std::array<pollfd, 2> fds{
          {{child_.output(), POLLIN, 0}, {sent_ < outgoing_.size() ? child_.input() : -1, POLLOUT, 0}}};
      if (cancelled_ && cancelled_()) {
        return cancelled_error();
      }
      const auto patience = std::min<int64_t>(deadline.remaining().count() + 1, kCancelPoll.count());
      if (poll(fds.data(), fds.size(), static_cast<int>(patience)) < 0) {
        if (errno == EINTR) {
          continue;
        }
        return internal_error("poll: {}", std::strerror(errno));
      }
      if (fds[0].revents != 0) {
        ACCORD_RETURN_IF_ERROR(receive());
      }
      if (fds[1].revents != 0 && replies_.size() < count_) {
        ACCORD_RETURN_IF_ERROR(send());
      }
    }
    if (!incoming_.empty() || sent_ < outgoing_.size()) {
      return data_error("it wrote more than the {} replies that were due: '{}'", count_,
                        printable(incoming_));
    }
    return std::move(replies_);
  }

 private:
  Status send() {
    const ssize_t wrote = write(child_.input(), outgoing_.data() + sent_, outgoing_.size() - sent_);
    if (wrote > 0) {
      sent_ += static_cast<size_t>(wrote);
    } else if (wrote < 0 && errno != EAGAIN && errno != EINTR) {
      return broken("stopped reading its standard input");
    }
    return absl::OkStatus();
  }

  Status receive() {
    std::array<char, 65536> buffer;
    const ssize_t got = read(child_.output(), buffer.data(), buffer.size());
    if (got < 0 && (errno == EAGAIN || errno == EINTR)) {
      return absl::OkStatus();
    }
    if (got <= 0) {
      return broken("closed its standard output");
    }
    incoming_.append(buffer.data(), static_cast<size_t>(got));
    size_t begin = 0;
    for (size_t end = incoming_.find('\n', searched_); end != std::string::npos && replies_.size() < count_;
         end = incoming_.find('\n', begin)) {
      ACCORD_ASSIGN_OR_RETURN(
          Reward reward,
          parse_reply(std::string_view(incoming_).substr(begin, end - begin), first_id_ + replies_.size()));
      replies_.push_back(std::move(reward));
      begin = end + 1;
    }
    incoming_.erase(0, begin);
    searched_ = incoming_.size();
    if (incoming_.size() > kMaxLine) {
      return data_error("it wrote a line of more than {} bytes: '{}'", kMaxLine,
                        printable(std::string_view(incoming_).substr(0, kMaxLine)));
    }
    return absl::OkStatus();
  }

  Status broken(std::string_view what) const {
    const std::string end = child_.wait_end(kReapGrace);
    return unavailable_error("it {} after {} of {} replies", end.empty() ? what : end, replies_.size(),
                             count_);
  }

  ChildProcess& child_;
  const size_t count_;
  const uint64_t first_id_;
  std::string outgoing_;
  size_t sent_ = 0;
  std::string incoming_;
  size_t searched_ = 0;  // of incoming_: no line ends before
  const Cancelled& cancelled_;
  std::vector<Reward> replies_;
};

class ProcessTransport : public Transport {
 public:
  explicit ProcessTransport(const ProcessOptions& options) : options_(options) {}

  ~ProcessTransport() override {
    if (child_) {
      child_->close_input();
      if (child_->wait_end(kLeaveGrace).empty()) {
        log::warn("{}: it did not end within {} s after its standard input did, and is killed", name(),
                  kLeaveGrace.count());
      }
    }
  }

  Status start(const Deadline&) override {
    StatusOr<std::unique_ptr<ChildProcess>> child = ChildProcess::start(options_.command, options_.log_path);
    if (!child.ok()) {
      return annotate(child.status(), "reward.command");
    }
    child_ = *std::move(child);
    log::info("{} has process id {}", name(), child_->pid());
    return absl::OkStatus();
  }

  StatusOr<std::vector<Reward>> attempt(std::span<const ScoreRequest> batch,
                                        const Deadline& deadline) override {
    StatusOr<std::vector<Reward>> rewards = try_attempt(batch, deadline);
    if (rewards.ok()) {
      return rewards;
    }
    // Whatever it still says belongs to no batch: the next attempt talks to a new process.
    std::string tail;
    if (child_) {
      child_->kill_group();
      tail = child_->error_tail();
      child_.reset();
    }
    const std::string where = options_.log_path.empty() ? "above" : options_.log_path;
    return annotate(make_error(rewards.status().code(), exit_code(rewards.status()),
                               fmt::format("{} (its standard error: {}){}{}", message_of(rewards.status()),
                                           where, tail.empty() ? "" : "\n", tail)),
                    name());
  }

 private:
  StatusOr<std::vector<Reward>> try_attempt(std::span<const ScoreRequest> batch, const Deadline& deadline) {
    ACCORD_RETURN_IF_ERROR(check_idle());
    if (!child_) {
      ACCORD_RETURN_IF_ERROR(start(deadline));
    }
    const uint64_t first = next_id_;
    next_id_ += batch.size();
    return Exchange(*child_, batch, first, options_.cancelled).run(deadline);
  }

  // Between batches a scorer has nothing to say. One that ended meanwhile is started again.
  Status check_idle() {
    if (!child_) {
      return absl::OkStatus();
    }
    std::array<char, 256> buffer;
    const ssize_t got = read(child_->output(), buffer.data(), buffer.size());
    if (got > 0) {
      return data_error("it wrote what nobody asked for, outside of a batch: '{}'",
                        printable(std::string_view(buffer.data(), static_cast<size_t>(got))));
    }
    if (got == 0) {
      const std::string end = child_->wait_end(kReapGrace);
      log::warn("{}: it {} between two batches and is started again", name(),
                end.empty() ? "closed its standard output" : end);
      child_.reset();
    }
    return absl::OkStatus();
  }

  std::string name() const {
    return fmt::format("reward scorer '{}'", printable(fmt::format("{}", fmt::join(options_.command, " "))));
  }

  const ProcessOptions options_;
  std::unique_ptr<ChildProcess> child_;
  uint64_t next_id_ = 1;
};

}  // namespace

std::unique_ptr<Transport> make_process_transport(const ProcessOptions& options) {
  return std::make_unique<ProcessTransport>(options);
}

}  // namespace accord::reward
