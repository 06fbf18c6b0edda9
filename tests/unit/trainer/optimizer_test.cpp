#include "trainer/optimizer.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <limits>
#include <vector>

#include "base/philox.hpp"
#include "support/catch.hpp"

namespace accord::trainer {
namespace {

ModelConfig tiny_config() {
  ModelConfig c;
  c.architecture = Architecture::kQwen3Moe;
  c.vocab_size = 40;
  c.hidden_size = 16;
  c.num_layers = 2;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 8;
  c.intermediate_size = 24;
  c.num_experts = 4;
  c.num_experts_per_token = 2;
  c.moe_intermediate_size = 16;
  c.layer_is_moe = {true, true};
  c.qk_norm = true;
  c.max_position_embeddings = 64;
  return c;
}

constexpr const char* kNorm = "model.norm.weight";
constexpr const char* kRouter = "model.layers.0.mlp.gate.weight";
constexpr const char* kExpert = "model.layers.1.mlp.experts.2.up_proj.weight";

void fill(const Parameters& parameters, uint64_t seed) {
  PhiloxStream random(seed, 0);
  for (int64_t i = 0; i < parameters.count(); ++i) {
    for (float& x : parameters.master(i)) x = static_cast<float>(random.next_normal());
    for (float& x : parameters.gradient(i)) x = static_cast<float>(random.next_normal() * 1e-3);
  }
}

}  // namespace

TEST_CASE("AdamW follows its formula in double, decay only where asked") {
  const std::vector<std::string> no_decay{kExpert};
  Parameters parameters = *Parameters::create(tiny_config(), no_decay);
  fill(parameters, 3);
  ThreadPool pool(2);
  recipe::OptimizerPart optimizer;
  optimizer.lr = 0.01;
  CHECK(!parameters.decays(parameters.index(kNorm)));
  CHECK(!parameters.decays(parameters.index(kExpert)));
  CHECK(parameters.decays(parameters.index(kRouter)));
  for (const char* name : {kNorm, kExpert, kRouter}) {
    const int64_t i = parameters.index(name);
    std::vector<double> master(parameters.master(i).begin(), parameters.master(i).end());
    std::vector<double> m(master.size()), v(master.size());
    parameters.clear_moments();
    Parameters& p = parameters;
    const double decay = p.decays(i) ? optimizer.weight_decay : 0.0;
    for (int64_t step = 1; step <= 3; ++step) {
      for (size_t j = 0; j < master.size(); ++j) {
        const double g = p.gradient(i)[j];
        m[j] = optimizer.beta1 * m[j] + (1.0 - optimizer.beta1) * g;
        v[j] = optimizer.beta2 * v[j] + (1.0 - optimizer.beta2) * g * g;
        const double correction1 = 1.0 - std::pow(optimizer.beta1, static_cast<double>(step));
        const double correction2 = 1.0 - std::pow(optimizer.beta2, static_cast<double>(step));
        master[j] *= 1.0 - optimizer.lr * decay;
        master[j] -= optimizer.lr / correction1 * m[j] / (std::sqrt(v[j] / correction2) + optimizer.eps);
      }
      adamw_update(p, optimizer, optimizer.lr, step, pool);
    }
    double largest = 0.0;
    for (size_t j = 0; j < master.size(); ++j)
      largest = std::max(largest, std::abs(master[j] - p.master(i)[j]));
    CAPTURE(name);
    CHECK(largest < 1e-6);
  }
}

TEST_CASE("a learning rate of 0 leaves the masters bit-identical") {
  Parameters parameters = *Parameters::create(tiny_config(), {});
  fill(parameters, 4);
  ThreadPool pool(1);
  const int64_t i = parameters.index(kRouter);
  parameters.master(i)[0] = -0.0F;
  parameters.gradient(i)[0] = -1.0F;
  const std::vector<float> before(parameters.master(i).begin(), parameters.master(i).end());
  adamw_update(parameters, recipe::OptimizerPart{}, 0.0, 1, pool);
  CHECK(std::memcmp(before.data(), parameters.master(i).data(), before.size() * sizeof(float)) == 0);
  CHECK(parameters.exp_avg(i)[0] != 0.0F);
}

namespace {
double gradient_norm(const Parameters& parameters, ThreadPool& pool) {
  return std::sqrt(gradient_squares(parameters, pool));
}
}  // namespace

TEST_CASE("clipping scales to the limit, and threads do not change a bit") {
  Parameters parameters = *Parameters::create(tiny_config(), {});
  fill(parameters, 5);
  ThreadPool one(1), three(3);
  const double norm = gradient_norm(parameters, one);
  CHECK(norm == gradient_norm(parameters, three));
  double exact = 0.0;
  for (float g : parameters.owned_gradients()) exact += static_cast<double>(g) * g;
  CHECK(std::abs(norm - std::sqrt(exact)) < 1e-12 * norm);
  clip_gradients(parameters, norm, 2.0 * norm, one);
  CHECK(gradient_norm(parameters, one) == norm);
  clip_gradients(parameters, norm, 0.5 * norm, three);
  CHECK(std::abs(gradient_norm(parameters, one) - 0.5 * norm) < 1e-4 * norm);
}

TEST_CASE("a non-finite gradient is named") {
  Parameters parameters = *Parameters::create(tiny_config(), {});
  CHECK(first_non_finite_gradient(parameters) == -1);
  parameters.gradient(parameters.index(kRouter))[3] = std::numeric_limits<float>::quiet_NaN();
  CHECK(first_non_finite_gradient(parameters) == parameters.index(kRouter));
  ThreadPool pool(2);
  CHECK(std::isnan(gradient_squares(parameters, pool)));
}

TEST_CASE("schedules") {
  recipe::OptimizerPart o;
  o.lr = 1.0;
  o.min_lr = 0.1;
  o.warmup_steps = 4;
  CHECK(learning_rate(o, 0, 0) == 0.25);
  CHECK(learning_rate(o, 0, 3) == 1.0);
  CHECK(learning_rate(o, 0, 1000) == 1.0);
  o.schedule = recipe::Schedule::kLinear;
  CHECK(learning_rate(o, 14, 4) == 1.0);
  CHECK(std::abs(learning_rate(o, 14, 9) - 0.55) < 1e-12);
  CHECK(std::abs(learning_rate(o, 14, 20) - 0.1) < 1e-12);
  o.schedule = recipe::Schedule::kCosine;
  CHECK(learning_rate(o, 14, 4) == 1.0);
  CHECK(std::abs(learning_rate(o, 14, 9) - 0.55) < 1e-12);
  CHECK(std::abs(learning_rate(o, 14, 14) - 0.1) < 1e-12);
}

}  // namespace accord::trainer
