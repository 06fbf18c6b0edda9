#include "trainer/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <numbers>
#include <vector>

#include "kernels/adamw/adamw_element.hpp"

namespace accord::trainer {

namespace {

constexpr int64_t kBlock = 1 << 15;  // elements per task
constexpr double kClipEpsilon = 1e-6;

double sum_of_squares(const float* x, int64_t count) {
  constexpr int64_t kLanes = 8;
  double lanes[kLanes] = {};
  int64_t i = 0;
  for (; i + kLanes <= count; i += kLanes) {
    for (int64_t j = 0; j < kLanes; ++j) {
      const double value = x[i + j];
      lanes[j] += value * value;
    }
  }
  double sum = 0.0;
  for (double lane : lanes) sum += lane;
  for (; i < count; ++i) sum += static_cast<double>(x[i]) * x[i];
  return sum;
}

void for_blocks(int64_t total, ThreadPool& pool, const std::function<void(int64_t, int64_t, int64_t)>& body) {
  pool.parallel_for((total + kBlock - 1) / kBlock, [&](int64_t block) {
    const int64_t begin = block * kBlock;
    body(block, begin, std::min(kBlock, total - begin));
  });
}

void update_block(float* master, const float* gradient, float* exp_avg, float* exp_avg_sq, int64_t count,
                  const kernels::AdamwFactors& factors) {
  const kernels::AdamwFactors f = factors;  // no store below can change it
  for (int64_t i = 0; i < count; ++i) {
    kernels::adamw_element(master[i], gradient[i], exp_avg[i], exp_avg_sq[i], f);
  }
}

}  // namespace

double learning_rate(const recipe::OptimizerPart& optimizer, int64_t total_steps, int64_t completed) {
  const double warmup = static_cast<double>(optimizer.warmup_steps);
  if (completed < optimizer.warmup_steps) return optimizer.lr * static_cast<double>(completed + 1) / warmup;
  if (optimizer.schedule == recipe::Schedule::kConstant) return optimizer.lr;
  const double span = static_cast<double>(total_steps) - warmup;
  const double done = static_cast<double>(completed) - warmup;
  const double progress = span > 0.0 ? std::min(done / span, 1.0) : 1.0;
  const double share = optimizer.schedule == recipe::Schedule::kLinear
                           ? 1.0 - progress
                           : 0.5 * (1.0 + std::cos(std::numbers::pi * progress));
  return optimizer.min_lr + (optimizer.lr - optimizer.min_lr) * share;
}

double gradient_squares(const Parameters& parameters, ThreadPool& pool) {
  const std::span<const float> all = parameters.owned_gradients();
  const int64_t total = static_cast<int64_t>(all.size());
  std::vector<double> sums(static_cast<size_t>((total + kBlock - 1) / kBlock));
  for_blocks(total, pool, [&](int64_t block, int64_t begin, int64_t count) {
    sums[static_cast<size_t>(block)] = sum_of_squares(all.data() + begin, count);
  });
  double sum = 0.0;
  for (double s : sums) sum += s;
  return sum;
}

int64_t first_non_finite_gradient(const Parameters& parameters) {
  for (int64_t i = 0; i < parameters.count(); ++i) {
    if (!parameters.shards().owns(i)) continue;
    const auto gradient = parameters.gradient(i);
    if (!std::all_of(gradient.begin(), gradient.end(), [](float g) { return std::isfinite(g); })) {
      return i;
    }
  }
  return -1;
}

float clip_scale(double norm, double clip) {
  if (clip <= 0.0 || norm + kClipEpsilon <= clip) return 1.0F;
  return static_cast<float>(clip / (norm + kClipEpsilon));
}

void clip_gradients(const Parameters& parameters, double norm, double clip, ThreadPool& pool) {
  const float scale = clip_scale(norm, clip);
  if (scale == 1.0F) return;
  const std::span<float> owned = parameters.owned_gradients();
  float* all = owned.data();
  for_blocks(static_cast<int64_t>(owned.size()), pool, [&](int64_t, int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; ++i) all[i] *= scale;
  });
}

kernels::AdamwFactors adamw_factors(const recipe::OptimizerPart& optimizer, double lr, int64_t steps,
                                    bool decays) {
  const double n = static_cast<double>(steps);
  kernels::AdamwFactors factors;
  factors.decay = decays ? static_cast<float>(1.0 - lr * optimizer.weight_decay) : 1.0F;
  factors.beta1 = static_cast<float>(optimizer.beta1);
  factors.one_minus_beta1 = static_cast<float>(1.0 - optimizer.beta1);
  factors.beta2 = static_cast<float>(optimizer.beta2);
  factors.one_minus_beta2 = static_cast<float>(1.0 - optimizer.beta2);
  factors.step = static_cast<float>(lr / (1.0 - std::pow(optimizer.beta1, n)));
  factors.inv_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(optimizer.beta2, n)));
  factors.eps = static_cast<float>(optimizer.eps);
  factors.move = lr != 0.0;
  return factors;
}

void adamw_update(const Parameters& parameters, const recipe::OptimizerPart& optimizer, double lr,
                  int64_t steps, ThreadPool& pool) {
  const kernels::AdamwFactors decayed = adamw_factors(optimizer, lr, steps, true);
  const kernels::AdamwFactors not_decayed = adamw_factors(optimizer, lr, steps, false);
  struct Task {
    int64_t tensor, begin, count;
  };
  std::vector<Task> tasks;
  for (int64_t i = 0; i < parameters.count(); ++i) {
    const int64_t size = static_cast<int64_t>(parameters.master(i).size());
    for (int64_t begin = 0; begin < size; begin += kBlock)
      tasks.push_back({i, begin, std::min(kBlock, size - begin)});
  }
  pool.parallel_for(static_cast<int64_t>(tasks.size()), [&](int64_t t) {
    const Task& task = tasks[static_cast<size_t>(t)];
    update_block(parameters.master(task.tensor).data() + task.begin,
                 parameters.gradient(task.tensor).data() + task.begin,
                 parameters.exp_avg(task.tensor).data() + task.begin,
                 parameters.exp_avg_sq(task.tensor).data() + task.begin, task.count,
                 parameters.decays(task.tensor) ? decayed : not_decayed);
  });
}

}  // namespace accord::trainer
