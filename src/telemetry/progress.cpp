#include "telemetry/progress.hpp"

#include <fmt/format.h>
#include <sys/ioctl.h>
#include <unistd.h>

#include <algorithm>
#include <cmath>
#include <utility>

#include "base/files.hpp"

namespace accord::telemetry {
namespace {

constexpr int64_t kBarWidth = 30;
constexpr size_t kDefaultColumns = 80;
constexpr std::chrono::milliseconds kTerminalInterval{100};

std::string duration_text(double seconds) {
  const auto whole = std::llround(seconds);
  if (whole >= 3600) {
    return fmt::format("{}:{:02}:{:02}", whole / 3600, whole / 60 % 60, whole % 60);
  }
  return fmt::format("{}:{:02}", whole / 60, whole % 60);
}

size_t columns_of(int fd) {
  winsize size{};
  return ::ioctl(fd, TIOCGWINSZ, &size) == 0 && size.ws_col > 0 ? size.ws_col : kDefaultColumns;
}

}  // namespace

ProgressBar::ProgressBar(std::string label, int64_t total, int fd, std::chrono::milliseconds plain_interval)
    : label_(std::move(label)),
      total_(std::max<int64_t>(total, 0)),
      fd_(fd),
      terminal_(::isatty(fd) == 1),
      plain_interval_(plain_interval),
      start_(Clock::now()) {}

ProgressBar::~ProgressBar() {
  if (open_line_) {
    write_fully(fd_, "", "\n").IgnoreError();
  }
}

void ProgressBar::update(int64_t done, std::string_view detail) {
  const auto now = Clock::now();
  done_ = std::clamp<int64_t>(done, 0, total_);
  const auto interval = terminal_ ? kTerminalInterval : plain_interval_;
  if (!drawn_once_ || done_ == total_ || now - drawn_ >= interval) {
    drawn_ = now;
    drawn_once_ = true;
    draw(detail);
  }
}

void ProgressBar::draw(std::string_view detail) {
  const double fraction = total_ > 0 ? static_cast<double>(done_) / static_cast<double>(total_) : 1.0;
  std::string line = label_ + " ";
  if (terminal_) {
    const auto filled = static_cast<size_t>(fraction * kBarWidth);
    line += fmt::format("[{}{}] ", std::string(filled, '#'), std::string(kBarWidth - filled, '-'));
  }
  line += fmt::format("{}/{} {:3.0f}%", done_, total_, fraction * 100);
  const int64_t counted = done_ - first_done_;
  if (counted > 0) {
    const double elapsed = std::chrono::duration<double>(Clock::now() - start_).count();
    const double per_item = elapsed / static_cast<double>(counted);
    line += per_item >= 1e-3 ? fmt::format("  {:.3g} s/item", per_item)
                             : fmt::format("  {:.3g} items/s", 1.0 / std::max(per_item, 1e-12));
    line += done_ < total_ ? "  eta " + duration_text(per_item * static_cast<double>(total_ - done_))
                           : "  in " + duration_text(elapsed);
  }
  if (!detail.empty()) {
    line += "  ";
    line += detail;
  }
  if (terminal_) {
    line.resize(std::min(line.size(), columns_of(fd_) - 1));  // a wrapped line could not be redrawn
    line = "\r\x1b[K" + line;
    open_line_ = true;
  } else {
    line += '\n';
  }
  write_fully(fd_, "", line).IgnoreError();
}

}  // namespace accord::telemetry
