#include <algorithm>
#include <array>

#include "base/log.hpp"
#include "device/launch.hpp"
#include "kernels/block_scaled/block_scaled_cuda.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "model/cuda_block_scaled.hpp"

namespace accord::model {

namespace cuda = kernels::cuda;
using namespace kernels::block_scaled;
using kernels::LinearWeight;

namespace {

constexpr int kBlockScaledMajor = 10;  // compute capability
constexpr std::array<int32_t, 2> kRanges = {448, 256};

ProductShape shape_of(const LinearWeight& w) { return {w.format, w.n, w.k}; }

// alpha and beta in device memory: 0, 1, then the NVFP4 products' inverse per range of x and of w.
constexpr size_t kBetaAt = 0;
constexpr size_t kOneAt = 1;
constexpr size_t kInversesAt = 2;

size_t range_index(int32_t range) { return range == kRanges[0] ? 0 : 1; }

// A product was checked when its algorithm was chosen; what goes wrong later, goes wrong as a launch does.
void must_run(const Status& status) {
  if (status.ok()) return;
  log::error("{}", message_of(status));
  require(false, "a product that cuBLASLt computes");
}

}  // namespace

StatusOr<std::unique_ptr<CudaBlockScaled>> CudaBlockScaled::create(
    const Device& device, const Stream& stream, std::span<const LinearWeight* const> weights) {
  ACCORD_ASSIGN_OR_RETURN(const DeviceInfo info, device.info());
  if (info.major != kBlockScaledMajor || cublaslt_is_off()) return nullptr;
  std::unique_ptr<CudaBlockScaled> self(new CudaBlockScaled(device, stream));
  for (const LinearWeight* w : weights) {
    const ProductShape shape = shape_of(*w);
    if (!kernels::block_scaled::takes(shape)) continue;
    self->weights_.emplace(w->scales, Weight{shape, self->tile_bytes_});
    self->tile_bytes_ += static_cast<size_t>(kernels::block_scaled::tile_bytes(shape, w->n));
  }
  if (self->weights_.empty()) return nullptr;
  StatusOr<LtApi> api = cublaslt_of_this_build();
  if (!api.ok()) {
    return annotate(api.status(),
                    fmt::format("{} {} (capability {}.{}) multiplies quantized weights with cuBLASLt",
                                to_string(device.id()), info.name, info.major, info.minor));
  }
  ACCORD_ASSIGN_OR_RETURN(self->products_, BlockScaledProducts::create(*std::move(api)));
  for (const auto& [scales, weight] : self->weights_) {
    ACCORD_RETURN_IF_ERROR(self->products_->pin(weight.shape));
  }
  ACCORD_RETURN_IF_ERROR(self->allocate());
  log::info("{}: products of quantized weights by {}", to_string(device.id()), self->products_->origin());
  for (const std::string& line : self->products_->algorithms()) log::info("  {}", line);
  return self;
}

Status CudaBlockScaled::allocate() {
  ACCORD_RETURN_IF_ERROR(weight_tiles_.ensure(device_, tile_bytes_));
  ACCORD_RETURN_IF_ERROR(workspace_.ensure(device_, kWorkspaceBytes));
  std::vector<float> constants = {0.0F, 1.0F};
  for (const int32_t x_range : kRanges) {
    for (const int32_t w_range : kRanges) constants.push_back(products_inverse(x_range, w_range));
  }
  const size_t bytes = constants.size() * sizeof(float);
  ACCORD_RETURN_IF_ERROR(constants_.ensure(device_, bytes));
  ACCORD_RETURN_IF_ERROR(stream_.copy(constants_.data(), constants.data(), bytes));
  return stream_.synchronize();
}

void CudaBlockScaled::weights_changed() {
  for (const auto& [scales, weight] : weights_) {
    cuda::tile_scales(scales, weight.shape.n, scales_per_row(weight.shape),
                      weight_tiles_.as<uint8_t>() + weight.tiles_at, stream_.handle());
  }
}

Status CudaBlockScaled::reserve(int64_t rows, int64_t sorted, int64_t experts) {
  const auto list = static_cast<int64_t>(cuda::group_tiles_bound(sorted, experts, kRowMultiple));
  const int64_t packed_rows = list * kRowMultiple;
  int64_t tiles = 0;
  int64_t staging = 0;
  int64_t packed_codes = 0;
  int64_t packed_tiles = 0;
  for (const auto& [scales, weight] : weights_) {
    tiles = std::max(tiles, kernels::block_scaled::tile_bytes(weight.shape, rows));
    staging = std::max(staging, staging_bytes(weight.shape, std::max(rows, sorted)));
    packed_codes = std::max(packed_codes, packed_rows * row_bytes(weight.shape));
    packed_tiles = std::max(packed_tiles, kernels::block_scaled::tile_bytes(weight.shape, packed_rows));
  }
  const auto ensure = [this](DeviceBuffer& buffer, int64_t bytes) {
    return buffer.ensure(device_, static_cast<size_t>(bytes));
  };
  ACCORD_RETURN_IF_ERROR(ensure(x_tiles_, tiles));
  ACCORD_RETURN_IF_ERROR(ensure(staging_, staging));
  if (list == 0) return absl::OkStatus();
  ACCORD_RETURN_IF_ERROR(ensure(list_, cuda::group_list_size(sorted, experts, kRowMultiple) *
                                           static_cast<int64_t>(sizeof(cuda::GroupTile))));
  ACCORD_RETURN_IF_ERROR(ensure(num_tiles_, sizeof(int32_t)));
  ACCORD_RETURN_IF_ERROR(ensure(packed_codes_, packed_codes));
  ACCORD_RETURN_IF_ERROR(ensure(packed_tiles_, packed_tiles));
  return host_offsets_.ensure(device_, static_cast<size_t>(experts + 1) * sizeof(int32_t),
                              MemoryKind::kPinned);
}

bool CudaBlockScaled::takes(const LinearWeight& w, Dtype result) const {
  return weights_.contains(w.scales) && (w.format == WeightFormat::kNVFP4 || result == Dtype::kBF16);
}

const CudaBlockScaled::Weight& CudaBlockScaled::weight_of(const LinearWeight& w) const {
  const auto found = weights_.find(w.scales);
  require(found != weights_.end() && found->second.shape == shape_of(w),
          "a weight that is multiplied in blocks");
  return found->second;
}

const float* CudaBlockScaled::alpha_of(const LinearWeight& w) const {
  const float* const constants = constants_.as<float>();
  if (w.format == WeightFormat::kMXFP8) return constants + kOneAt;
  return constants + kInversesAt + range_index(w.activations.range) * kRanges.size() +
         range_index(w.scaling.range);
}

void CudaBlockScaled::prepare(const QuantizedRows& x, const LinearWeight& w) {
  if (x.rows == 0) return;
  const ProductShape& shape = weight_of(w).shape;
  cuda::tile_scales(x.scales, x.rows, scales_per_row(shape), x_tiles_.as<uint8_t>(), stream_.handle());
  const int64_t bytes = row_bytes(shape);
  const auto rest = static_cast<size_t>((padded_rows(x.rows) - x.rows) * bytes);
  must_run(stream_.fill(x.codes + x.rows * bytes, 0, rest));
}

void CudaBlockScaled::multiply(const QuantizedRows& x, const LinearWeight& w, MatrixView y) {
  run({x.codes, x_tiles_.as<uint8_t>(), x.outer, nullptr}, w, y);
}

void CudaBlockScaled::begin_experts(const ExpertRows& rows) {
  experts_ = rows;
  const auto count = static_cast<int32_t>(rows.experts);
  cuda::build_group_tiles(rows.offsets, count, kRowMultiple, list_.as<cuda::GroupTile>(),
                          num_tiles_.as<int32_t>(), stream_.handle());
  must_run(stream_.copy(host_offsets_.data(), rows.offsets,
                        static_cast<size_t>(rows.experts + 1) * sizeof(int32_t)));
  must_run(stream_.synchronize());
  const auto* const offsets = host_offsets_.as<int32_t>();
  packed_begin_.assign(1, 0);
  for (int64_t e = 0; e < rows.experts; ++e) {
    packed_begin_.push_back(packed_begin_.back() + padded_rows(offsets[e + 1] - offsets[e]));
  }
}

void CudaBlockScaled::prepare_experts(const QuantizedRows& x, const int32_t* gather,
                                      const LinearWeight& any) {
  const ProductShape& shape = weight_of(any).shape;
  cuda::pack_expert_rows({x.codes, x.scales, x.rows, row_bytes(shape), scales_per_row(shape)}, gather,
                         list_.as<cuda::GroupTile>(), num_tiles_.as<int32_t>(),
                         cuda::group_tiles_bound(experts_.rows, experts_.experts, kRowMultiple),
                         packed_codes_.as<uint8_t>(), packed_tiles_.as<uint8_t>(), stream_.handle());
}

void CudaBlockScaled::multiply_expert(const QuantizedRows& x, const int32_t* gather, int64_t e,
                                      const LinearWeight& w, MatrixView y) {
  const auto* const offsets = host_offsets_.as<int32_t>();
  const int64_t packed = packed_begin_[static_cast<size_t>(e)];
  const int64_t first = offsets[e];
  const ProductShape& shape = weight_of(w).shape;
  const Rows rows{packed_codes_.as<uint8_t>() + packed * row_bytes(shape),
                  packed_tiles_.as<uint8_t>() + kernels::block_scaled::tile_bytes(shape, packed),
                  gather == nullptr ? x.outer + first : x.outer,
                  gather == nullptr ? nullptr : gather + first};
  run(rows, w, y.slice_rows(first, offsets[e + 1] - first));
}

void CudaBlockScaled::run(const Rows& x, const LinearWeight& w, MatrixView y) {
  const Weight& weight = weight_of(w);
  const ProductShape& shape = weight.shape;
  const bool aligned = y.stride == shape.n && reinterpret_cast<uintptr_t>(y.data) % kAlignment == 0;
  for (const RowCall& call : row_calls(shape, y.rows, aligned)) {
    const MatrixView kept = y.slice_rows(call.first, call.kept);
    ProductOperands p;
    p.w = static_cast<const uint8_t*>(w.data);
    p.w_tiles = weight_tiles_.as<uint8_t>() + weight.tiles_at;
    p.x = x.codes + call.first * row_bytes(shape);
    p.x_tiles = x.tiles + kernels::block_scaled::tile_bytes(shape, call.first);
    p.d = call.staged ? staging_.data() : kept.data;
    p.alpha = alpha_of(w);
    p.beta = constants_.as<float>() + kBetaAt;
    p.workspace = workspace_.data();
    must_run(products_->multiply(shape, call.rows, p, stream_.handle()));
    if (shape.format == WeightFormat::kNVFP4) {
      const bool mapped = x.outer_rows != nullptr;
      cuda::apply_outer_scales(staging_.as<float>(), mapped ? x.outer : x.outer + call.first,
                               mapped ? x.outer_rows + call.first : nullptr, w.outer, kept, stream_.handle());
    } else if (call.staged) {
      cuda::copy_columns(staging_.matrix(Dtype::kBF16, call.kept, shape.n), {1, shape.n, 0, 0, 0, 0}, nullptr,
                         kept, stream_.handle());
    }
  }
}

}  // namespace accord::model
