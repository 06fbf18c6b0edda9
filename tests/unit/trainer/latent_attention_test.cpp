// The gradient of a whole DeepSeek-V3 model, both forms of its attention, against libtorch's autograd in
// fp64.
#include <torch/torch.h>

#include <cmath>
#include <map>
#include <string>
#include <vector>

// torch's logging macros and Catch2's share names; ours come last.
#undef CHECK
#include "base/philox.hpp"
#include "kernels/rope/rope.hpp"
#include "precision/plan.hpp"
#include "support/catch.hpp"
#include "trainer/trainer.hpp"
#include "unit/trainer/fixture.hpp"
#include "unit/trainer/tolerance.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace accord::trainer {
namespace {

using torch::Tensor;

ModelConfig latent_config(MlaForm form, bool simple) {
  ModelConfig c;
  c.architecture = Architecture::kDeepseekV3;
  c.vocab_size = 61;
  c.hidden_size = 64;
  c.num_layers = 3;
  c.num_heads = c.num_kv_heads = 3;
  c.head_dim = 16;
  c.mla = {simple ? 0 : 32, 32, 24, 16, 32, !simple, form};
  c.intermediate_size = 96;
  c.layer_is_moe = {false, true, true};
  c.num_experts = 8;
  c.num_experts_per_token = 3;
  c.moe_intermediate_size = 32;
  c.norm_topk_prob = !simple;
  c.router_scoring = RouterScoring::kSigmoid;
  c.router_bias = true;
  c.num_expert_groups = simple ? 1 : 4;
  c.num_chosen_groups = simple ? 1 : 2;
  c.routed_scaling_factor = 1.7;
  c.num_shared_experts = 2;
  c.max_position_embeddings = 256;
  c.rms_norm_eps = 1e-6;
  if (!simple) {
    c.rope_scaling.kind = RopeKind::kYarn;
    c.rope_scaling.factor = 4.0;
    c.rope_scaling.original_max_position = 32;
    c.rope_scaling.mscale_all_dim = 0.5;
  }
  return c;
}

// A trainer with random masters that BF16 holds.
struct Run {
  Run(const ModelConfig& model, Dtype dtype, const recipe::PrecisionPart& precision = {})
      : config(model), pool(2) {
    plan = *precision::build_plan(config, precision);
    manifest = *weights::build_manifest(config, plan);
    arena = *weights::Arena::create(manifest.arena_bytes);
    TrainerOptions options;
    options.compute_dtype = dtype;
    options.tokens_per_microbatch = 50;
    options.optimizer.clip_grad = 1e30;
    for (const precision::PlanRow& row : plan.rows) {
      if (!row.weight_decay) options.no_weight_decay.push_back(row.name);
      options.units.push_back(row.unit);
    }
    PhiloxStream random(5, 1);
    const auto draw = [&](const ParamSpec& spec, std::span<float> values) -> Status {
      const bool norm = spec.role == ParamRole::kNorm;
      for (float& v : values) {
        v = to_float(
            to_bf16(static_cast<float>((norm ? 1.0 : 0.0) + (norm ? 0.1 : 0.15) * random.next_normal())));
        if (spec.role == ParamRole::kRouterBias) v = 0.1F * v + 1e-5F;  // FP32, as published models have it
      }
      masters[spec.name].assign(values.begin(), values.end());
      return absl::OkStatus();
    };
    auto created = Trainer::create(config, options, pool, draw);
    REQUIRE(created.ok());
    trainer = std::move(*created);
    const auto source = [&](const std::string& name) -> StatusOr<weights::Master> {
      return weights::Master(trainer->master(name));
    };
    REQUIRE(weights::export_weights(manifest, plan, source, *arena, pool).ok());
    REQUIRE(trainer->bind_arena(manifest, arena->data()).ok());
  }

  ModelConfig config;
  ThreadPool pool;
  precision::PrecisionPlan plan;
  WeightManifest manifest;
  std::unique_ptr<weights::Arena> arena;
  std::map<std::string, std::vector<float>> masters;
  std::unique_ptr<Trainer> trainer;
};

std::vector<SftSample> samples_of(const ModelConfig& c) {
  std::vector<SftSample> samples;
  for (const int32_t length : {33, 12, 40}) {
    PhiloxStream random(11, static_cast<uint64_t>(length));
    SftSample s;
    for (int32_t i = 0; i < length; ++i) {
      s.tokens.push_back(static_cast<int32_t>(random.next_below(static_cast<uint64_t>(c.vocab_size))));
    }
    s.prompt_length = 3;
    samples.push_back(s);
  }
  return samples;
}

// The model as transformers writes it, fp64, one sequence.
class Reference {
 public:
  explicit Reference(const Run& run) : c_(run.config), rope_(c_.head_dim, c_.rope_theta, c_.rope_scaling) {
    rope_.ensure(c_.max_position_embeddings);
    for (const ParamSpec& spec : parameter_specs(c_)) {
      Tensor t = torch::empty(spec.shape, torch::kFloat32);
      std::copy(run.masters.at(spec.name).begin(), run.masters.at(spec.name).end(), t.data_ptr<float>());
      weights[spec.name] = t.to(torch::kFloat64).set_requires_grad(spec.role != ParamRole::kRouterBias);
    }
  }

