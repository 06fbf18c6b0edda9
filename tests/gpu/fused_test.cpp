// Launches that do the work of several against those several, bit for bit: sums with norms, norms and
// quantizers with the operand of products, norms of heads with their way into the cache, products of one A.
#include <algorithm>
#include <cmath>

#include "exact_reference.hpp"
#include "gpu.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/rope/rope_cuda.hpp"
#include "kernels/swiglu/swiglu_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace gpu_test;
namespace cuda = kernels::cuda;

namespace {

constexpr float kEps = 1e-6F;

struct Shape {
  int64_t rows, cols;
};

// Of few rows and of many, of one unit a thread and of several.
std::vector<Shape> shapes(const Gpu& gpu) {
  std::vector<Shape> all = {{1, 32}, {128, 576}, {7, 2048}, {3, 8192}, {2, 14336}, {300, 96}};
  if (!gpu.emulated()) {
    all.insert(all.end(), {{128, 2048}, {5000, 576}, {2100, 4096}, {9000, 128}, {700, 6144}});
  }
  return all;
}

// Random rows, a few of which are of wild range, of zeros, or hold what is not finite.
std::vector<BF16> values(int64_t rows, int64_t cols, uint64_t seed) {
  std::vector<float> x = make_data(Data::kNormal, rows, cols, seed);
  const auto row = [&](int64_t r) { return x.begin() + r * cols; };
  for (int64_t r = 0; r < rows; ++r) {
    if (r % 7 == 2) std::transform(row(r), row(r + 1), row(r), [](float v) { return v * v * v * 1e6F; });
    if (r % 11 == 5) std::fill(row(r), row(r + 1), 0.0F);
    if (r % 13 == 6) *(row(r) + r % cols) = r % 2 == 0 ? INFINITY : NAN;
  }
  return to_bf16(x);
}

class Rows {
 public:
  Rows(const Gpu& gpu, const Shape& s)
      : gpu_(gpu),
        shape_(s),
        x_(gpu.upload(values(s.rows, s.cols, 1))),
        delta_(gpu.upload(values(s.rows, s.cols, 2))),
        weight_(gpu.upload(to_bf16(make_data(Data::kNormal, 1, s.cols, 3)))) {}

  size_t count() const { return static_cast<size_t>(shape_.rows * shape_.cols); }
  MatrixView view(const Memory& m) const {
    return {m.data(), Dtype::kBF16, shape_.rows, shape_.cols, shape_.cols};
  }
  Memory room() const { return gpu_.allocate(count() * sizeof(BF16)); }
  std::vector<BF16> read(const Memory& m) const { return gpu_.download<BF16>(m, count()); }

  struct Quantized {
    Memory q, scale, amax, operand;
  };
  Quantized quantized() const {
    return {gpu_.allocate(count()), gpu_.allocate(count() / 16),
            gpu_.allocate(static_cast<size_t>(shape_.rows) * sizeof(float)), room()};
  }
  static formats::Nvfp4Output nvfp4(const Quantized& to) {
    return {to.q.as<uint8_t>(), to.scale.as<uint8_t>(), to.amax.as<float>()};
  }

  // What was stored, in a launch of its own, against what came with it.
  int64_t operand_differences(const Quantized& from, bool mxfp8) const {
    const Memory want = room();
    if (mxfp8) {
      cuda::expand_mxfp8(from.q.as<uint8_t>(), from.scale.as<uint8_t>(), shape_.rows, shape_.cols, false,
                         false, want.as<BF16>(), shape_.cols, gpu_.handle());
    } else {
      cuda::expand_nvfp4(from.q.as<uint8_t>(), from.scale.as<uint8_t>(), nullptr, false, 448, shape_.rows,
                         shape_.cols, want.as<BF16>(), shape_.cols, gpu_.handle());
    }
    return different(read(from.operand), read(want));
  }
  // The bytes that a quantizer stores of y against those of `got`, and the operand.
  int64_t mxfp8_differences(const Memory& y, const Quantized& got) const {
    const Quantized want = quantized();
    formats::cuda::quantize_mxfp8_rows(view(y), want.q.as<uint8_t>(), want.scale.as<uint8_t>(),
                                       formats::Element::kE4M3, gpu_.handle());
    return different(gpu_.download<uint8_t>(got.q, count()), gpu_.download<uint8_t>(want.q, count())) +
           different(gpu_.download<uint8_t>(got.scale, count() / 32),
                     gpu_.download<uint8_t>(want.scale, count() / 32)) +
           operand_differences(got, true);
  }
  int64_t nvfp4_differences(const Memory& y, const formats::Nvfp4Options& options,
                            const Quantized& got) const {
    const Quantized want = quantized();
    formats::cuda::quantize_nvfp4(view(y), options, nvfp4(want), nullptr, nullptr, gpu_.handle());
    const auto rows = static_cast<size_t>(shape_.rows);
    return different(gpu_.download<uint8_t>(got.q, count() / 2),
                     gpu_.download<uint8_t>(want.q, count() / 2)) +
           different(gpu_.download<uint8_t>(got.scale, count() / 16),
                     gpu_.download<uint8_t>(want.scale, count() / 16)) +
           different(gpu_.download<float>(got.amax, rows), gpu_.download<float>(want.amax, rows)) +
           operand_differences(got, false);
  }

