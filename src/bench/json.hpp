#pragma once
// Reports as JSON, whose keys carry their units.
#include <string>

#include "bench/kernels.hpp"
#include "bench/memory.hpp"
#include "bench/rollout.hpp"

namespace accord::bench {

std::string to_json(const KernelReport& report, const std::string& build);
std::string to_json(const RolloutReport& report, const std::string& build);
std::string to_json(const MemoryReport& report, const std::string& build);

}  // namespace accord::bench