  Tensor logits(const std::vector<int32_t>& tokens) {
    const auto n = static_cast<int64_t>(tokens.size());
    const Tensor ids = torch::tensor(std::vector<int64_t>(tokens.begin(), tokens.end()));
    Tensor x = w("model.embed_tokens").index_select(0, ids);
    for (int64_t layer = 0; layer < c_.num_layers; ++layer) {
      prefix_ = "model.layers." + std::to_string(layer) + ".";
      x = x + attention(norm(x, "input_layernorm"), n);
      const Tensor h = norm(x, "post_attention_layernorm");
      x = x + (c_.layer_is_moe[static_cast<size_t>(layer)] ? experts(h) : mlp(h, "mlp."));
    }
    prefix_ = "model.";
    return norm(x, "norm").matmul(weights.at("lm_head.weight").t());
  }

  std::map<std::string, Tensor> weights;

 private:
  Tensor w(const std::string& name) const { return weights.at(name + ".weight"); }
  Tensor linear(const Tensor& x, const std::string& name) const { return x.matmul(w(prefix_ + name).t()); }
  Tensor norm(const Tensor& x, const std::string& name) const {
    return x * torch::rsqrt(x.pow(2).mean(-1, true) + 1e-6) * w(prefix_ + name);
  }
  Tensor mlp(const Tensor& x, const std::string& name) const {
    return linear(torch::silu(linear(x, name + "gate_proj")) * linear(x, name + "up_proj"),
                  name + "down_proj");
  }

  // x [n, heads, rope]
  Tensor rotate(const Tensor& x) const {
    const int64_t n = x.size(0), half = c_.head_dim / 2;
    Tensor cos = torch::empty({n, 1, half}, torch::kFloat64), sin = cos.clone();
    for (int64_t p = 0; p < n; ++p) {
      for (int64_t i = 0; i < half; ++i) {
        cos.data_ptr<double>()[p * half + i] = rope_.cos(p)[i];
        sin.data_ptr<double>()[p * half + i] = rope_.sin(p)[i];
      }
    }
    const Tensor pairs = c_.mla.rope_interleave ? x.view({n, -1, half, 2}).transpose(2, 3).reshape_as(x) : x;
    const Tensor a = pairs.slice(2, 0, half), b = pairs.slice(2, half);
    return torch::cat({a * cos - b * sin, b * cos + a * sin}, 2);
  }

  Tensor attention(const Tensor& x, int64_t n) const {
    const MlaConfig& m = c_.mla;
    const int64_t heads = c_.num_heads, nope = m.qk_nope_head_dim;
    const Tensor q_flat =
        m.q_lora_rank > 0
            ? linear(norm(linear(x, "self_attn.q_a_proj"), "self_attn.q_a_layernorm"), "self_attn.q_b_proj")
            : linear(x, "self_attn.q_proj");
    const Tensor q = q_flat.view({n, heads, m.qk_head_dim()});
    const Tensor kv_a = linear(x, "self_attn.kv_a_proj_with_mqa");
    const Tensor latent = norm(kv_a.slice(1, 0, m.kv_lora_rank), "self_attn.kv_a_layernorm");
    const Tensor kv = linear(latent, "self_attn.kv_b_proj").view({n, heads, nope + m.v_head_dim});
    const Tensor k_rot = rotate(kv_a.slice(1, m.kv_lora_rank).unsqueeze(1)).expand({n, heads, c_.head_dim});
    const Tensor keys = torch::cat({kv.slice(2, 0, nope), k_rot}, 2).transpose(0, 1);
    const Tensor queries = torch::cat({q.slice(2, 0, nope), rotate(q.slice(2, nope))}, 2).transpose(0, 1);
    double scale = 1.0 / std::sqrt(static_cast<double>(m.qk_head_dim()));
    if (c_.rope_scaling.mscale_all_dim > 0.0) {
      const double mscale = 0.1 * c_.rope_scaling.mscale_all_dim * std::log(c_.rope_scaling.factor) + 1.0;
      scale *= mscale * mscale;
    }
    const Tensor mask = torch::ones({n, n}, torch::kBool).triu(1);
    const Tensor scores = (queries.matmul(keys.transpose(1, 2)) * scale).masked_fill(mask, -INFINITY);
    const Tensor out = torch::softmax(scores, -1).matmul(kv.slice(2, nope).transpose(0, 1));
    return linear(out.transpose(0, 1).reshape({n, -1}), "self_attn.o_proj");
  }

