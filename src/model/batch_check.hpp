#pragma once
// Model::check and check_replay (forward.hpp), for every device.
#include <cstdint>
#include <span>

#include "base/model_config.hpp"
#include "base/status.hpp"
#include "model/forward.hpp"

namespace accord::model {

Status check_batch(const ModelConfig& config, const Batch& batch, int64_t kv_rows);
Status check_replay(const ModelConfig& config, std::span<const int32_t> ids, int64_t num_rows);

}  // namespace accord::model
