#include "bench/kernels.hpp"

#include <fmt/ranges.h>

#include <algorithm>
#include <utility>

#include "bench/failure.hpp"
#include "bench/kernel_groups.hpp"

namespace accord::bench {
namespace {

Status check_shape(const Shape& shape) {
  if (shape.config.has_mla()) {
    return usage_error("--shape: {} has latent attention, which this benchmark does not cover", shape.name);
  }
  return absl::OkStatus();
}

std::vector<std::string> shapes_of(const KernelOptions& options) {
  if (!options.shapes.empty()) return options.shapes;
  if (options.device.is_cuda() && !cuda_is_emulated()) return {"smollm2-135m", "qwen3-30b-a3b"};
  return {"tiny", "tiny-moe"};
}

}  // namespace

const std::vector<std::string>& kernel_names(bool cuda) {
  static const std::vector<std::string> device{"adamw",   "attention", "copy",   "digest",  "embedding",
                                               "formats", "gemm",      "linear", "logprob", "moe",
                                               "rmsnorm", "rope",      "router", "sampler", "swiglu"};
  static const std::vector<std::string> host{"attention", "embedding", "formats", "linear",  "logprob", "moe",
                                             "rmsnorm",   "rope",      "router",  "sampler", "swiglu"};
  return cuda ? device : host;
}

void KernelRun::finish(Table table) const {
  if (table.empty()) return;
  print("\n" + table.markdown());
  report.tables.push_back(std::move(table));
}

StatusOr<KernelReport> run_kernels(const KernelOptions& options, const Print& print) {
  const std::vector<std::string>& names = kernel_names(options.device.is_cuda());
  if (!options.op.empty() && std::find(names.begin(), names.end(), options.op) == names.end()) {
    return usage_error("--op: there is no kernel '{}' on {}: one of {}", options.op,
                       to_string(options.device.id()), fmt::join(names, ", "));
  }
  KernelReport report;
  KernelRun run{options, {}, print, report};
  for (const std::string& name : shapes_of(options)) {
    ACCORD_ASSIGN_OR_RETURN(Shape shape, find_shape(name));
    ACCORD_RETURN_IF_ERROR(check_shape(shape));
    run.shapes.push_back(std::move(shape));
  }
  ACCORD_ASSIGN_OR_RETURN(report.device, options.device.describe());
  return guarded([&]() -> StatusOr<KernelReport> {
    options.device.is_cuda() ? run_device_kernels(run) : run_cpu_kernels(run);
    return std::move(report);
  });
}

}  // namespace accord::bench