  const Gpu& gpu_;
  Shape shape_;
  Memory x_, delta_, weight_;
};

std::vector<formats::Nvfp4Options> nvfp4_options() {
  return {{formats::Nvfp4Scope::kToken, formats::Nvfp4Layout::k1x16, FourOverSix::kNone, 448},
          {formats::Nvfp4Scope::kToken, formats::Nvfp4Layout::k1x16, FourOverSix::kMse, 256}};
}

}  // namespace

TEST_CASE("fused: a residual sum with its norm has the bits of two launches") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const Shape& shape : shapes(*gpu)) {
    CAPTURE(shape.rows);
    CAPTURE(shape.cols);
    const Rows r(*gpu, shape);
    const auto inverses = static_cast<size_t>(shape.rows);
    const Memory sum = r.room(), y = r.room(), inv = gpu->allocate(inverses * sizeof(float));
    cuda::add_rows(r.view(r.x_), r.view(r.delta_), r.view(sum), gpu->handle());
    cuda::rms_norm(r.view(sum), r.weight_.as<BF16>(), kEps, r.view(y), inv.as<float>(), gpu->handle());
    const std::vector<BF16> want_sum = r.read(sum);
    const std::vector<float> want_inv = gpu->download<float>(inv, inverses);

    const Memory got_sum = r.room(), got = r.room(), got_inv = gpu->allocate(inverses * sizeof(float));
    const auto check = [&](const Memory& its_sum) {
      CHECK(different(r.read(its_sum), want_sum) == 0);
      CHECK(different(gpu->download<float>(got_inv, inverses), want_inv) == 0);
    };
    cuda::rms_norm(r.view(r.x_), r.weight_.as<BF16>(), kEps, r.view(got), got_inv.as<float>(), gpu->handle(),
                   {r.view(r.delta_), r.view(got_sum)});
    check(got_sum);
    CHECK(different(r.read(got), r.read(y)) == 0);
    const Rows::Quantized to = r.quantized();
    const MatrixView none{nullptr, Dtype::kBF16, shape.rows, shape.cols, shape.cols};
    cuda::rms_norm_mxfp8(r.view(r.x_), r.weight_.as<BF16>(), kEps, none, got_inv.as<float>(),
                         to.q.as<uint8_t>(), to.scale.as<uint8_t>(), gpu->handle(), to.operand.as<BF16>(),
                         {r.view(r.delta_), r.view(got_sum)});
    check(got_sum);
    CHECK(r.mxfp8_differences(y, to) == 0);
    for (const formats::Nvfp4Options& options : nvfp4_options()) {
      cuda::rms_norm_nvfp4(r.view(r.x_), r.weight_.as<BF16>(), kEps, r.view(got), got_inv.as<float>(),
                           Rows::nvfp4(to), options.four_over_six, options.range, gpu->handle(),
                           to.operand.as<BF16>(), {r.view(r.delta_), r.view(got_sum)});
      check(got_sum);
      CHECK(different(r.read(got), r.read(y)) == 0);
      CHECK(r.nvfp4_differences(y, options, to) == 0);
    }
    // Into x itself.
    cuda::rms_norm(r.view(r.x_), r.weight_.as<BF16>(), kEps, r.view(got), got_inv.as<float>(), gpu->handle(),
                   {r.view(r.delta_), r.view(r.x_)});
    check(r.x_);
    CHECK(different(r.read(got), r.read(y)) == 0);
  }
}

