#pragma once
// AdamW with decoupled weight decay on one tensor (Loshchilov and Hutter, arXiv 1711.05101), per element, in
// fp32 and in this order (no fused multiply-adds):
//   g = fl(g * scale)                  scale < 1 where the global norm is clipped, else g as it is
//   m = fl(fl(b1 m) + fl((1-b1) g));   v = fl(fl(b2 v) + fl((1-b2) fl(g g)))
//   w = fl(fl(w decay) - fl(step * fl(m / fl(fl(sqrt(v) c2) + eps))))        unless `move` is false
// with step = lr / (1 - b1^n) and c2 = 1 / sqrt(1 - b2^n) made in double and rounded once. CPU and CUDA give
// the same bits.

namespace accord::kernels {

struct AdamwFactors {
  float decay = 1.0F;
  float beta1 = 0.0F, one_minus_beta1 = 0.0F;
  float beta2 = 0.0F, one_minus_beta2 = 0.0F;
  float step = 0.0F;
  float inv_sqrt_correction2 = 0.0F;
  float eps = 0.0F;
  float scale = 1.0F;
  bool move = true;
};

}  // namespace accord::kernels
