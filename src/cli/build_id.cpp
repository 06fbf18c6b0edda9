#include "accord_version.hpp"
#include "cli/command.hpp"

namespace accord::cli {

std::string build_id() {
  return std::string("accord ") + ACCORD_VERSION + " (" + ACCORD_COMMIT + "; " + ACCORD_BUILD + ")";
}

}  // namespace accord::cli
