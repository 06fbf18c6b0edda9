#include "telemetry/file_io.hpp"

#include <unistd.h>

#include <cerrno>
#include <cstring>

namespace accord::telemetry {

Status write_fully(int fd, const std::string& path, std::string_view bytes) {
  while (!bytes.empty()) {
    const ssize_t written = ::write(fd, bytes.data(), bytes.size());
    if (written < 0) {
      if (errno == EINTR) {
        continue;
      }
      return io_error("{}: cannot write: {}", path, std::strerror(errno));
    }
    bytes.remove_prefix(static_cast<size_t>(written));
  }
  return absl::OkStatus();
}

}  // namespace accord::telemetry
