// The backward of linear layers on the device against the CPU's in every mode, from the same bytes and BF16
// values: operands are equal bit for bit, so only the order of fp32 sums differs.
#include "trainer/linear_backward.hpp"

#include <cmath>

#include "base/philox.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "device_policy.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "model/cuda_model.hpp"
#include "support/catch.hpp"
#include "trainer/cuda_linear_backward.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

using namespace accord;
using namespace accord::trainer;
using gpu_test::Gpu;
using gpu_test::must;
using recipe::BackwardMode;

namespace {

// Sums of up to a few hundred terms in fp32. Another rounding of one operand alone would be above 1e-3.
constexpr double kTolerance = 5e-5;
constexpr int64_t kRows = 70;  // no multiple of a block

struct Mode {
  WeightFormat format;
  BackwardMode backward;
  bool e5m2;
  const char* name;
};
const Mode kModes[] = {
    {WeightFormat::kBF16, BackwardMode::kQuantized, false, "BF16"},
    {WeightFormat::kMXFP8, BackwardMode::kHighPrecision, false, "MXFP8 high_precision"},
    {WeightFormat::kMXFP8, BackwardMode::kDequantized, false, "MXFP8 dequantized"},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized, false, "MXFP8 quantized"},
    {WeightFormat::kMXFP8, BackwardMode::kQuantized, true, "MXFP8 quantized with E5M2"},
    {WeightFormat::kNVFP4, BackwardMode::kHighPrecision, false, "NVFP4 high_precision"},
    {WeightFormat::kNVFP4, BackwardMode::kDequantized, false, "NVFP4 dequantized"},
};

double relative(const std::vector<float>& a, std::span<const float> b) {
  double error = 0.0, norm = 0.0;
  for (size_t i = 0; i < b.size(); ++i) {
    const double d = static_cast<double>(a[i]) - b[i];
    error += d * d;
    norm += static_cast<double>(b[i]) * b[i];
  }
  return std::sqrt(error / norm);
}

// One policy with equal masters and arenas on both sides.
struct Sides {
  Sides(const Gpu& gpu, const Mode& mode)
      : policy(gpu_test::checkpoint_policy(gpu, "qwen3_moe", mode.format)),
        pool(2),
        host(must(Parameters::create(policy.config, {}))),
        device(must(CudaParameters::create(
            must(ParameterTable::create(policy.config, {}, must(Shards::create(policy.config, {})), 64)),
            gpu.device(), gpu.stream()))),
        params(policy.config, host),
        backward{mode.backward, std::vector<bool>(static_cast<size_t>(host.count()), mode.e5m2)},
        workspace(policy.config, host, pool, Dtype::kBF16, backward),
        context{policy.config, gpu.device(), gpu.stream(), *device, params, backward},
        host_weights(policy.host_weights()),
        device_weights(policy.weights()) {
    const auto source = must(checkpoint::HfCheckpoint::open(gpu_test::test_data() + "/hf/qwen3_moe"));
    for (int64_t i = 0; i < host.count(); ++i) {
      must(source.read_f32(host.spec(i).name, host.master(i)));
      must(device->write(StateKind::kMaster, i, host.master(i)));
    }
    must(device->bind(policy.manifest, policy.arena.data(), mode.backward != BackwardMode::kDequantized));
  }

  std::vector<float> gradient(int64_t parameter) const {
    std::vector<float> out(static_cast<size_t>(host.spec(parameter).numel()));
    must(device->read(StateKind::kGradient, parameter, out));
    return out;
  }

  gpu_test::DevicePolicy policy;
  ThreadPool pool;
  Parameters host;
  std::unique_ptr<CudaParameters> device;
  ModelParams params;
  BackwardOptions backward;
  Workspace workspace;
  CudaContext context;
  model::PolicyWeights host_weights, device_weights;
};

// BF16 values in both dtypes.
struct Values {
  Values(uint64_t seed, int64_t count) {
    PhiloxStream random(seed, 3);
    for (int64_t i = 0; i < count; ++i) {
      bits.push_back(to_bf16(static_cast<float>(random.next_normal())));
      floats.push_back(to_float(bits.back()));
    }
  }
  std::vector<BF16> bits;
  std::vector<float> floats;
};

}  // namespace

