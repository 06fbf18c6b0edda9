// The backward modes: every linear of a layer against fp64 products of operands that are quantized and
// decoded here one element at a time, and whole steps.
#include <algorithm>
#include <bit>
#include <cmath>
#include <tuple>

#include "base/philox.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/linear/linear_backward.hpp"
#include "support/catch.hpp"
#include "trainer/linear_backward.hpp"
#include "unit/trainer/fixture.hpp"
#include "unit/trainer/tolerance.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace accord::trainer {
namespace {

using formats::Axis;
using formats::Element;
using recipe::BackwardMode;

using Values = std::vector<float>;

struct Mode {
  WeightFormat format;
  BackwardMode backward;
  bool e5m2 = false;
};

constexpr Mode kModes[] = {
    {WeightFormat::kMXFP8, BackwardMode::kHighPrecision},
    {WeightFormat::kMXFP8, BackwardMode::kDequantized},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized, true},
    {WeightFormat::kNVFP4, BackwardMode::kHighPrecision},
    {WeightFormat::kNVFP4, BackwardMode::kDequantized},
};

// One format everywhere, but v_proj stays BF16 beside its quantized siblings.
recipe::PrecisionPart precision_of(const Mode& mode) {
  recipe::PrecisionPart part = mxfp8_everywhere();
  part.configs[0].format = mode.format;
  part.configs[0].e5m2_gradients = mode.e5m2;
  part.backward = mode.backward;
  part.high_precision = {"*.v_proj.*"};
  return part;
}

MatrixView matrix(Values& x, int64_t rows, int64_t cols) { return {x.data(), Dtype::kF32, rows, cols, cols}; }

Values rounded(std::span<const float> x) {
  Values out;
  for (const float value : x) out.push_back(to_float(to_bf16(value)));
  return out;
}

// Decoded MXFP8 of x with the rows zero padded to a multiple of 32, and cut off again.
Values mxfp8(Values x, int64_t rows, int64_t cols, Axis axis, Element element) {
  const int64_t padded = (rows + 31) / 32 * 32;
  x.resize(static_cast<size_t>(padded * cols));
  std::vector<uint8_t> q(x.size()), scale(x.size() / 32);
  formats::quantize_mxfp8_reference(matrix(x, padded, cols), q.data(), scale.data(), axis, element);
  Values out;
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      const int64_t block = axis == Axis::kRow ? r * (cols / 32) + c / 32 : r / 32 * cols + c;
      out.push_back(formats::from_element(q[static_cast<size_t>(r * cols + c)], element) *
                    formats::from_e8m0(scale[static_cast<size_t>(block)]));
    }
  }
  return out;
}

Values nvfp4(Values x, int64_t rows, int64_t cols, formats::Nvfp4Scope scope, const float* shared_amax) {
  std::vector<uint8_t> q(x.size() / 2), scale(x.size() / 16);
  Values amax(static_cast<size_t>(rows));
  formats::Nvfp4Options options;
  options.scope = scope;
  formats::quantize_nvfp4_reference(matrix(x, rows, cols), options, {q.data(), scale.data(), amax.data()},
                                    shared_amax);
  Values out;
  for (int64_t i = 0; i < rows * cols; ++i) {
    const float a = amax[static_cast<size_t>(scope == formats::Nvfp4Scope::kToken ? i / cols : 0)];
    const float s = formats::from_e4m3(scale[static_cast<size_t>(i / 16)]);
    const auto code = static_cast<uint8_t>(q[static_cast<size_t>(i / 2)] >> (i % 2 == 0 ? 0 : 4) & 0xf);
    out.push_back(formats::from_e2m1(code) * ((s * a) * std::bit_cast<float>(0x39c30c31U)));
  }
  return out;
}

double distance(std::span<const float> mine, std::span<const double> reference) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < mine.size(); ++i) {
    error += (mine[i] - reference[i]) * (mine[i] - reference[i]);
    norm += reference[i] * reference[i];
  }
  return std::sqrt(error / norm);
}

