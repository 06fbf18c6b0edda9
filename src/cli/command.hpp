#pragma once
// One file per subcommand. add_<name> declares its arguments and sets `action` when the user picks it;
// main runs the action, prints its error and exits with its code.
#include <CLI/CLI.hpp>
#include <functional>

#include "base/status.hpp"

namespace accord::cli {

using Action = std::function<Status()>;

}  // namespace accord::cli
