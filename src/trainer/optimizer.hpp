#pragma once
// AdamW with decoupled weight decay (Loshchilov and Hutter, arXiv 1711.05101), global-norm clipping, and the
// learning-rate schedules. Arithmetic is fp32 per element with factors made in double; norms are double.
#include <cstdint>

#include "base/status.hpp"
#include "device/thread_pool.hpp"
#include "kernels/adamw/adamw.hpp"
#include "recipe/recipe.hpp"
#include "trainer/parameters.hpp"

namespace accord::trainer {

// Learning rate of the optimizer step that follows `completed` steps, w = warmup_steps, n = total_steps:
//   completed < w:  lr (completed + 1) / w
//   constant        lr
//   linear, cosine  from lr at `completed` = w to min_lr at n, and min_lr after it
double learning_rate(const recipe::OptimizerPart& optimizer, int64_t total_steps, int64_t completed);

// Sum of the squares of the owned gradients, over fixed blocks in order.
double gradient_squares(const Parameters& parameters, ThreadPool& pool);

// Index of the first owned parameter with a non-finite gradient; -1: none.
int64_t first_non_finite_gradient(const Parameters& parameters);

// What gradients are multiplied by: clip / (norm + 1e-6) where norm + 1e-6 exceeds clip, else 1; clip 0: 1.
float clip_scale(double norm, double clip);

// Scales the owned gradients so.
void clip_gradients(const Parameters& parameters, double norm, double clip, ThreadPool& pool);

// The factors of update number `steps` (from 1) for a tensor that weight decay applies to, or not; no scale.
kernels::AdamwFactors adamw_factors(const recipe::OptimizerPart& optimizer, double lr, int64_t steps,
                                    bool decays);

// One update of what this rank owns; `steps` is the number of updates including this one (bias correction).
//   master *= 1 - lr * decay;  m = b1 m + (1 - b1) g;  v = b2 v + (1 - b2) g^2
//   master -= lr / (1 - b1^steps) * m / (sqrt(v) / sqrt(1 - b2^steps) + eps)
// A learning rate of 0 updates the moments and leaves every bit of the masters.
void adamw_update(const Parameters& parameters, const recipe::OptimizerPart& optimizer, double lr,
                  int64_t steps, ThreadPool& pool);

}  // namespace accord::trainer
