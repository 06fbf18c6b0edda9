#include "telemetry/progress.hpp"

#include <fcntl.h>
#include <stdlib.h>
#include <unistd.h>

#include <algorithm>

#include "support/catch.hpp"

using namespace accord::telemetry;
using std::chrono::milliseconds;

namespace {

std::string read_all(int fd) {
  std::string text;
  char buffer[4096];
  ssize_t got = 0;
  while ((got = ::read(fd, buffer, sizeof(buffer))) > 0) {
    text.append(buffer, static_cast<size_t>(got));
  }
  return text;
}

}  // namespace

TEST_CASE("a pipe gets plain lines: the first, the last, and few between") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  {
    ProgressBar bar("steps", 100, ends[1], milliseconds(60000));
    for (int i = 1; i <= 100; ++i) {
      bar.update(i, i == 100 ? "reward 0.5" : "");
    }
  }
  ::close(ends[1]);
  const std::string text = read_all(ends[0]);
  ::close(ends[0]);
  CHECK(text.rfind("steps 1/100   1%", 0) == 0);
  CHECK(std::count(text.begin(), text.end(), '\n') == 2);
  CHECK(text.find("steps 100/100 100%") != std::string::npos);
  CHECK(text.find("reward 0.5\n") != std::string::npos);
  CHECK(text.find('\r') == std::string::npos);
  CHECK(text.find('\x1b') == std::string::npos);
}

TEST_CASE("what a resumed run starts with does not count for the speed") {
  int ends[2];
  REQUIRE(::pipe(ends) == 0);
  {
    ProgressBar bar("steps", 2000, ends[1], milliseconds(60000));
    bar.start_at(1999);
    ::usleep(20'000);
    bar.update(2000);
  }
  ::close(ends[1]);
  const std::string text = read_all(ends[0]);
  ::close(ends[0]);
  // One item in at least 20 ms; counted as 2000 it would be thousands of items a second.
  CHECK(text.rfind("steps 2000/2000 100%", 0) == 0);
  CHECK(text.find(" s/item") != std::string::npos);
  CHECK(text.find("items/s") == std::string::npos);
}

TEST_CASE("a terminal gets one line that is drawn over and ended") {
  const int master = ::posix_openpt(O_RDWR | O_NOCTTY);
  REQUIRE(master >= 0);
  REQUIRE(::grantpt(master) == 0);
  REQUIRE(::unlockpt(master) == 0);
  const int terminal = ::open(::ptsname(master), O_RDWR | O_NOCTTY);
  REQUIRE(terminal >= 0);
  {
    ProgressBar bar("convert", 4, terminal);
    bar.update(0);
    bar.update(4, std::string(200, 'x'));  // too wide: cut, not wrapped
  }
  ::close(terminal);
  const std::string text = read_all(master);
  ::close(master);
  CHECK(text.rfind("\r\x1b[Kconvert [------------------------------] 0/4   0%", 0) == 0);
  CHECK(text.find("\r\x1b[Kconvert [##############################] 4/4 100%") != std::string::npos);
  CHECK(std::count(text.begin(), text.end(), '\n') == 1);
  const size_t last = text.rfind("\x1b[K") + 3;
  CHECK(text.size() - last <= 81);
}