TEST_CASE("fused: quantizers write the operand of products that expanding gives") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const Shape& shape : shapes(*gpu)) {
    CAPTURE(shape.rows);
    CAPTURE(shape.cols);
    const Rows r(*gpu, shape);
    const MatrixView none{nullptr, Dtype::kBF16, shape.rows, shape.cols, shape.cols};
    const Memory normed = r.room(), act = r.room();
    cuda::rms_norm(r.view(r.x_), r.weight_.as<BF16>(), kEps, r.view(normed), nullptr, gpu->handle());
    cuda::swiglu(r.view(r.x_), r.view(r.delta_), r.view(act), gpu->handle());
    const Rows::Quantized to = r.quantized();
    auto* const q = to.q.as<uint8_t>();
    auto* const scale = to.scale.as<uint8_t>();
    auto* const operand = to.operand.as<BF16>();
    formats::cuda::quantize_mxfp8_rows(r.view(r.x_), q, scale, formats::Element::kE4M3, gpu->handle(),
                                       operand);
    CHECK(r.mxfp8_differences(r.x_, to) == 0);
    cuda::rms_norm_mxfp8(r.view(r.x_), r.weight_.as<BF16>(), kEps, none, nullptr, q, scale, gpu->handle(),
                         operand);
    CHECK(r.mxfp8_differences(normed, to) == 0);
    cuda::swiglu_mxfp8(r.view(r.x_), r.view(r.delta_), none, q, scale, gpu->handle(), operand);
    CHECK(r.mxfp8_differences(act, to) == 0);
    for (const formats::Nvfp4Options& options : nvfp4_options()) {
      REQUIRE(formats::cuda::fuses_operand(r.view(r.x_)));
      formats::cuda::quantize_nvfp4(r.view(r.x_), options, Rows::nvfp4(to), nullptr, nullptr, gpu->handle(),
                                    operand);
      CHECK(r.nvfp4_differences(r.x_, options, to) == 0);
      cuda::rms_norm_nvfp4(r.view(r.x_), r.weight_.as<BF16>(), kEps, none, nullptr, Rows::nvfp4(to),
                           options.four_over_six, options.range, gpu->handle(), operand);
      CHECK(r.nvfp4_differences(normed, options, to) == 0);
      cuda::swiglu_nvfp4(r.view(r.x_), r.view(r.delta_), none, Rows::nvfp4(to), options.four_over_six,
                         options.range, gpu->handle(), operand);
      CHECK(r.nvfp4_differences(act, options, to) == 0);
    }
  }
}

TEST_CASE("fused: norms of heads on their way into the cache have the bits of three launches") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  struct Case {
    int64_t rows, dim, q_heads, kv_heads;
  };
  for (const Case& c : {Case{1, 128, 4, 1}, {37, 64, 9, 3}, {130, 128, 32, 4}, {5, 32, 3, 3}}) {
    CAPTURE(c.rows);
    CAPTURE(c.dim);
    constexpr int64_t kPositions = 600;
    const int64_t q_width = c.q_heads * c.dim;
    const int64_t kv_width = c.kv_heads * c.dim;
    const int64_t cache_rows = c.rows + 3;
    const Memory q = gpu->upload(values(c.rows, q_width, 1));
    const Memory k = gpu->upload(values(c.rows, kv_width, 2));
    const Memory v = gpu->upload(values(c.rows, kv_width, 3));
    const Memory weights[] = {gpu->upload(to_bf16(make_data(Data::kNormal, 1, c.dim, 4))),
                              gpu->upload(to_bf16(make_data(Data::kNormal, 1, c.dim, 5)))};
    const Memory cos = gpu->upload(make_data(Data::kNormal, kPositions, c.dim / 2, 6));
    const Memory sin = gpu->upload(make_data(Data::kNormal, kPositions, c.dim / 2, 7));
    std::vector<int32_t> positions, to_rows;
    for (int64_t t = 0; t < c.rows; ++t) {
      positions.push_back(static_cast<int32_t>(t * 37 % kPositions));
      to_rows.push_back(static_cast<int32_t>(c.rows + 2 - t));
    }
    const Memory at = gpu->upload(positions);
    const Memory to = gpu->upload(to_rows);
    const auto matrix = [](const Memory& m, int64_t rows, int64_t cols) {
      return MatrixView{m.data(), Dtype::kBF16, rows, cols, cols};
    };
    struct Result {
      std::vector<BF16> q, k, v;
      std::vector<float> inv_q, inv_k;
    };
    REQUIRE(cuda::normalizes_heads(c.dim));
    const cuda::RopeTableView table{cos.as<float>(), sin.as<float>(), c.dim / 2};
    const auto run = [&](bool fused) {
      const auto count = [](int64_t n) { return static_cast<size_t>(n); };
      const Memory q_out = gpu->allocate(q.bytes());
      const Memory k_normed = gpu->allocate(k.bytes());
      const Memory k_cache = gpu->allocate(count(cache_rows * kv_width) * 2);
      const Memory v_cache = gpu->allocate(count(cache_rows * kv_width) * 2);
      const Memory inv_q = gpu->allocate(count(c.rows * c.q_heads) * sizeof(float));
      const Memory inv_k = gpu->allocate(count(c.rows * c.kv_heads) * sizeof(float));
      cuda::RopeToCache args{matrix(q, c.rows, q_width),
                             matrix(k, c.rows, kv_width),
                             matrix(v, c.rows, kv_width),
                             matrix(q_out, c.rows, q_width),
                             matrix(k_cache, cache_rows, kv_width),
                             matrix(v_cache, cache_rows, kv_width),
                             at.as<int32_t>(),
                             to.as<int32_t>(),
                             {}};
      if (fused) {
        args.norms = {weights[0].as<BF16>(), weights[1].as<BF16>(), kEps, inv_q.as<float>(),
                      inv_k.as<float>()};
      } else {
        const auto by_head = [&](const Memory& m, int64_t heads) { return matrix(m, c.rows * heads, c.dim); };
        cuda::rms_norm(by_head(q, c.q_heads), weights[0].as<BF16>(), kEps, by_head(q_out, c.q_heads),
                       inv_q.as<float>(), gpu->handle());
        cuda::rms_norm(by_head(k, c.kv_heads), weights[1].as<BF16>(), kEps, by_head(k_normed, c.kv_heads),
                       inv_k.as<float>(), gpu->handle());
        args.q = args.q_out;
        args.k.data = k_normed.data();
      }
      cuda::rope_to_cache(args, table, gpu->handle());
      return Result{gpu->download<BF16>(q_out, count(c.rows * q_width)),
                    gpu->download<BF16>(k_cache, count(cache_rows * kv_width)),
                    gpu->download<BF16>(v_cache, count(cache_rows * kv_width)),
                    gpu->download<float>(inv_q, count(c.rows * c.q_heads)),
                    gpu->download<float>(inv_k, count(c.rows * c.kv_heads))};
    };
    const Result got = run(true);
    const Result want = run(false);
    CHECK(different(got.q, want.q) == 0);
    CHECK(different(got.k, want.k) == 0);
    CHECK(different(got.v, want.v) == 0);
    CHECK(different(got.inv_q, want.inv_q) == 0);
    CHECK(different(got.inv_k, want.inv_k) == 0);
  }
}

