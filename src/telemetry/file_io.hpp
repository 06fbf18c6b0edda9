#pragma once
// Whole-buffer writes to a file descriptor.
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord::telemetry {

// Writes all of `bytes`; `path` is for the message. Errors: kIo.
Status write_fully(int fd, const std::string& path, std::string_view bytes);

}  // namespace accord::telemetry