  Tensor experts(const Tensor& x) const {
    const int64_t n = x.size(0), groups = c_.num_expert_groups;
    const Tensor scores = torch::sigmoid(linear(x, "mlp.gate"));
    const Tensor choice = scores.detach() + weights.at(prefix_ + "mlp.gate.e_score_correction_bias");
    const Tensor best = std::get<0>(choice.view({n, groups, -1}).topk(2, -1)).sum(-1);
    const Tensor kept =
        torch::zeros_like(best).scatter(1, std::get<1>(best.topk(c_.num_chosen_groups, -1)), 1.0);
    const Tensor mask =
        kept.unsqueeze(-1).expand({n, groups, c_.num_experts / groups}).reshape({n, c_.num_experts});
    const Tensor ids =
        std::get<1>(choice.masked_fill(mask == 0.0, -INFINITY).topk(c_.num_experts_per_token, -1));
    Tensor chosen = scores.gather(1, ids);
    if (c_.norm_topk_prob) chosen = chosen / (chosen.sum(-1, true) + 1e-20);
    const Tensor by_expert = torch::zeros_like(scores).scatter(1, ids, chosen * c_.routed_scaling_factor);
    Tensor y = mlp(x, "mlp.shared_experts.");
    for (int64_t e = 0; e < c_.num_experts; ++e) {
      y = y + mlp(x, "mlp.experts." + std::to_string(e) + ".") * by_expert.slice(1, e, e + 1);
    }
    return y;
  }

  const ModelConfig& c_;
  kernels::RopeTable rope_;
  std::string prefix_;
};

// Of the mean negative log-prob over all response tokens.
Tensor reference_loss(Reference& reference, const std::vector<SftSample>& samples) {
  Tensor sum = torch::zeros({}, torch::kFloat64);
  int64_t count = 0;
  for (const SftSample& s : samples) {
    const Tensor log_p = torch::log_softmax(reference.logits({s.tokens.begin(), s.tokens.end() - 1}), -1);
    for (size_t t = static_cast<size_t>(s.prompt_length); t < s.tokens.size(); ++t, ++count) {
      sum = sum - log_p[static_cast<int64_t>(t) - 1][s.tokens[t]];
    }
  }
  return sum / static_cast<double>(count);
}

double distance(std::span<const float> mine, const Tensor& reference) {
  const Tensor flat = reference.flatten().contiguous();
  REQUIRE(flat.numel() == static_cast<int64_t>(mine.size()));
  double difference = 0.0;
  for (size_t i = 0; i < mine.size(); ++i) {
    const double d = mine[i] - flat.data_ptr<double>()[i];
    difference += d * d;
  }
  const double norm = flat.norm().item<double>();
  REQUIRE(norm > 0.0);
  return std::sqrt(difference) / norm;
}

void check_gradients(const ModelConfig& config, Dtype dtype, const recipe::PrecisionPart& precision,
                     double tolerance) {
  Run run(config, dtype, precision);
  Reference reference(run);
  const std::vector<SftSample> samples = samples_of(config);
  const Tensor loss = reference_loss(reference, samples);
  loss.backward();
  const auto report = run.trainer->sft_step(samples, 1);
  REQUIRE(report.ok());
  CHECK(std::abs(report->metrics.at("train/loss") - loss.item<double>()) < tolerance * loss.item<double>());
  double worst = 0.0;
  for (const ParamSpec& spec : parameter_specs(config)) {
    CAPTURE(spec.name);
    const auto gradient = run.trainer->gradient(spec.name);
    if (spec.role == ParamRole::kRouterBias) {
      for (size_t e = 0; e < gradient.size(); ++e) {
        CHECK(gradient[e] == 0.0F);
        CHECK(run.trainer->master(spec.name)[e] == run.masters.at(spec.name)[e]);  // the step left it alone
      }
      continue;
    }
    const double error = distance(gradient, reference.weights.at(spec.name).grad());
    CHECK(error < tolerance);
    worst = std::max(worst, error);
  }
  CAPTURE(worst);
  CHECK(worst > 0.0);
}

}  // namespace

TEST_CASE("The gradient of plain latent attention equals autograd") {
  check_gradients(latent_config(MlaForm::kPlain, false), Dtype::kF32, {}, tolerance::kStepGradient);
  check_gradients(latent_config(MlaForm::kPlain, true), Dtype::kF32, {}, tolerance::kStepGradient);
}

TEST_CASE("The gradient of absorbed latent attention equals autograd") {
  check_gradients(latent_config(MlaForm::kAbsorbed, false), Dtype::kF32, {}, tolerance::kStepGradient);
  check_gradients(latent_config(MlaForm::kAbsorbed, true), Dtype::kF32, {}, tolerance::kStepGradient);
}

}  // namespace accord::trainer
