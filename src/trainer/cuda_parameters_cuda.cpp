#include <algorithm>
#include <map>
#include <utility>

#include "kernels/adamw/adamw_cuda.hpp"
#include "trainer/cuda_parameters.hpp"
#include "trainer/exchange.hpp"
#include "trainer/optimizer.hpp"

namespace accord::trainer {

namespace cuda = kernels::cuda;

namespace {

size_t float_bytes(int64_t elements) { return static_cast<size_t>(elements) * sizeof(float); }

}  // namespace

CudaParameters::CudaParameters(ParameterTable table, const Device& device, const Stream& stream)
    : ParameterTable(std::move(table)), device_(device), stream_(stream), exchange_(device, stream) {}

StatusOr<std::unique_ptr<CudaParameters>> CudaParameters::create(ParameterTable table, const Device& device,
                                                                 const Stream& stream) {
  std::unique_ptr<CudaParameters> p(new CudaParameters(std::move(table), device, stream));
  ACCORD_RETURN_IF_ERROR(p->gradients_.ensure(device, float_bytes(p->held().total())));
  for (DeviceBuffer* buffer : {&p->masters_, &p->exp_avg_, &p->exp_avg_sq_}) {
    ACCORD_RETURN_IF_ERROR(buffer->ensure(device, float_bytes(p->owned().total())));
  }
  ACCORD_RETURN_IF_ERROR(stream.fill(p->masters_.data(), 0, float_bytes(p->owned().total())));
  ACCORD_RETURN_IF_ERROR(p->clear_gradients());
  ACCORD_RETURN_IF_ERROR(p->clear_moments());
  const size_t scratch = static_cast<size_t>(cuda::squares_scratch(p->num_owned()));
  ACCORD_RETURN_IF_ERROR(p->sums_.ensure(device, (1 + scratch) * sizeof(double)));
  p->originals_of_.resize(static_cast<size_t>(p->count()));
  const size_t counts = static_cast<size_t>(p->count()) * sizeof(ExportCounts);
  ACCORD_RETURN_IF_ERROR(p->counts_.ensure(device, counts));
  ACCORD_ASSIGN_OR_RETURN(p->counts_host_, Memory::allocate(device, counts, MemoryKind::kPinned));
  return p;
}

float* CudaParameters::values(StateKind kind, int64_t index) const {
  const bool gradient = kind == StateKind::kGradient;
  const int64_t offset = (gradient ? held() : owned()).offset(index);
  if (offset < 0) return nullptr;
  switch (kind) {
    case StateKind::kMaster:
      return masters_.as<float>() + offset;
    case StateKind::kGradient:
      return gradients_.as<float>() + offset;
    case StateKind::kExpAvg:
      return exp_avg_.as<float>() + offset;
    case StateKind::kExpAvgSq:
      return exp_avg_sq_.as<float>() + offset;
  }
  return nullptr;
}

float* CudaParameters::owned_gradients() const {
  return gradients_.as<float>() + held().section_begin(shards().rank());
}

int64_t CudaParameters::num_owned() const { return held().section(shards().rank(), shards().rank()); }

Status CudaParameters::read(StateKind kind, int64_t index, std::span<float> out) const {
  ACCORD_RETURN_IF_ERROR(stream_.copy(out.data(), values(kind, index), out.size_bytes()));
  ACCORD_RETURN_IF_ERROR(stream_.synchronize());
  if (kind == StateKind::kGradient && gradient_scale_ != 1.0F) {
    for (float& g : out) g *= gradient_scale_;
  }
  return absl::OkStatus();
}

Status CudaParameters::write(StateKind kind, int64_t index, std::span<const float> in) {
  if (kind == StateKind::kMaster) exported_ = false;
  ACCORD_RETURN_IF_ERROR(stream_.copy(values(kind, index), in.data(), in.size_bytes()));
  return stream_.synchronize();  // the caller's memory may go
}

Status CudaParameters::clear_gradients() {
  gradient_scale_ = 1.0F;
  return stream_.fill(gradients_.data(), 0, float_bytes(held().total()));
}

Status CudaParameters::clear_moments() {
  for (DeviceBuffer* buffer : {&exp_avg_, &exp_avg_sq_}) {
    ACCORD_RETURN_IF_ERROR(stream_.fill(buffer->data(), 0, float_bytes(owned().total())));
  }
  return absl::OkStatus();
}

Status CudaParameters::bind(const WeightManifest& manifest, void* arena, bool originals) {
  exported_ = false;
  ACCORD_ASSIGN_OR_RETURN(const std::vector<const WeightEntry*> all, entries(manifest));
  if (shards().size() > 1) {
    ACCORD_ASSIGN_OR_RETURN(original_layout_, plan_originals(manifest, originals));
    const size_t size = static_cast<size_t>(original_layout_.total()) * sizeof(BF16);
    ACCORD_RETURN_IF_ERROR(originals_.ensure(device_, size));
    ACCORD_RETURN_IF_ERROR(stream_.fill(originals_.data(), 0, size));
  }
  auto* const bytes = static_cast<std::byte*>(arena);
  exports_.clear();
  for (int64_t i = 0; i < count(); ++i) {
    const WeightEntry& entry = *all[static_cast<size_t>(i)];
    exports_.push_back(
        {entry.format, bytes + entry.data_offset, reinterpret_cast<uint8_t*>(bytes + entry.scale_offset)});
    const BF16*& original = originals_of_[static_cast<size_t>(i)];
    original = nullptr;
    if (!shards().holds(i) || entry.format == WeightFormat::kF32) continue;
    if (!is_low_precision(entry)) {
      original = reinterpret_cast<const BF16*>(bytes + entry.data_offset);
    } else if (originals && !shards().owns(i)) {
      original = originals_.as<BF16>() + original_layout_.offset(i);
    }
  }
  return absl::OkStatus();
}

Status CudaParameters::reduce_gradients(Communicator& group, ThreadPool& pool, Deadline deadline) {
  if (DeviceExchange::serves(group)) {
    return exchange_.reduce_gradients(held(), gradients_.as<float>(), group, deadline);
  }
  std::vector<float> host(static_cast<size_t>(held().total()));
  ACCORD_RETURN_IF_ERROR(stream_.copy(host.data(), gradients_.data(), host.size() * sizeof(float)));
  ACCORD_RETURN_IF_ERROR(stream_.synchronize());
  ACCORD_RETURN_IF_ERROR(trainer::reduce_gradients(held(), host.data(), group, pool, deadline));
  ACCORD_RETURN_IF_ERROR(stream_.copy(owned_gradients(), host.data() + held().section_begin(shards().rank()),
                                      float_bytes(num_owned())));
  return stream_.synchronize();
}

Status CudaParameters::share_originals(Communicator& group, ThreadPool& pool, Deadline deadline) {
  if (DeviceExchange::serves(group)) {
    return exchange_.share_originals(
        original_layout_, originals_.as<BF16>(), [this](int64_t i) { return master(i); },
        [this](int64_t i) { return spec(i).numel(); }, group, deadline);
  }
  std::map<int64_t, std::vector<float>> masters;
  for (const int64_t i : original_layout_.own_parameters()) {
    std::vector<float>& values = masters[i];
    values.resize(static_cast<size_t>(spec(i).numel()));
    ACCORD_RETURN_IF_ERROR(read(StateKind::kMaster, i, values));
  }
  std::vector<BF16> copies(static_cast<size_t>(original_layout_.total()));
  ACCORD_RETURN_IF_ERROR(trainer::share_originals(
      original_layout_, copies.data(),
      [&](int64_t i) { return std::span<const float>(masters.find(i)->second); }, group, pool, deadline));
  ACCORD_RETURN_IF_ERROR(stream_.copy(originals_.data(), copies.data(), copies.size() * sizeof(BF16)));
  return stream_.synchronize();
}

StatusOr<double> CudaParameters::gradient_squares() {
  double* const sums = sums_.as<double>();
  cuda::sum_of_squares(owned_gradients(), num_owned(), sums, sums + 1, stream_.handle());
  double squares = 0.0;
  ACCORD_RETURN_IF_ERROR(stream_.copy(&squares, sums, sizeof(squares)));
  ACCORD_RETURN_IF_ERROR(stream_.synchronize());
  return squares;
}

StatusOr<int64_t> CudaParameters::first_non_finite_gradient() {
  cuda::first_non_finite(owned_gradients(), num_owned(), sums_.as<int64_t>(), stream_.handle());
  int64_t first = 0;
  ACCORD_RETURN_IF_ERROR(stream_.copy(&first, sums_.data(), sizeof(first)));
  ACCORD_RETURN_IF_ERROR(stream_.synchronize());
  for (const int64_t i : held().own_parameters()) {
    if (first < held().offset_in_section(i) + spec(i).numel()) return i;
  }
  return int64_t{-1};
}

// Padding between tensors is zero everywhere and stays so.
Status CudaParameters::update(const recipe::OptimizerPart& optimizer, double norm, double lr, int64_t steps) {
  exported_ = false;
  gradient_scale_ = clip_scale(norm, optimizer.clip_grad);
  const size_t bytes = static_cast<size_t>(count()) * sizeof(ExportCounts);
  ACCORD_RETURN_IF_ERROR(stream_.fill(counts_.data(), 0, bytes));
  kernels::AdamwFactors decayed = adamw_factors(optimizer, lr, steps, true);
  kernels::AdamwFactors not_decayed = adamw_factors(optimizer, lr, steps, false);
  decayed.scale = gradient_scale_;
  not_decayed.scale = gradient_scale_;
  for (const int64_t i : owned().own_parameters()) {
    ACCORD_RETURN_IF_ERROR(update_tensor(i, decays(i) ? decayed : not_decayed));
  }
  ACCORD_RETURN_IF_ERROR(stream_.copy(counts_host_.data(), counts_.data(), bytes));
  exported_ = !exports_.empty();
  return absl::OkStatus();
}

// The arena's bytes in the same pass.
Status CudaParameters::update_tensor(int64_t index, const kernels::AdamwFactors& factors) {
  float* const master = values(StateKind::kMaster, index);
  const int64_t numel = spec(index).numel();
  cuda::AdamwExport to;
  to.cols = spec(index).shape.back();
  to.rows = numel / to.cols;
  to.counts = counts_.as<ExportCounts>() + index;
  const Export none{WeightFormat::kNVFP4, nullptr, nullptr};
  const Export& into = exports_.empty() ? none : exports_[static_cast<size_t>(index)];
  if (into.format == WeightFormat::kBF16) to.bf16 = reinterpret_cast<BF16*>(into.data);
  if (into.format == WeightFormat::kMXFP8) {
    to.mxfp8 = reinterpret_cast<uint8_t*>(into.data);
    to.mxfp8_scales = into.scales;
  }
  cuda::adamw_export(master, gradient(index), values(StateKind::kExpAvg, index),
                     values(StateKind::kExpAvgSq, index), to, factors, stream_.handle());
  if (into.format != WeightFormat::kF32) return absl::OkStatus();
  return stream_.copy(into.data, master, float_bytes(numel));
}

StatusOr<std::span<const ExportCounts>> CudaParameters::exported() const {
  if (!exported_) return std::span<const ExportCounts>();
  ACCORD_RETURN_IF_ERROR(stream_.synchronize());
  return std::span<const ExportCounts>(counts_host_.as<ExportCounts>(), static_cast<size_t>(count()));
}

void CudaParameters::add_memory(TrainerMemory& memory) const {
  memory.masters += static_cast<int64_t>(masters_.capacity());
  memory.moments += static_cast<int64_t>(exp_avg_.capacity() + exp_avg_sq_.capacity());
  memory.gradients += static_cast<int64_t>(gradients_.capacity());
  memory.workspace +=
      static_cast<int64_t>(originals_.capacity() + sums_.capacity() + counts_.capacity()) + exchange_.bytes();
}

}  // namespace accord::trainer
