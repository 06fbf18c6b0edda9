#pragma once
// Device memory that one linear layer allocates in training, measured: the trainer's own forward and backward
// of BF16 input [rows, inputs] and outputs [rows, outputs], with BF16 gradients of input and weight.
//
// Counted is what is allocated while a phase runs, at its peak, on top of what was there before: the input
// and the output's gradient. Left out are the master, its moments, and where a mode reads it, the BF16 weight
// that it came from. The weight in its format is made before (it is the policy's) and reported apart.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "bench/kernels.hpp"
#include "device/device.hpp"

namespace accord::bench {

inline constexpr size_t kMemoryPhases = 3;
const char* memory_phase_name(size_t phase);  // forward, backward, end_to_end

struct MemoryOptions {
  Device device;
  int64_t rows = 2048;
  int64_t inputs = 2048;
  int64_t outputs = 8192;
};

struct MemoryResult {
  std::string format;  // mxfp8, nvfp4
  std::string mode;    // quantized, high_precision, dequantized
  std::array<int64_t, kMemoryPhases> peak_bytes{};
  std::array<int64_t, kMemoryPhases> reference_bytes{};  // 0: none for this shape
  int64_t weight_bytes = 0;                              // codes and scales in the arena
};

struct MemoryReport {
  std::string device;
  int64_t rows = 0, inputs = 0, outputs = 0;
  std::vector<MemoryResult> results;
};

// Errors: usage (the CPU; shapes that a format's blocks do not divide), memory.
StatusOr<MemoryReport> run_memory(const MemoryOptions& options, const Print& print);

}  // namespace accord::bench