Values random_values(PhiloxStream& random, int64_t rows, int64_t cols, double scale) {
  Values out;
  for (int64_t r = 0; r < rows; ++r) {
    const double row_scale = scale * std::exp(random.next_normal());
    for (int64_t c = 0; c < cols; ++c) out.push_back(static_cast<float>(random.next_normal() * row_scale));
  }
  return rounded(out);
}

// Random masters, their arena, and a workspace.
struct Policy {
  Policy(const ModelConfig& model, const Mode& mode_, uint64_t seed)
      : mode(mode_),
        config(model),
        parameters(value_of(Parameters::create(config, {}))),
        plan(value_of(precision::build_plan(config, precision_of(mode)))),
        manifest(value_of(weights::build_manifest(config, plan))),
        arena(value_of(weights::Arena::create(manifest.arena_bytes))) {
    PhiloxStream random(seed, 0);
    BackwardOptions backward{mode.backward, {}};
    for (int64_t i = 0; i < parameters.count(); ++i) {
      for (float& value : parameters.master(i)) value = static_cast<float>(random.next_normal() * 0.1);
      backward.e5m2_gradients.push_back(plan.rows[static_cast<size_t>(i)].e5m2_gradients);
    }
    const auto masters = [this](const std::string& name) -> StatusOr<weights::Master> {
      return weights::Master(std::span<const float>(parameters.master(parameters.index(name))));
    };
    value_of(weights::export_weights(manifest, plan, masters, *arena, pool));
    bound = value_of(model::bind_weights(config, manifest, arena->data()));
    workspace = std::make_unique<Workspace>(config, parameters, pool, Dtype::kBF16, backward);
  }

  Mode mode;
  ModelConfig config;
  ThreadPool pool{2};
  Parameters parameters;
  precision::PrecisionPlan plan;
  WeightManifest manifest;
  std::unique_ptr<weights::Arena> arena;
  model::PolicyWeights bound;
  std::unique_ptr<Workspace> workspace;
};

// A group of linears over `rows` tokens, with what the products must be.
struct Case {
  struct Part {
    int64_t parameter;
    const model::LinearWeight* weight;
    int64_t sibling = -1;  // shares the outer scale
    Values dy;
    std::vector<double> dw;
  };
  std::vector<Part> parts;
  int64_t rows;
  Values x, dx;
  std::vector<double> expected_dx;
};

Values decoded_weight(const Policy& policy, const Case::Part& part) {
  const Values master = rounded(policy.parameters.master(part.parameter));
  const int64_t n = part.weight->n, k = part.weight->k;
  if (part.weight->format == WeightFormat::kMXFP8)
    return rounded(mxfp8(master, n, k, Axis::kRow, Element::kE4M3));
  float amax = 0.0F;
  for (const int64_t p : {part.parameter, part.sibling < 0 ? part.parameter : part.sibling}) {
    for (const float value : rounded(policy.parameters.master(p))) amax = std::max(amax, std::fabs(value));
  }
  return rounded(nvfp4(master, n, k, formats::Nvfp4Scope::kTensor, &amax));
}

