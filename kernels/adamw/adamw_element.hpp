#pragma once
// One element of AdamW (adamw.hpp), one function for host and device.
#include <cmath>

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

}  // namespace accord::kernels
