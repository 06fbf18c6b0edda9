#pragma once
// The outer scales of an NVFP4 product, as host and device apply them (docs/contract.md, section 4):
// fl( fl(acc * fl(1/(36 R_x R_w))) * fl(A_x * A_w) ). `sum` is the inner product already.

namespace accord::kernels::block_scaled {

constexpr float apply_outer_scales(float sum, float x_outer, float w_outer) {
  return sum * (x_outer * w_outer);
}

}  // namespace accord::kernels::block_scaled
