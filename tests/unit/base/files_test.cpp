#include "base/files.hpp"

#include <sys/stat.h>
#include <unistd.h>

#include <filesystem>
#include <string>

#include "support/catch.hpp"

namespace accord {
namespace {

TEST_CASE("A named pipe is refused, not waited for") {
  const std::string path = std::filesystem::temp_directory_path() / fmt::format("accord-fifo-{}", ::getpid());
  REQUIRE(::mkfifo(path.c_str(), 0600) == 0);
  const Status read = read_file(path, 100).status();
  const Status mapped = MappedFile::open(path).status();
  ::unlink(path.c_str());
  CHECK(exit_code(read) == ExitCode::kIo);
  CHECK(std::string(message_of(read)).find("not a regular file") != std::string::npos);
  CHECK(exit_code(mapped) == ExitCode::kIo);
}

}  // namespace
}  // namespace accord
