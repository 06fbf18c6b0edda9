#include "comm/nccl_api.hpp"

namespace accord::comm {

StatusOr<NcclApi> nccl_of_this_build() { return load_nccl(); }

}  // namespace accord::comm