void expect(const Policy& policy, Case& c) {
  const int64_t k = c.parts[0].weight->k;
  c.expected_dx.assign(static_cast<size_t>(c.rows * k), 0.0);
  for (Case::Part& part : c.parts) {
    const int64_t n = part.weight->n;
    Values dgrad_dy = part.dy, wgrad_dy = part.dy, x = c.x, w;
    const bool bf16 = part.weight->format == WeightFormat::kBF16;
    if (bf16 || policy.mode.backward == BackwardMode::kHighPrecision) {
      w = rounded(policy.parameters.master(part.parameter));
    } else if (policy.mode.backward == BackwardMode::kDequantized) {
      w = decoded_weight(policy, part);
      x = rounded(part.weight->format == WeightFormat::kMXFP8
                      ? mxfp8(x, c.rows, k, Axis::kRow, Element::kE4M3)
                      : nvfp4(x, c.rows, k, formats::Nvfp4Scope::kToken, nullptr));
    } else {
      const Element element = policy.mode.e5m2 ? Element::kE5M2 : Element::kE4M3;
      w = mxfp8(rounded(policy.parameters.master(part.parameter)), n, k, Axis::kCol, Element::kE4M3);
      dgrad_dy = mxfp8(part.dy, c.rows, n, Axis::kRow, element);
      wgrad_dy = mxfp8(part.dy, c.rows, n, Axis::kCol, element);
      x = mxfp8(x, c.rows, k, Axis::kCol, Element::kE4M3);
    }
    part.dw.assign(static_cast<size_t>(n * k), 0.0);
    for (int64_t r = 0; r < c.rows; ++r) {
      for (int64_t o = 0; o < n; ++o) {
        const double for_dx = dgrad_dy[static_cast<size_t>(r * n + o)];
        const double for_dw = wgrad_dy[static_cast<size_t>(r * n + o)];
        for (int64_t i = 0; i < k; ++i) {
          c.expected_dx[static_cast<size_t>(r * k + i)] += for_dx * w[static_cast<size_t>(o * k + i)];
          part.dw[static_cast<size_t>(o * k + i)] += for_dw * x[static_cast<size_t>(r * k + i)];
        }
      }
    }
  }
}

// The groups of one layer as its backward makes them.
std::vector<Case> cases_of(const Policy& policy, size_t layer, std::span<const int64_t> expert_rows) {
  const LayerParams& p = policy.workspace->layers[layer];
  const model::LayerWeights& w = policy.bound.layers[layer];
  std::vector<Case> cases;
  const auto add = [&](int64_t rows, std::vector<Case::Part> parts) {
    cases.push_back({std::move(parts), rows, {}, {}, {}});
  };
  add(45, {{p.q, &w.q, -1, {}, {}}, {p.k, &w.k, -1, {}, {}}, {p.v, &w.v, -1, {}, {}}});
  add(45, {{p.o, &w.o, -1, {}, {}}});
  if (p.router >= 0) add(45, {{p.router, &w.router, -1, {}, {}}});
  for (size_t e = 0; e < p.mlp.size(); ++e) {
    const MlpParams& mlp = p.mlp[e];
    const int64_t rows = p.router < 0 ? 150 : expert_rows[e];
    add(rows, {{mlp.gate, &w.mlp[e].gate, mlp.up, {}, {}}, {mlp.up, &w.mlp[e].up, mlp.gate, {}, {}}});
    add(rows, {{mlp.down, &w.mlp[e].down, -1, {}, {}}});
  }
  return cases;
}

ModelConfig config_of(const std::string& model) {
  return value_of(checkpoint::HfCheckpoint::open(std::string(ACCORD_TEST_DATA) + "/hf/" + model)).config();
}

void run_group(LinearBackward& linears, Case& c) {
  if (c.parts.size() == 1) {
    linears.add({{c.parts[0].parameter, c.parts[0].weight, c.parts[0].dy.data()}}, c.x.data(), c.rows,
                c.dx.data());
    return;
  }
  const auto linear = [&](size_t i) {
    return LinearBackward::Linear{c.parts[i].parameter, c.parts[i].weight, c.parts[i].dy.data()};
  };
  if (c.parts.size() == 2) {
    linears.add({linear(0), linear(1)}, c.x.data(), c.rows, c.dx.data());
  } else {
    linears.add({linear(0), linear(1), linear(2)}, c.x.data(), c.rows, c.dx.data());
  }
}

