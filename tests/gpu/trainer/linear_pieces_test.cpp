// Operands that are made in pieces, against products of the whole ones: the same bits. And a gradient of a
// weight in BF16.
#include "base/philox.hpp"
#include "device_policy.hpp"
#include "kernels/formats/decode_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "support/catch.hpp"
#include "trainer/cuda_linear_backward.hpp"

using namespace accord;
using namespace accord::trainer;
using gpu_test::Gpu;
using gpu_test::must;
using recipe::BackwardMode;
namespace cuda = kernels::cuda;

namespace {

struct Shape {
  int64_t rows, outputs, inputs;
};
// More than 2^23 elements of the weight, of the output's gradient; pieces have 1024 columns.
constexpr Shape kShapes[] = {{64, 8192, 1056}, {8224, 1056, 64}};

struct Mode {
  WeightFormat format;
  BackwardMode backward;
  const char* name;
};
constexpr Mode kModes[] = {{WeightFormat::kMXFP8, BackwardMode::kQuantized, "MXFP8 quantized"},
                           {WeightFormat::kMXFP8, BackwardMode::kDequantized, "MXFP8 dequantized"},
                           {WeightFormat::kNVFP4, BackwardMode::kDequantized, "NVFP4 dequantized"}};

ModelConfig config_of(const Shape& shape) {
  ModelConfig c;
  c.architecture = Architecture::kLlama;
  c.vocab_size = 32;
  c.hidden_size = shape.inputs;
  c.num_layers = 1;
  c.num_heads = shape.inputs / 32;
  c.num_kv_heads = 1;
  c.head_dim = 32;
  c.intermediate_size = shape.outputs;
  c.layer_is_moe = {false};
  c.tie_word_embeddings = true;
  c.max_position_embeddings = 64;
  return c;
}

std::vector<BF16> normal(uint64_t seed, int64_t count) {
  PhiloxStream random(seed, 5);
  std::vector<BF16> out(static_cast<size_t>(count));
  for (BF16& x : out) x = to_bf16(static_cast<float>(random.next_normal()));
  return out;
}

// Whole operands of a mode.
struct Whole {
  Whole(const Gpu& gpu, const Shape& s, const Mode& mode, const model::LinearWeight& w, const float* master,
        const Memory& x_in, const Memory& dy_in)
      : rows_dy(gpu.allocate(dy_in.bytes())),
        columns_dy(gpu.allocate(dy_in.bytes())),
        weight(gpu.allocate(static_cast<size_t>(s.outputs * s.inputs) * sizeof(BF16))),
        x(gpu.allocate(x_in.bytes())) {
    const auto view = [](const Memory& m, int64_t rows, int64_t cols) {
      return matrix_view(m.as<BF16>(), rows, cols);
    };
    const auto count = static_cast<size_t>(std::max(s.rows * s.outputs, s.rows * s.inputs));
    const Memory codes = gpu.allocate(count), scales = gpu.allocate(count / 16),
                 outer = gpu.allocate(static_cast<size_t>(s.rows) * sizeof(float));
    const StreamHandle stream = gpu.handle();
    const auto e4m3 = formats::Element::kE4M3;
    if (mode.backward == BackwardMode::kQuantized) {
      formats::cuda::quantize_mxfp8_rows(view(dy_in, s.rows, s.outputs), codes.as<uint8_t>(),
                                         scales.as<uint8_t>(), e4m3, stream);
      formats::cuda::dequantize_mxfp8_rows(codes.as<uint8_t>(), scales.as<uint8_t>(), e4m3,
                                           view(rows_dy, s.rows, s.outputs), stream);
      cuda::mxfp8_columns(view(dy_in, s.rows, s.outputs), nullptr, 0, e4m3, columns_dy.as<BF16>(), stream);
      cuda::mxfp8_columns(matrix_view(const_cast<float*>(master), s.outputs, s.inputs), nullptr, 0, e4m3,
                          weight.as<BF16>(), stream);
      cuda::mxfp8_columns(view(x_in, s.rows, s.inputs), nullptr, 0, e4m3, x.as<BF16>(), stream);
      gpu.synchronize();
      return;
    }
    must(gpu.stream().copy(rows_dy.data(), dy_in.data(), dy_in.bytes()));
    must(gpu.stream().copy(columns_dy.data(), dy_in.data(), dy_in.bytes()));
    const auto* const bytes = static_cast<const uint8_t*>(w.data);
    const MatrixView weights = view(weight, s.outputs, s.inputs), inputs = view(x, s.rows, s.inputs);
    if (mode.format == WeightFormat::kMXFP8) {
      formats::cuda::dequantize_mxfp8_rows(bytes, w.scales, e4m3, weights, stream);
      formats::cuda::quantize_mxfp8_rows(view(x_in, s.rows, s.inputs), codes.as<uint8_t>(),
                                         scales.as<uint8_t>(), e4m3, stream);
      formats::cuda::dequantize_mxfp8_rows(codes.as<uint8_t>(), scales.as<uint8_t>(), e4m3, inputs, stream);
    } else {
      formats::cuda::dequantize_nvfp4(bytes, w.scales, w.outer, formats::Nvfp4Scope::kTensor, 448, weights,
                                      stream);
      formats::Nvfp4Options token;
      token.scope = formats::Nvfp4Scope::kToken;
      formats::cuda::quantize_nvfp4(view(x_in, s.rows, s.inputs), token,
                                    {codes.as<uint8_t>(), scales.as<uint8_t>(), outer.as<float>()}, nullptr,
                                    nullptr, stream);
      formats::cuda::dequantize_nvfp4(codes.as<uint8_t>(), scales.as<uint8_t>(), outer.as<float>(),
                                      token.scope, 448, inputs, stream);
    }
    gpu.synchronize();
  }

