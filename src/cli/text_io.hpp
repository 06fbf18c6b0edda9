#pragma once
// Input and output arguments of commands: a path, or - for standard input and output.
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord::cli {

StatusOr<std::string> read_input(const std::string& path);

// A file appears complete or not at all.
Status write_output(const std::string& path, std::string_view text);

// An output that is the input (by whatever path) would replace it: kUsage. "-" is no file.
Status refuse_same_file(const std::string& input, const std::string& output);

std::string input_name(const std::string& path);  // for messages: "standard input" for -

}  // namespace accord::cli