void check_linears(const std::string& model, const Mode& mode) {
  CAPTURE(model, static_cast<int>(mode.format), static_cast<int>(mode.backward), mode.e5m2);
  Policy policy(config_of(model), mode, 7);
  PhiloxStream random(7, 1);
  const std::vector<int64_t> expert_rows{5, 0, 1, 33, 32, 64, 3, 161};
  LinearBackward linears(*policy.workspace);
  size_t quantized = 0;
  for (size_t layer = 0; layer < policy.workspace->layers.size(); ++layer) {
    std::vector<Case> cases = cases_of(policy, layer, expert_rows);
    for (Case& c : cases) {
      c.x = random_values(random, c.rows, c.parts[0].weight->k, 1.0);
      c.dx.assign(c.x.size(), NAN);
      for (Case::Part& part : c.parts) part.dy = random_values(random, c.rows, part.weight->n, 1e-6);
      run_group(linears, c);
    }
    REQUIRE(linears.run().ok());
    for (Case& c : cases) {
      expect(policy, c);
      for (const Case::Part& part : c.parts) {
        const std::string& name = policy.parameters.specs()[static_cast<size_t>(part.parameter)].name;
        CAPTURE(name, c.rows);
        const auto gradient = policy.parameters.gradient(part.parameter);
        if (c.rows == 0) {
          CHECK(std::all_of(gradient.begin(), gradient.end(), [](float g) { return g == 0.0F; }));
          continue;
        }
        CHECK(distance(gradient, part.dw) <= tolerance::kOpBf16);
        const bool low = part.weight->format != WeightFormat::kBF16;
        CHECK(low == (name.find(".v_proj.") == std::string::npos &&
                      part.parameter != policy.workspace->layers[layer].router));
        quantized += low ? 1 : 0;
      }
      if (c.rows > 0) CHECK(distance(c.dx, c.expected_dx) <= tolerance::kOpBf16);
    }
  }
  CHECK(quantized >= 18);
}

}  // namespace

TEST_CASE("every linear of a mixture of experts multiplies the operands of its backward mode") {
  for (const Mode& mode : kModes) check_linears("qwen3_moe", mode);
}

TEST_CASE("every linear of a dense model multiplies the operands of its backward mode") {
  for (const Mode& mode : kModes) check_linears("llama_tied", mode);
}

TEST_CASE("zero rows up to a multiple of 32 change no bit of a column-wise copy") {
  PhiloxStream random(3, 1);
  const int64_t cols = 48;
  for (const int64_t rows : {1, 31, 32, 33, 95, 97}) {
    for (const Element element : {Element::kE4M3, Element::kE5M2}) {
      CAPTURE(rows);
      Values x = random_values(random, rows, cols, 1.0);
      Values padded = x;
      padded.resize(static_cast<size_t>((rows + 31) / 32 * 32 * cols));
      Values scratch(static_cast<size_t>(kernels::backward_operand_scratch(cols)), NAN);
      Values out(x.size(), NAN), out_padded(padded.size(), NAN);
      kernels::mxfp8_operand(x.data(), rows, cols, Axis::kCol, element, out.data(), scratch.data());
      kernels::mxfp8_operand(padded.data(), (rows + 31) / 32 * 32, cols, Axis::kCol, element,
                             out_padded.data(), scratch.data());
      CHECK(std::equal(out.begin(), out.end(), out_padded.begin()));
      CHECK(std::all_of(out_padded.begin() + static_cast<int64_t>(out.size()), out_padded.end(),
                        [](float value) { return value == 0.0F; }));
      CHECK(out == mxfp8(x, rows, cols, Axis::kCol, element));
      kernels::mxfp8_operand(x.data(), rows, cols, Axis::kCol, element, x.data(), scratch.data());
      CHECK(x == out);
    }
  }
}

TEST_CASE("a gradient that is not finite stays so in its copies") {
  const int64_t cols = 32;
  Values scratch(static_cast<size_t>(kernels::backward_operand_scratch(cols)), 0.0F);
  for (const float bad : {std::nanf(""), INFINITY}) {
    for (const Axis axis : {Axis::kRow, Axis::kCol}) {
      for (const Element element : {Element::kE4M3, Element::kE5M2}) {
        Values x(static_cast<size_t>(3 * cols), 1.0F);
        x[40] = bad;
        kernels::mxfp8_operand(x.data(), 3, cols, axis, element, x.data(), scratch.data());
        CHECK_FALSE(std::isfinite(x[40]));
      }
    }
  }
}

