#pragma once
// Progress of a known number of items on stderr: one line that is redrawn on a terminal, and plain lines
// (the first, then at most one per interval, and the last) elsewhere.
//
//   steps [#########---------------------]  60/200  30%  2.1 s/item  eta 4:54  reward 0.31
#include <chrono>
#include <cstdint>
#include <string>
#include <string_view>

namespace accord::telemetry {

class ProgressBar {
 public:
  using Clock = std::chrono::steady_clock;

  // `fd` is not closed.
  ProgressBar(std::string label, int64_t total, int fd = 2,
              std::chrono::milliseconds plain_interval = std::chrono::seconds(5));
  ~ProgressBar();  // ends the line on a terminal
  ProgressBar(const ProgressBar&) = delete;
  ProgressBar& operator=(const ProgressBar&) = delete;

  // A resumed run starts with `done` items, which do not count for the speed.
  void start_at(int64_t done) { done_ = first_done_ = done; }

  // `done` items of the total are finished; `detail` ends the line. Output errors are ignored: progress is a
  // courtesy.
  void update(int64_t done, std::string_view detail = "");
  void advance(int64_t count = 1) { update(done_ + count); }

 private:
  void draw(std::string_view detail);

  std::string label_;
  int64_t total_;
  int64_t done_ = 0;
  int64_t first_done_ = 0;
  int fd_;
  bool terminal_;
  bool open_line_ = false;
  bool drawn_once_ = false;
  std::chrono::milliseconds plain_interval_;
  Clock::time_point start_;
  Clock::time_point drawn_;
};

}  // namespace accord::telemetry
