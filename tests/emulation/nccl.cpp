// Takes the place of src/comm/nccl_of_this_build.cpp.
#include <cstdlib>
#include <string_view>

#include "comm/nccl_api.hpp"
#include "tests/support/fake_nccl.hpp"

namespace accord::comm {

StatusOr<NcclApi> nccl_of_this_build() {
  const char* const asked = std::getenv("ACCORD_NCCL");
  if (asked != nullptr && std::string_view(asked) == "emulated") {
    return testing::fake_nccl();
  }
  return unavailable_error("the CUDA devices of this build are emulated");
}

}  // namespace accord::comm
