#pragma once
// One element of AdamW (adamw.hpp), one function for host and device.
#include <cmath>
#include <cstdint>

#include "kernels/adamw/adamw.hpp"
#include "kernels/math/host_device.hpp"

namespace accord::kernels {

ACCORD_HOST_DEVICE inline void adamw_element(float& master, float gradient, float& exp_avg, float& exp_avg_sq,
                                             const AdamwFactors& f) {
  const float g = gradient * f.scale;
  const float m = f.beta1 * exp_avg + f.one_minus_beta1 * g;
  const float v = f.beta2 * exp_avg_sq + f.one_minus_beta2 * (g * g);
  const float moved = master * f.decay - f.step * (m / (sqrtf(v) * f.inv_sqrt_correction2 + f.eps));
  exp_avg = m;
  exp_avg_sq = v;
  master = f.move ? moved : master;
}

// Whether BF16 makes zero of a value that is not zero, by the bits of its magnitude. Up to half of BF16's
// least subnormal: the tie goes to zero.
ACCORD_HOST_DEVICE inline bool flushed_by_bf16(uint32_t magnitude_bits) {
  return magnitude_bits - 1U < 0x8000U;
}

}  // namespace accord::kernels
