#include "cli/quantize_cuda.hpp"

#include <algorithm>

#include "device/memory.hpp"
#include "device/stream.hpp"
#include "kernels/formats/health_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"

namespace accord::cli {
namespace {

using formats::QuantHealth;
namespace cuda = formats::cuda;

size_t scratch_bytes() {
  return std::max(cuda::kAmaxScratch * sizeof(float), cuda::kHealthScratch * sizeof(QuantHealth));
}

// One tensor on its way through the device.
struct Job {
  Stream stream;
  MatrixView x;
  Memory input;
  Memory q;
  Memory scale;
  Memory amax;
  Memory scratch;
  Memory health;
};

StatusOr<Job> start(const Device& device, MatrixView x, size_t q_bytes, size_t scale_bytes,
                    size_t amax_bytes) {
  Job job;
  ACCORD_ASSIGN_OR_RETURN(job.stream, Stream::create(device));
  const auto x_bytes = static_cast<size_t>(x.rows * x.cols * size_of(x.dtype));
  ACCORD_ASSIGN_OR_RETURN(job.input, Memory::allocate(device, x_bytes));
  ACCORD_ASSIGN_OR_RETURN(job.q, Memory::allocate(device, q_bytes));
  ACCORD_ASSIGN_OR_RETURN(job.scale, Memory::allocate(device, scale_bytes));
  ACCORD_ASSIGN_OR_RETURN(job.amax, Memory::allocate(device, amax_bytes));
  ACCORD_ASSIGN_OR_RETURN(job.scratch, Memory::allocate(device, scratch_bytes()));
  ACCORD_ASSIGN_OR_RETURN(job.health, Memory::allocate(device, sizeof(QuantHealth)));
  ACCORD_RETURN_IF_ERROR(job.stream.copy(job.input.data(), x.data, x_bytes));
  job.x = x;
  job.x.data = job.input.data();
  return job;
}

Status finish(const Job& job, uint8_t* q, uint8_t* scale, float* amax, QuantHealth& health) {
  QuantHealth measured;
  ACCORD_RETURN_IF_ERROR(job.stream.copy(q, job.q.data(), job.q.bytes()));
  ACCORD_RETURN_IF_ERROR(job.stream.copy(scale, job.scale.data(), job.scale.bytes()));
  ACCORD_RETURN_IF_ERROR(job.stream.copy(amax, job.amax.data(), job.amax.bytes()));
  ACCORD_RETURN_IF_ERROR(job.stream.copy(&measured, job.health.data(), sizeof(measured)));
  ACCORD_RETURN_IF_ERROR(job.stream.synchronize());
  health.elements += measured.elements;
  health.saturated += measured.saturated;
  health.flushed += measured.flushed;
  health.nan += measured.nan;
  health.amax = std::max(health.amax, measured.amax);
  return absl::OkStatus();
}

}  // namespace

Status quantize_mxfp8_on(const Device& device, MatrixView x, formats::Axis axis, formats::Element element,
                         uint8_t* q, uint8_t* scale, QuantHealth& health) {
  const auto elements = static_cast<size_t>(x.rows * x.cols);
  ACCORD_ASSIGN_OR_RETURN(const Job job, start(device, x, elements, elements / formats::kMxfp8Block, 0));
  const StreamHandle stream = job.stream.handle();
  auto* const q_device = job.q.as<uint8_t>();
  auto* const scale_device = job.scale.as<uint8_t>();
  auto* const counts = job.health.as<QuantHealth>();
  auto* const scratch = job.scratch.as<QuantHealth>();
  if (axis == formats::Axis::kRow) {
    cuda::quantize_mxfp8_rows(job.x, q_device, scale_device, element, stream);
    cuda::measure_mxfp8_rows(job.x, scale_device, element, counts, scratch, stream);
  } else {
    cuda::quantize_mxfp8_cols(job.x, q_device, scale_device, element, stream);
    cuda::measure_mxfp8_cols(job.x, scale_device, element, counts, scratch, stream);
  }
  return finish(job, q, scale, nullptr, health);
}

Status quantize_nvfp4_on(const Device& device, MatrixView x, const formats::Nvfp4Options& options,
                         const formats::Nvfp4Output& out, QuantHealth& health) {
  const auto elements = static_cast<size_t>(x.rows * x.cols);
  const size_t scopes = options.scope == formats::Nvfp4Scope::kToken ? static_cast<size_t>(x.rows) : 1;
  ACCORD_ASSIGN_OR_RETURN(
      const Job job, start(device, x, elements / 2, elements / formats::kNvfp4Block, scopes * sizeof(float)));
  const formats::Nvfp4Output on_device{job.q.as<uint8_t>(), job.scale.as<uint8_t>(), job.amax.as<float>()};
  cuda::quantize_nvfp4(job.x, options, on_device, nullptr, job.scratch.as<float>(), job.stream.handle());
  cuda::measure_nvfp4(job.x, options, on_device.scale, on_device.amax, job.health.as<QuantHealth>(),
                      job.scratch.as<QuantHealth>(), job.stream.handle());
  return finish(job, out.q, out.scale, out.amax, health);
}

}  // namespace accord::cli
