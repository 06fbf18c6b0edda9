#pragma once
// Every subcommand, in the order in which --help lists them.
#include "cli/command.hpp"

namespace accord::cli {

}  // namespace accord::cli