  Memory rows_dy, columns_dy, weight, x;
};

}  // namespace

TEST_CASE("a linear's backward in pieces has the bits of whole operands") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const Shape& s : kShapes) {
    for (const Mode& mode : kModes) {
      CAPTURE(mode.name);
      CAPTURE(s.rows);
      const gpu_test::DevicePolicy policy = gpu_test::random_policy(*gpu, config_of(s), mode.format, 3);
      const auto parameters = must(CudaParameters::create(must(ParameterTable::create(policy.config, {}, {})),
                                                          gpu->device(), gpu->stream()));
      const ModelParams params(policy.config, *parameters);
      const BackwardOptions backward{mode.backward, {}};
      const CudaContext context{policy.config, gpu->device(), gpu->stream(), *parameters, params, backward};
      const int64_t gate = params.layers[0].mlp[0].gate;
      std::vector<float> master;
      for (const BF16 value : normal(4, s.outputs * s.inputs)) master.push_back(to_float(value));
      must(parameters->write(StateKind::kMaster, gate, master));
      must(parameters->bind(policy.manifest, policy.arena.data(),
                            mode.backward != BackwardMode::kDequantized));
      const model::PolicyWeights weights = policy.weights();
      const model::LinearWeight& w = weights.layers[0].mlp[0].gate;
      const std::vector<BF16> dy = normal(1, s.rows * s.outputs);
      const Memory x = gpu->upload(normal(2, s.rows * s.inputs));
      const Whole whole(*gpu, s, mode, w, parameters->master(gate), x, gpu->upload(dy));

      const auto inputs = static_cast<size_t>(s.rows * s.inputs),
                 values = static_cast<size_t>(s.outputs * s.inputs);
      const Memory dx = gpu->allocate(inputs * sizeof(float)), dw = gpu->upload(std::vector<float>(values)),
                   narrow = gpu->allocate(values * sizeof(BF16));
      cuda::GemmBackward g;
      g.m = s.rows;
      g.n = g.ldb = s.inputs;
      g.l = g.lda = s.outputs;
      g.a = whole.rows_dy.as<BF16>();
      g.b = whole.weight.as<BF16>();
      g.c = {dx.data(), s.inputs, false, false};
      cuda::gemm_dgrad(g, gpu->handle());
      g.m = s.outputs;
      g.l = s.rows;
      g.a = whole.columns_dy.as<BF16>();
      g.b = whole.x.as<BF16>();
      g.c = {dw.data(), s.inputs, false, true};
      cuda::gemm_wgrad(g, gpu->handle());
      g.c = {narrow.data(), s.inputs, true, false};
      cuda::gemm_wgrad(g, gpu->handle());

      CudaLinearBackward linears(context);
      const Memory mine = gpu->allocate(inputs * sizeof(float)),
                   mine_narrow = gpu->allocate(values * sizeof(BF16));
      for (const bool bf16 : {false, true}) {
        const Memory consumed = gpu->upload(dy);
        CudaLinearBackward::Linear linear{gate, &w, consumed.as<BF16>()};
        if (bf16) linear.bf16_gradient = mine_narrow.as<BF16>();
        must(linears.run({linear}, x.as<BF16>(), s.rows, {mine.data()}));
        CHECK(gpu_test::different(gpu->download<float>(mine, inputs), gpu->download<float>(dx, inputs)) == 0);
      }
      std::vector<float> gradient(values);
      must(parameters->read(StateKind::kGradient, gate, gradient));
      CHECK(gpu_test::different(gradient, gpu->download<float>(dw, values)) == 0);
      CHECK(gpu_test::different(gpu->download<BF16>(mine_narrow, values),
                                gpu->download<BF16>(narrow, values)) == 0);
    }
  }
}