TEST_CASE("fused: products of one A side by side have the bits of each alone") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  struct Case {
    int64_t m, k;
    std::vector<int64_t> n;
  };
  std::vector<Case> cases = {{3, 160, {48, 16, 40}}};
  if (!gpu->emulated()) {
    cases.insert(cases.end(), {{128, 576, {576, 192, 192}},
                               {8, 576, {576, 192, 192}},
                               {100, 576, {1536, 1536}},
                               {128, 2048, {4096, 512, 512}},
                               {65, 96, {24, 1000, 8}},
                               {400, 576, {576, 192, 192}}});
  }
  for (const WeightFormat format : kFormats) {
    for (const Case& c : cases) {
      CAPTURE(c.m);
      CAPTURE(c.k);
      const TestActivations a = make_activations(format, make_data(Data::kNormal, c.m, c.k, 1), c.m, c.k);
      const Memory values = gpu->upload(a.decoded);
      const Memory outer = gpu->upload(a.outer);
      std::vector<DeviceWeight> weights;
      std::vector<cuda::GemmForward> products;
      std::vector<Memory> alone, side_by_side;
      for (const int64_t n : c.n) {
        const auto seed = static_cast<uint64_t>(weights.size() + 2);
        weights.push_back(upload(*gpu, make_weight(format, make_data(Data::kNormal, n, c.k, seed), n, c.k)));
        alone.push_back(gpu->allocate(static_cast<size_t>(c.m * n) * sizeof(BF16)));
        side_by_side.push_back(gpu->allocate(static_cast<size_t>(c.m * n) * sizeof(BF16)));
        cuda::GemmForward g;
        g.format = format;
        g.m = c.m;
        g.n = n;
        g.k = c.k;
        g.a = values.as<BF16>();
        g.lda = c.k;
        g.a_outer = outer.as<float>();
        g.b = weights.back().weight();
        g.c = {alone.back().data(), n, true, false};
        cuda::gemm_forward(g, gpu->handle());
        g.c.data = side_by_side.back().data();
        products.push_back(g);
      }
      cuda::gemm_forward_together(products, gpu->handle());
      for (size_t i = 0; i < c.n.size(); ++i) {
        const auto count = static_cast<size_t>(c.m * c.n[i]);
        CHECK(different(gpu->download<BF16>(side_by_side[i], count), gpu->download<BF16>(alone[i], count)) ==
              0);
      }
    }
  }
}
