#include "base/log.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <atomic>
#include <sstream>
#include <string>
#include <thread>
#include <vector>

#include "support/catch.hpp"
#include "support/temp_dir.hpp"

using namespace accord;

namespace {

// Standard error goes to a file meanwhile.
class StderrTo {
 public:
  explicit StderrTo(const std::string& path) : before_(::dup(STDERR_FILENO)) {
    const int file = ::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND, 0600);
    REQUIRE(file >= 0);
    ::dup2(file, STDERR_FILENO);
    ::close(file);
  }
  ~StderrTo() {
    ::dup2(before_, STDERR_FILENO);
    ::close(before_);
  }
  StderrTo(const StderrTo&) = delete;
  StderrTo& operator=(const StderrTo&) = delete;

 private:
  const int before_;
};

}  // namespace

// A worker that waited for its controller registers, and is logged, while the controller adds its log file.
TEST_CASE("a log file is added while another thread writes") {
  constexpr int kFiles = 33;
  const TempDir dir;
  std::atomic<int> written{0};
  Status added;
  {
    const StderrTo file(dir / "stderr");
    std::atomic<bool> ended{false};
    std::thread writer([&] {
      while (!ended) {
        log::info("line {}", written++);
      }
    });
    for (int i = 0; i < kFiles && added.ok(); ++i) {
      for (const int before = written; written == before;) {  // between two files it writes
        std::this_thread::yield();
      }
      added = log::add_file(dir / std::to_string(i));
      // A list that was freed under the writer is not read unnoticed: its memory is used again.
      for (size_t bytes = 16; bytes <= 1024; bytes *= 2) {
        const std::vector<unsigned char> other(bytes, 0xff);
        CHECK(other.back() == 0xff);
      }
    }
    ended = true;
    writer.join();
    log::info("line {}", written++);
  }
  CHECK(message_of(added) == "");

  std::istringstream lines(slurp(dir / "stderr"));
  std::string line;
  std::string others;
  int next = 0;
  while (std::getline(lines, line)) {
    if (line.ends_with(fmt::format("line {}", next))) {
      ++next;
    } else {
      others += line + '\n';
    }
  }
  CHECK(others == "");
  CHECK(next == written);
  for (int i = 0; i < kFiles; ++i) {
    INFO("file " << i);
    CHECK(slurp(dir / std::to_string(i)).ends_with(fmt::format("line {}\n", written - 1)));
  }
}
