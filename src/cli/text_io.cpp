#include "cli/text_io.hpp"

#include <cstdio>
#include <filesystem>
#include <iostream>
#include <iterator>

#include "base/files.hpp"

namespace accord::cli {
namespace {

constexpr int64_t kMaxInputBytes = int64_t{16} << 30;

}  // namespace

StatusOr<std::string> read_input(const std::string& path) {
  if (path != "-") {
    return read_file(path, kMaxInputBytes);
  }
  std::string text((std::istreambuf_iterator<char>(std::cin)), std::istreambuf_iterator<char>());
  if (std::cin.bad()) {
    return io_error("cannot read standard input");
  }
  return text;
}

Status write_output(const std::string& path, std::string_view text) {
  if (path != "-") {
    return write_file_atomic(path, text);
  }
  if (std::fwrite(text.data(), 1, text.size(), stdout) != text.size() || std::fflush(stdout) != 0) {
    return io_error("cannot write to standard output");
  }
  return absl::OkStatus();
}

Status refuse_same_file(const std::string& input, const std::string& output) {
  std::error_code none;
  if (input != "-" && output != "-" && std::filesystem::equivalent(input, output, none)) {
    return usage_error("{}: the output would replace the input; name another file", output);
  }
  return absl::OkStatus();
}

std::string input_name(const std::string& path) { return path == "-" ? "standard input" : path; }

}  // namespace accord::cli