TEST_CASE("linears that share their input have the CPU's backward") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const Mode& mode : kModes) {
    CAPTURE(mode.name);
    Sides s(*gpu, mode);
    const LayerParams& p = s.params.layers[1];
    const model::LayerWeights& hw = s.host_weights.layers[1];
    const model::LayerWeights& dw = s.device_weights.layers[1];
    const Values x(1, kRows * hw.q.k), dq(2, kRows * hw.q.n), dk(3, kRows * hw.k.n), dv(4, kRows * hw.v.n);
    std::vector<float> dx(x.bits.size());
    LinearBackward cpu(s.workspace);
    CudaLinearBackward cuda(s.context);
    const Memory xd = gpu->upload(x.bits), dxd = gpu->allocate(dx.size() * sizeof(float));
    for (int twice = 0; twice < 2; ++twice) {  // gradients are added to, dx is replaced
      const Memory qd = gpu->upload(dq.bits), kd = gpu->upload(dk.bits),
                   vd = gpu->upload(dv.bits);  // consumed
      cpu.add(
          {{p.q, &hw.q, dq.floats.data()}, {p.k, &hw.k, dk.floats.data()}, {p.v, &hw.v, dv.floats.data()}},
          x.floats.data(), kRows, dx.data());
      must(cpu.run());
      must(cuda.run({{p.q, &dw.q, qd.as<BF16>()}, {p.k, &dw.k, kd.as<BF16>()}, {p.v, &dw.v, vd.as<BF16>()}},
                    xd.as<BF16>(), kRows, {dxd.data()}));
      gpu->synchronize();
    }
    CHECK(relative(gpu->download<float>(dxd, dx.size()), dx) < kTolerance);
    for (const int64_t parameter : {p.q, p.k, p.v}) {
      CHECK(relative(s.gradient(parameter), s.host.gradient(parameter)) < kTolerance);
    }
    // dx of one linear alone may be BF16: rounded once.
    cpu.add({{p.o, &hw.o, x.floats.data()}}, dq.floats.data(), kRows, (dx.resize(dq.bits.size()), dx.data()));
    must(cpu.run());
    const Memory narrow = gpu->allocate(dx.size() * sizeof(BF16));
    const Memory qd = gpu->upload(dq.bits);
    must(cuda.run({{p.o, &dw.o, xd.as<BF16>()}}, qd.as<BF16>(), kRows, {narrow.data(), /*bf16=*/true}));
    std::vector<float> widened;
    for (const BF16 value : gpu->download<BF16>(narrow, dx.size())) widened.push_back(to_float(value));
    CHECK(relative(widened, dx) < 0x1p-8);
    CHECK(relative(s.gradient(p.o), s.host.gradient(p.o)) < kTolerance);
  }
}

TEST_CASE("a linear whose outputs are no multiple of 8 has the CPU's backward") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  Sides s(*gpu, kModes[0]);
  const int64_t router = s.params.layers[1].router;
  model::LinearWeight hw = s.host_weights.layers[1].router, dw = s.device_weights.layers[1].router;
  hw.n = dw.n = 5;  // the first experts' rows
  const Values x(1, kRows * hw.k), dy(2, kRows * hw.n);
  std::vector<float> dx(x.bits.size());
  LinearBackward cpu(s.workspace);
  CudaLinearBackward cuda(s.context);
  const Memory xd = gpu->upload(x.bits), dyd = gpu->upload(dy.bits),
               dxd = gpu->allocate(dx.size() * sizeof(float));
  for (int twice = 0; twice < 2; ++twice) {
    cpu.add({{router, &hw, dy.floats.data()}}, x.floats.data(), kRows, dx.data());
    must(cpu.run());
    must(cuda.run({{router, &dw, dyd.as<BF16>()}}, xd.as<BF16>(), kRows, {dxd.data()}));
  }
  CHECK(relative(gpu->download<float>(dxd, dx.size()), dx) < kTolerance);
  CHECK(relative(s.gradient(router), s.host.gradient(router)) < kTolerance);
}

