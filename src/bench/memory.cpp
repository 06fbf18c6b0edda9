#include "bench/memory.hpp"

#include <fmt/format.h>

#include "bench/failure.hpp"
#include "bench/memory_linear.hpp"

namespace accord::bench {
namespace {

constexpr double kMiB = 1024.0 * 1024.0;

// MiB allocated at the peak of forward, backward and both, of Transformer Engine's linear layer with the
// shape of MemoryOptions' defaults, BF16 gradients, masters and the BF16 weight left out; its MXFP8 and NVFP4
// recipes as published with their backward modes.
struct Reference {
  const char* format;
  const char* mode;
  std::array<double, kMemoryPhases> mib;
};
constexpr Reference kReferences[] = {
    {"mxfp8", "quantized", {73.75, 73.02, 94.14}},   {"mxfp8", "high_precision", {53.12, 40.02, 53.12}},
    {"mxfp8", "dequantized", {53.25, 80.02, 84.64}}, {"nvfp4", "high_precision", {44.50, 40.02, 44.50}},
    {"nvfp4", "dequantized", {44.50, 80.02, 75.27}},
};

void add_reference(const MemoryOptions& options, MemoryResult& result) {
  const MemoryOptions usual;
  if (options.rows != usual.rows || options.inputs != usual.inputs || options.outputs != usual.outputs)
    return;
  for (const Reference& reference : kReferences) {
    if (result.format != reference.format || result.mode != reference.mode) continue;
    for (size_t i = 0; i < kMemoryPhases; ++i) {
      result.reference_bytes[i] = static_cast<int64_t>(reference.mib[i] * kMiB);
    }
  }
}

std::string cell(int64_t bytes, int64_t reference) {
  const std::string text = fmt::format("{:.2f}", static_cast<double>(bytes) / kMiB);
  return reference > 0 ? fmt::format("{} ({:.2f})", text, static_cast<double>(reference) / kMiB) : text;
}

Status check(const MemoryOptions& options) {
  if (!options.device.is_cuda()) {
    return usage_error("bench memory counts a device's memory: --device cuda:N");
  }
  constexpr int64_t kBlock = 32;
  if (options.rows % kBlock != 0 || options.inputs % kBlock != 0 || options.outputs % kBlock != 0) {
    return usage_error(
        "--rows, --inputs and --outputs must be multiples of {}, the blocks of MXFP8: {}, {}, {}", kBlock,
        options.rows, options.inputs, options.outputs);
  }
  return absl::OkStatus();
}

}  // namespace

const char* memory_phase_name(size_t phase) {
  static constexpr const char* kNames[kMemoryPhases] = {"forward", "backward", "end_to_end"};
  return kNames[phase];
}

StatusOr<MemoryReport> run_memory(const MemoryOptions& options, const Print& print) {
  ACCORD_RETURN_IF_ERROR(check(options));
  MemoryReport report;
  report.rows = options.rows;
  report.inputs = options.inputs;
  report.outputs = options.outputs;
  ACCORD_ASSIGN_OR_RETURN(report.device, options.device.describe());
  return guarded([&]() -> StatusOr<MemoryReport> {
    print(fmt::format(
        "{}: one linear layer, BF16 input [{}, {}], {} outputs, BF16 gradients; MiB allocated at the "
        "peak (in brackets: Transformer Engine)\n\n| format, backward | forward | backward | end to "
        "end | the weight in its format |\n|---|---|---|---|---|\n",
        report.device, options.rows, options.inputs, options.outputs));
    for (const LinearMode& mode : kLinearModes) {
      MemoryResult result = measure_linear(options, mode);
      add_reference(options, result);
      print(fmt::format("| {} {} | {} | {} | {} | {} |\n", result.format, result.mode,
                        cell(result.peak_bytes[0], result.reference_bytes[0]),
                        cell(result.peak_bytes[1], result.reference_bytes[1]),
                        cell(result.peak_bytes[2], result.reference_bytes[2]), cell(result.weight_bytes, 0)));
      report.results.push_back(std::move(result));
    }
    return std::move(report);
  });
}

}  // namespace accord::bench
