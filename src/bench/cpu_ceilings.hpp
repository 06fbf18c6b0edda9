#pragma once
// Bandwidth of one thread of this machine, in processor time. Inside of this room.
#include <functional>

#include "bench/measure.hpp"

namespace accord::bench {

// Shortest of several rounds, per call.
double cpu_seconds(const std::function<void()>& work);
Ceilings cpu_bandwidth();

}  // namespace accord::bench
