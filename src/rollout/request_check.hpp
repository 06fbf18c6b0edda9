#pragma once
// What a request must satisfy before anything runs.
#include <cstdint>

#include "base/status.hpp"
#include "rollout/engine.hpp"

namespace accord::rollout {

struct RequestLimits {
  int64_t vocab_size = 0;
  int64_t max_positions = 0;  // 0: none
  int64_t cache_rows = 0;
  bool can_detokenize = false;
};

Status check_request(const Request& request, const RequestLimits& limits);

}  // namespace accord::rollout
