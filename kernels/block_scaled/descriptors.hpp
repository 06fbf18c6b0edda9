#pragma once
// cuBLASLt's descriptors of one product (product.hpp), as owned handles.
#include <cstdint>

#include "base/status.hpp"
#include "kernels/block_scaled/cublaslt_api.hpp"
#include "kernels/block_scaled/product.hpp"

namespace accord::kernels::block_scaled {

// The status of a call, which the message names, with the product and what the library says.
Status check(const LtApi& api, int status, const char* call, const ProductShape& shape);

// An owned handle of one of the descriptor types. The API must outlive it.
class LtOwned {
 public:
  LtOwned() = default;
  LtOwned(void* handle, int (*destroy)(void*)) : handle_(handle), destroy_(destroy) {}
  LtOwned(LtOwned&& other) noexcept;
  LtOwned& operator=(LtOwned&& other) noexcept;
  LtOwned(const LtOwned&) = delete;
  LtOwned& operator=(const LtOwned&) = delete;
  ~LtOwned();
  void* get() const { return handle_; }

 private:
  void* handle_ = nullptr;
  int (*destroy_)(void*) = nullptr;
};

// The operation and the layout of w, which do not depend on the rows of x: compute type fp32 and alpha and
// beta in device memory; w transposed; both operands scaled in blocks.
class ProductDescriptors {
 public:
  static StatusOr<ProductDescriptors> create(const LtApi& api, const ProductShape& shape);

  // Device memory: the tiles of the scales of w and of x.
  Status set_scales(const uint8_t* w_tiles, const uint8_t* x_tiles);

  LtDescriptor operation() const { return operation_.get(); }
  LtLayout w() const { return w_.get(); }

 private:
  const LtApi* api_ = nullptr;
  ProductShape shape_;
  LtOwned operation_, w_;
};

// The layouts of `rows` rows of x and y.
struct RowLayouts {
  LtOwned x, y;
  static StatusOr<RowLayouts> create(const LtApi& api, const ProductShape& shape, int64_t rows);
};

}  // namespace accord::kernels::block_scaled
