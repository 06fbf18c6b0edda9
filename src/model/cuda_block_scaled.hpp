#pragma once
// Linears on devices whose tensor cores multiply scaled blocks (Blackwell, capability 10.x): through cuBLASLt
// (kernels/block_scaled) instead of decoded BF16 operands. Both pools run this, so a policy has one
// arithmetic; which products go this way depends on the weights' formats and shapes alone. Not for other
// rooms.
#include <cstdint>
#include <map>
#include <memory>
#include <span>
#include <string>
#include <vector>

#include "device/device.hpp"
#include "device/device_buffer.hpp"
#include "device/stream.hpp"
#include "kernels/block_scaled/products.hpp"
#include "kernels/linear/linear.hpp"

namespace accord::model {

// Rows as their quantizer stored them; codes have room for whole multiples of 128 rows.
struct QuantizedRows {
  uint8_t* codes = nullptr;
  const uint8_t* scales = nullptr;  // row-major
  const float* outer = nullptr;     // [rows] (NVFP4)
  int64_t rows = 0;
};

// Rows of the sorted order of each expert, where the grouped products find them.
struct ExpertRows {
  const int32_t* offsets = nullptr;  // [experts + 1] on the device
  int64_t experts = 0;
  int64_t rows = 0;  // of all
};

class CudaBlockScaled {
 public:
  // `weights`: bound to an arena on the device. Null where the device has no such tensor cores, cuBLASLt is
  // switched off, or no weight has such a product. Errors: there is no cuBLASLt, or it has no algorithm for a
  // product (kUnavailable, with the remedy).
  static StatusOr<std::unique_ptr<CudaBlockScaled>> create(
      const Device& device, const Stream& stream, std::span<const kernels::LinearWeight* const> weights);

  // The arena's bytes have changed: puts the weights' scales into tiles again.
  void weights_changed();
  // Room for operands of up to `rows` rows, and of `sorted` rows of `experts` experts (0: there are none).
  Status reserve(int64_t rows, int64_t sorted, int64_t experts);
  bool takes(const kernels::LinearWeight& w, Dtype result) const;

  // The tiles of x's scales, valid until the next call; clears the rows that fill up the last 128.
  void prepare(const QuantizedRows& x, const kernels::LinearWeight& w);
  // y = x w^T, x as it was prepared.
  void multiply(const QuantizedRows& x, const kernels::LinearWeight& w, MatrixView y);

  // The same per expert. cuBLASLt wants to know on the host how many rows an expert has, so begin_experts
  // waits for the stream; the rows of each then lie apart, in whole multiples of 128.
  void begin_experts(const ExpertRows& rows);
  // `gather`: the row of x of each sorted row; null: the same.
  void prepare_experts(const QuantizedRows& x, const int32_t* gather, const kernels::LinearWeight& any);
  // y rows of expert `e`, which lie together.
  void multiply_expert(const QuantizedRows& x, const int32_t* gather, int64_t e,
                       const kernels::LinearWeight& w, MatrixView y);

  std::string arithmetic() const { return products_->arithmetic(); }

 private:
  struct Weight {
    kernels::block_scaled::ProductShape shape;
    size_t tiles_at = 0;
  };

  // Where the rows of a product lie.
  struct Rows {
    const uint8_t* codes = nullptr;
    const uint8_t* tiles = nullptr;
    const float* outer = nullptr;
    const int32_t* outer_rows = nullptr;  // null: row i of outer
  };

  CudaBlockScaled(const Device& device, const Stream& stream) : device_(device), stream_(stream) {}
  Status allocate();
  void run(const Rows& x, const kernels::LinearWeight& w, MatrixView y);
  const Weight& weight_of(const kernels::LinearWeight& w) const;
  const float* alpha_of(const kernels::LinearWeight& w) const;

  const Device& device_;
  const Stream& stream_;
  std::unique_ptr<kernels::block_scaled::BlockScaledProducts> products_;
  std::map<const uint8_t*, Weight> weights_;  // by their scales in the arena
  size_t tile_bytes_ = 0;                     // of all weights
  DeviceBuffer weight_tiles_, x_tiles_, staging_, workspace_, constants_;
  // Of experts' rows: the list of tiles of 128, its length, codes and scales in its order; the offsets,
  // pinned.
  DeviceBuffer list_, num_tiles_, packed_codes_, packed_tiles_, host_offsets_;
  ExpertRows experts_;
  std::vector<int64_t> packed_begin_;  // per expert, its first row there
};

}  // namespace accord::model
