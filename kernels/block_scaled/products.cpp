#include "kernels/block_scaled/products.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <utility>

#include "base/hash.hpp"

namespace accord::kernels::block_scaled {
namespace {

constexpr size_t kDigestDigits = 16;

bool has_outer_pass(const ProductShape& shape) { return shape.format == WeightFormat::kNVFP4; }

}  // namespace

std::vector<RowCall> row_calls(const ProductShape& shape, int64_t m, bool direct) {
  std::vector<RowCall> calls;
  int64_t first = 0;
  if (!has_outer_pass(shape) && direct && m >= kRowMultiple) {
    first = m / kRowMultiple * kRowMultiple;
    calls.push_back({0, first, first, false});
  }
  const int64_t most = rows_per_call(shape.n);
  while (first < m) {
    const int64_t kept = std::min(m - first, most);
    calls.push_back({first, padded_rows(kept), kept, true});
    first += kept;
  }
  return calls;
}

int64_t staging_bytes(const ProductShape& shape, int64_t m) {
  const int64_t rows = std::min(padded_rows(m), rows_per_call(shape.n));
  return rows * shape.n * static_cast<int64_t>(has_outer_pass(shape) ? sizeof(float) : sizeof(uint16_t));
}

StatusOr<std::unique_ptr<BlockScaledProducts>> BlockScaledProducts::create(LtApi api) {
  LtHandle handle = nullptr;
  const int status = api.create(&handle);
  if (status != kLtSuccess) {
    const char* const text = api.status_string(status);
    return unavailable_error("cublasLtCreate of {}: {} ({})", api.origin,
                             text == nullptr ? "no explanation" : text, status);
  }
  return std::unique_ptr<BlockScaledProducts>(new BlockScaledProducts(std::move(api), handle));
}

BlockScaledProducts::~BlockScaledProducts() {
  pinned_.clear();
  (void)api_.destroy(handle_);
}

Status BlockScaledProducts::pin(const ProductShape& shape) {
  if (is_pinned(shape)) return absl::OkStatus();
  if (!takes(shape)) return internal_error("no block-scaled product of {}", to_string(shape));
  Pinned pinned;
  ACCORD_ASSIGN_OR_RETURN(pinned.descriptors, ProductDescriptors::create(api_, shape));
  ACCORD_ASSIGN_OR_RETURN(pinned.algorithm, pin_algorithm(api_, handle_, pinned.descriptors, shape));
  pinned_.emplace(shape, std::move(pinned));
  return absl::OkStatus();
}

Status BlockScaledProducts::multiply(const ProductShape& shape, int64_t rows, const ProductOperands& p,
                                     StreamHandle stream) {
  const auto found = pinned_.find(shape);
  if (found == pinned_.end() || rows <= 0 || rows % kRowMultiple != 0) {
    return internal_error("{} rows of the block-scaled product of {}, {}", rows, to_string(shape),
                          found == pinned_.end() ? "which has no algorithm yet" : "not a multiple of 128");
  }
  ProductDescriptors& descriptors = found->second.descriptors;
  const LtAlgorithm& algorithm = found->second.algorithm.algorithm;
  ACCORD_RETURN_IF_ERROR(descriptors.set_scales(p.w_tiles, p.x_tiles));
  ACCORD_ASSIGN_OR_RETURN(const RowLayouts layouts, RowLayouts::create(api_, shape, rows));
  return check(api_,
               api_.matmul(handle_, descriptors.operation(), p.alpha, p.w, descriptors.w(), p.x,
                           layouts.x.get(), p.beta, p.d, layouts.y.get(), p.d, layouts.y.get(), &algorithm,
                           p.workspace, kWorkspaceBytes, stream),
               "cublasLtMatmul", shape);
}

std::string BlockScaledProducts::arithmetic() const {
  std::string text;
  for (const auto& [shape, pinned] : pinned_) text += to_string(shape, pinned.algorithm.config) + "\n";
  return fmt::format("cuBLASLt {} {}", api_.version, digest_hex(text).substr(0, kDigestDigits));
}

std::vector<std::string> BlockScaledProducts::algorithms() const {
  std::vector<std::string> lines;
  for (const auto& [shape, pinned] : pinned_) lines.push_back(to_string(shape, pinned.algorithm.config));
  return lines;
}

}  // namespace accord::kernels::block_scaled
