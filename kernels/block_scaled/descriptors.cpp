#include "kernels/block_scaled/descriptors.hpp"

#include <utility>

namespace accord::kernels::block_scaled {
namespace {

int32_t operand_type(WeightFormat format) {
  return format == WeightFormat::kMXFP8 ? kLtTypeE4M3 : kLtTypeE2M1;
}

int32_t result_type(WeightFormat format) { return format == WeightFormat::kMXFP8 ? kLtTypeBF16 : kLtTypeF32; }

int32_t scale_mode(WeightFormat format) {
  return format == WeightFormat::kMXFP8 ? kLtScaleVec32UE8M0 : kLtScaleVec16UE4M3;
}

StatusOr<LtOwned> make_layout(const LtApi& api, const ProductShape& shape, int32_t type, int64_t rows,
                              int64_t cols) {
  LtLayout layout = nullptr;
  ACCORD_RETURN_IF_ERROR(check(
      api, api.layout_create(&layout, type, static_cast<uint64_t>(rows), static_cast<uint64_t>(cols), rows),
      "cublasLtMatrixLayoutCreate", shape));
  return LtOwned(layout, api.layout_destroy);
}

template <class T>
Status set(const LtApi& api, LtDescriptor operation, LtDescriptorAttribute attribute, T value,
           const ProductShape& shape) {
  return check(api, api.descriptor_set(operation, static_cast<int>(attribute), &value, sizeof(value)),
               "cublasLtMatmulDescSetAttribute", shape);
}

}  // namespace

Status check(const LtApi& api, int status, const char* call, const ProductShape& shape) {
  if (status == kLtSuccess) return absl::OkStatus();
  const char* const text = api.status_string(status);
  return unavailable_error("{} of {}: {} ({}) for the product of {}", call, api.origin,
                           text == nullptr ? "no explanation" : text, status, to_string(shape));
}

LtOwned::LtOwned(LtOwned&& other) noexcept
    : handle_(std::exchange(other.handle_, nullptr)), destroy_(other.destroy_) {}

LtOwned& LtOwned::operator=(LtOwned&& other) noexcept {
  std::swap(handle_, other.handle_);
  std::swap(destroy_, other.destroy_);
  return *this;
}

LtOwned::~LtOwned() {
  if (handle_ != nullptr) (void)destroy_(handle_);  // it fails for no handle of its own
}

StatusOr<ProductDescriptors> ProductDescriptors::create(const LtApi& api, const ProductShape& shape) {
  ProductDescriptors d;
  d.api_ = &api;
  d.shape_ = shape;
  LtDescriptor operation = nullptr;
  ACCORD_RETURN_IF_ERROR(check(api, api.descriptor_create(&operation, kLtCompute32F, kLtTypeF32),
                               "cublasLtMatmulDescCreate", shape));
  d.operation_ = LtOwned(operation, api.descriptor_destroy);
  using Attribute = LtDescriptorAttribute;
  const int32_t mode = scale_mode(shape.format);
  ACCORD_RETURN_IF_ERROR(set(api, operation, Attribute::kPointerMode, kLtPointerModeDevice, shape));
  ACCORD_RETURN_IF_ERROR(set(api, operation, Attribute::kTransA, kLtOpT, shape));
  ACCORD_RETURN_IF_ERROR(set(api, operation, Attribute::kTransB, kLtOpN, shape));
  ACCORD_RETURN_IF_ERROR(set(api, operation, Attribute::kAScaleMode, mode, shape));
  ACCORD_RETURN_IF_ERROR(set(api, operation, Attribute::kBScaleMode, mode, shape));
  ACCORD_ASSIGN_OR_RETURN(d.w_, make_layout(api, shape, operand_type(shape.format), shape.k, shape.n));
  return d;
}

Status ProductDescriptors::set_scales(const uint8_t* w_tiles, const uint8_t* x_tiles) {
  using Attribute = LtDescriptorAttribute;
  ACCORD_RETURN_IF_ERROR(set(*api_, operation(), Attribute::kAScalePointer, w_tiles, shape_));
  return set(*api_, operation(), Attribute::kBScalePointer, x_tiles, shape_);
}

StatusOr<RowLayouts> RowLayouts::create(const LtApi& api, const ProductShape& shape, int64_t rows) {
  RowLayouts layouts;
  ACCORD_ASSIGN_OR_RETURN(layouts.x, make_layout(api, shape, operand_type(shape.format), shape.k, rows));
  ACCORD_ASSIGN_OR_RETURN(layouts.y, make_layout(api, shape, result_type(shape.format), shape.n, rows));
  return layouts;
}

}  // namespace accord::kernels::block_scaled
