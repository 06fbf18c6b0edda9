#pragma once
// The algorithm of a product, chosen once per (format, N, K) and used for every number of rows. A row's bits
// must not depend on what else is multiplied (docs/contract.md, section 9), so cuBLASLt is never asked per
// call: its heuristic sees kReferenceRows rows, a workspace of kWorkspaceBytes and operands aligned to
// kAlignment, whatever the batch; K is not split and nothing is reduced.
//
// Taken on trust: that an algorithm of one configuration adds an output's products in an order that depends
// on K alone. Nothing in cuBLASLt's documentation promises it, and it has not been measured.
#include <cstdint>
#include <string>

#include "base/status.hpp"
#include "kernels/block_scaled/cublaslt_api.hpp"
#include "kernels/block_scaled/descriptors.hpp"
#include "kernels/block_scaled/product.hpp"

namespace accord::kernels::block_scaled {

constexpr int64_t kReferenceRows = 128;
constexpr int64_t kManyRows = 8192;  // which the algorithm must take, too

// What names an algorithm of one library version.
struct AlgorithmConfig {
  int32_t id = 0;
  uint32_t tile = 0;
  int32_t split_k = 0;
  uint32_t reduction_scheme = 0;
  uint32_t swizzling = 0;
  uint32_t custom_option = 0;
  uint32_t stages = 0;
  uint16_t inner_shape = 0;
  uint16_t cluster_shape = 0;
  bool operator==(const AlgorithmConfig&) const = default;
};

struct PinnedAlgorithm {
  LtAlgorithm algorithm;
  AlgorithmConfig config;
};

// Errors: kUnavailable with the library, the product and the library's reason; where it has no algorithm that
// adds in one sequence.
StatusOr<PinnedAlgorithm> pin_algorithm(const LtApi& api, LtHandle handle,
                                        const ProductDescriptors& descriptors, const ProductShape& shape);

// "mxfp8 4096x2048: 66 tile 20 stages 36 ...".
std::string to_string(const ProductShape& shape, const AlgorithmConfig& config);

}  // namespace accord::kernels::block_scaled