TEST_CASE("experts have the CPU's backward, also those with few rows or none") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const Mode& mode : kModes) {
    CAPTURE(mode.name);
    Sides s(*gpu, mode);
    const LayerParams& p = s.params.layers[1];
    const std::vector<model::MlpWeights>& hw = s.host_weights.layers[1].mlp;
    const auto model =
        must(model::CudaModel::create(s.policy.config, s.device_weights, gpu->device(), gpu->stream()));
    const auto experts = static_cast<int64_t>(hw.size());
    const std::vector<int32_t> offsets{0, 33, 33, 34, 66, 100, 103, 139, 140};
    REQUIRE(offsets.size() == hw.size() + 1);
    const int64_t rows = offsets.back(), in = hw[0].gate.k, out = hw[0].gate.n;
    std::vector<int32_t> tokens;
    tokens.reserve(static_cast<size_t>(rows));
    for (int32_t r = 0; r < rows; ++r) tokens.push_back((r * 31 + 7) % static_cast<int32_t>(kRows));
    const Values x(1, kRows * in), dgate(2, rows * out), dup(3, rows * out);
    std::vector<float> sorted_x, dx(static_cast<size_t>(rows * in));
    for (const int32_t token : tokens) {
      const auto row = x.floats.begin() + token * in;
      sorted_x.insert(sorted_x.end(), row, row + in);
    }
    LinearBackward cpu(s.workspace);
    for (int64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<size_t>(e);
      const int64_t begin = offsets[at];
      cpu.add({{p.mlp[at].gate, &hw[at].gate, dgate.floats.data() + begin * out},
               {p.mlp[at].up, &hw[at].up, dup.floats.data() + begin * out}},
              sorted_x.data() + begin * in, offsets[at + 1] - begin, dx.data() + begin * in);
    }
    must(cpu.run());

    const Memory xd = gpu->upload(x.bits), gd = gpu->upload(dgate.bits), ud = gpu->upload(dup.bits),
                 od = gpu->upload(offsets), td = gpu->upload(tokens),
                 dxd = gpu->allocate(dx.size() * sizeof(float));
    CudaLinearBackward::ExpertRows sorted;
    sorted.rows = rows;
    sorted.num_experts = static_cast<int32_t>(experts);
    sorted.offsets = od.as<int32_t>();
    sorted.sorted_tokens = td.as<int32_t>();
    sorted.tokens = kRows;
    sorted.groups.tile_rows = kernels::cuda::group_tile_rows(rows, experts);
    sorted.groups.max_tiles = kernels::cuda::group_tiles_bound(rows, experts, sorted.groups.tile_rows);
    const int32_t list_size = kernels::cuda::group_list_size(rows, experts, sorted.groups.tile_rows);
    const Memory tiles = gpu->allocate(static_cast<size_t>(list_size) * sizeof(kernels::cuda::GroupTile)),
                 num_tiles = gpu->allocate(sizeof(int32_t));
    kernels::cuda::build_group_tiles(sorted.offsets, sorted.num_experts, sorted.groups.tile_rows,
                                     tiles.as<kernels::cuda::GroupTile>(), num_tiles.as<int32_t>(),
                                     gpu->handle());
    sorted.groups.tiles = tiles.as<kernels::cuda::GroupTile>();
    sorted.groups.num_tiles = num_tiles.as<int32_t>();
    struct Projection {
      std::vector<int64_t> parameters;
      std::vector<model::LinearWeight> weights;
      std::vector<void*> gradients;
      Memory table;
    };
    const auto projection = [&](auto parameter, auto weight) {
      Projection out_of;
      for (size_t e = 0; e < hw.size(); ++e) {
        out_of.parameters.push_back(p.mlp[e].*parameter);
        out_of.weights.push_back(s.device_weights.layers[1].mlp[e].*weight);
        out_of.gradients.push_back(s.device->gradient(out_of.parameters.back()));
      }
      out_of.table = gpu->upload(out_of.gradients);
      return out_of;
    };
    const Projection gate = projection(&MlpParams::gate, &model::MlpWeights::gate);
    const Projection up = projection(&MlpParams::up, &model::MlpWeights::up);
    const auto weights = model->expert_weights(1);
    CudaLinearBackward cuda(s.context);
    must(cuda.run_experts(
        {{gate.parameters, gate.weights, weights.gate, gate.table.as<void*>(), gd.as<BF16>()},
         {up.parameters, up.weights, weights.up, up.table.as<void*>(), ud.as<BF16>()}},
        xd.as<BF16>(), sorted, {dxd.data()}));
    CHECK(relative(gpu->download<float>(dxd, dx.size()), dx) < kTolerance);
    for (int64_t e = 0; e < experts; ++e) {
      const auto at = static_cast<size_t>(e);
      CAPTURE(e);
      for (const int64_t parameter : {p.mlp[at].gate, p.mlp[at].up}) {
        const std::vector<float> mine = s.gradient(parameter);
        if (offsets[at] == offsets[at + 1]) {
          CHECK(mine == std::vector<float>(mine.size()));
        } else {
          CHECK(relative(mine, s.host.gradient(parameter)) < kTolerance);
        }
      }
    }
  }
}
