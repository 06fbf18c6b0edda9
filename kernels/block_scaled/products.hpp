#pragma once
// Block-scaled products through cuBLASLt (product.hpp) with pinned algorithms (algorithm.hpp). Not for
// several threads at once. Nothing waits, and nothing is allocated on the device.
#include <cstdint>
#include <map>
#include <memory>
#include <string>
#include <vector>

#include "base/status.hpp"
#include "device/stream_handle.hpp"
#include "kernels/block_scaled/algorithm.hpp"
#include "kernels/block_scaled/cublaslt_api.hpp"
#include "kernels/block_scaled/descriptors.hpp"
#include "kernels/block_scaled/product.hpp"

namespace accord::kernels::block_scaled {

// How M rows are cut into calls: `rows` from `first` on, a multiple of 128, of which the first `kept` are
// y's. `staged` results go to memory of the caller's and from there to y; others straight to y.
struct RowCall {
  int64_t first = 0;
  int64_t rows = 0;
  int64_t kept = 0;
  bool staged = false;
};
// `direct`: rows of y are aligned, so that MXFP8 results may go there.
std::vector<RowCall> row_calls(const ProductShape& shape, int64_t m, bool direct);
// Bytes of the staged results of any call for up to `m` rows.
int64_t staging_bytes(const ProductShape& shape, int64_t m);

// Device memory of one call, aligned to kAlignment; row 0 of each is the call's first.
struct ProductOperands {
  const uint8_t* w = nullptr;        // codes [N,K]
  const uint8_t* w_tiles = nullptr;  // scales, in tiles
  const uint8_t* x = nullptr;        // codes [rows,K]
  const uint8_t* x_tiles = nullptr;
  void* d = nullptr;             // [rows,N]
  const float* alpha = nullptr;  // one value
  const float* beta = nullptr;   // zero
  void* workspace = nullptr;     // kWorkspaceBytes
};

class BlockScaledProducts {
 public:
  // Makes the library's context on the calling thread's device. Errors: kUnavailable.
  static StatusOr<std::unique_ptr<BlockScaledProducts>> create(LtApi api);
  ~BlockScaledProducts();
  BlockScaledProducts(const BlockScaledProducts&) = delete;
  BlockScaledProducts& operator=(const BlockScaledProducts&) = delete;

  // Chooses the algorithm of a product that takes() holds for, once. Errors: pin_algorithm's.
  Status pin(const ProductShape& shape);
  bool is_pinned(const ProductShape& shape) const { return pinned_.contains(shape); }

  // y rows = alpha (x rows) w^T; rows a multiple of 128; the shape is pinned.
  Status multiply(const ProductShape& shape, int64_t rows, const ProductOperands& operands,
                  StreamHandle stream);

  const std::string& origin() const { return api_.origin; }
  // Names what the bits of sums depend on besides the device: the library's version, and a digest of the
  // algorithms of all pinned products. Equal where the products are.
  std::string arithmetic() const;
  // One line per pinned product: for logs.
  std::vector<std::string> algorithms() const;

 private:
  struct Pinned {
    ProductDescriptors descriptors;
    PinnedAlgorithm algorithm;
  };

  BlockScaledProducts(LtApi api, LtHandle handle) : api_(std::move(api)), handle_(handle) {}

  const LtApi api_;
  const LtHandle handle_;
  std::map<ProductShape, Pinned> pinned_;
};

}  // namespace accord::kernels::block_scaled