TEST_CASE("whole steps in every backward mode") {
  for (const char* model : {"qwen3_moe", "llama_tied"}) {
    std::vector<SftSample> samples;
    for (const auto& s : recorded_samples("qwen3_moe", 2)) samples.push_back({s.tokens, s.prompt_length});
    const auto gradients_of = [&](const TrainerOptions& options, const recipe::PrecisionPart& precision,
                                  int threads) {
      Fixture f(model, options, precision, threads);
      REQUIRE(f.trainer->sft_step(samples, 1).ok());
      std::vector<Values> out;
      for (const ParamSpec& spec : f.trainer->parameters()) {
        const auto g = f.trainer->gradient(spec.name);
        out.emplace_back(g.begin(), g.end());
      }
      return out;
    };
    TrainerOptions options;
    options.optimizer.clip_grad = 0.0;
    options.compute_dtype = Dtype::kF32;
    const std::vector<Values> exact = gradients_of(options, {}, 2);
    options.compute_dtype = Dtype::kBF16;
    std::vector<Values> previous;
    for (const Mode& mode : kModes) {
      CAPTURE(model, static_cast<int>(mode.format), static_cast<int>(mode.backward), mode.e5m2);
      const recipe::PrecisionPart precision = precision_of(mode);
      const precision::PrecisionPlan plan = value_of(precision::build_plan(config_of(model), precision));
      options.backward = mode.backward;
      options.e5m2_gradients.clear();
      for (const precision::PlanRow& row : plan.rows) {
        if (row.e5m2_gradients) options.e5m2_gradients.push_back(row.name);
      }
      options.activation_bytes = int64_t{1} << 30;
      const std::vector<Values> gradients = gradients_of(options, precision, 2);
      double error = 0.0, norm = 0.0;
      for (size_t i = 0; i < gradients.size(); ++i) {
        for (size_t j = 0; j < gradients[i].size(); ++j) {
          const double d = static_cast<double>(gradients[i][j]) - exact[i][j];
          error += d * d;
          norm += static_cast<double>(exact[i][j]) * exact[i][j];
        }
        // The head is before every quantized linear; everything else depends on the mode.
        const std::string& name = plan.rows[i].name;
        if (!previous.empty() && mode.backward != BackwardMode::kHighPrecision &&
            plan.rows[i].format != WeightFormat::kBF16 && gradients[i] != Values(gradients[i].size())) {
          CAPTURE(name);
          CHECK(gradients[i] != previous[i]);
        }
      }
      const double relative = std::sqrt(error / norm);
      CAPTURE(relative);
      CHECK(relative <
            (mode.format == WeightFormat::kMXFP8 ? tolerance::kMxfp8Gradient : tolerance::kNvfp4Gradient));
      options.activation_bytes = 0;
      CHECK(gradients_of(options, precision, 3) == gradients);
      previous = gradients;
    }
  }
}

TEST_CASE("the quantized backward refuses weights that it cannot copy by columns") {
  WeightManifest manifest;
  WeightEntry entry;
  entry.name = "model.layers.0.self_attn.q_proj.weight";
  entry.format = WeightFormat::kMXFP8;
  entry.shape = {48, 64};
  manifest.entries.push_back(entry);
  CHECK(check_backward(manifest, BackwardMode::kDequantized).ok());
  CHECK(check_backward(manifest, BackwardMode::kHighPrecision).ok());
  const auto refused = [&] {
    return std::string(message_of(check_backward(manifest, BackwardMode::kQuantized)));
  };
  CHECK(refused().find("q_proj.weight: 48 rows are no multiple of 32") != std::string::npos);
  manifest.entries[0].shape = {64, 64};
  CHECK(check_backward(manifest, BackwardMode::kQuantized).ok());
  manifest.entries[0].format = WeightFormat::kNVFP4;
  CHECK(refused().find("q_proj.weight: precision.backward: quantized is for MXFP8") != std::string::npos);
}

}  // namespace accord::trainer
