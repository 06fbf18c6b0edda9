// Row-local kernels on the device against the CPU's, bit for bit.
#include <algorithm>
#include <cmath>
#include <cstdio>
#include <thread>
#include <tuple>

#include "gpu.hpp"
#include "hard_values.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/embedding/embedding.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/logprob/logprob.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "kernels/moe/moe.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/rope/rope.hpp"
#include "kernels/rope/rope_cuda.hpp"
#include "kernels/router/router.hpp"
#include "kernels/router/router_cuda.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "kernels/swiglu/swiglu_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::kernels;
using gpu_test::different;
using gpu_test::Gpu;

namespace {

class Random {
 public:
  explicit Random(uint64_t seed) : state_(seed * 0x9e3779b97f4a7c15u + 1) {}
  uint64_t next() {
    state_ ^= state_ << 13;
    state_ ^= state_ >> 7;
    state_ ^= state_ << 17;
    return state_;
  }
  // About N(0,1).
  float normal() {
    int sum = 0;
    const uint64_t bits = next();
    for (int i = 0; i < 4; ++i) sum += static_cast<int>((bits >> (16 * i)) & 0xffff) - 32768;
    return static_cast<float>(sum) / 37837.0F;
  }

 private:
  uint64_t state_;
};

template <class T>
std::vector<T> normal(uint64_t seed, int64_t count, float scale = 1.0F) {
  Random random(seed);
  std::vector<T> x(static_cast<size_t>(count));
  for (T& v : x) v = from_float<T>(random.normal() * scale);
  return x;
}

// Ordinary rows, and every fourth of hard values.
template <class T>
std::vector<T> mixed(uint64_t seed, int64_t rows, int64_t cols) {
  std::vector<T> x = normal<T>(seed, rows * cols, 3.0F);
  std::vector<T> hard(x.size());
  ThreadPool pool(std::max(1, static_cast<int>(std::thread::hardware_concurrency())));
  gpu_test::fill_hard(seed, rows, cols, hard.data(), pool);
  for (int64_t r = 3; r < rows; r += 4) {
    std::copy_n(hard.begin() + r * cols, cols, x.begin() + r * cols);
  }
  return x;
}

MatrixView at(MatrixView view, const Memory& memory) {
  view.data = memory.data();
  return view;
}

struct Fused {
  int64_t rms_mxfp8 = 0;
  int64_t rms_nvfp4 = 0;
  int64_t swiglu_mxfp8 = 0;
  int64_t swiglu_nvfp4 = 0;
};

// What the quantizers make of y on the CPU against what a fused kernel wrote.
int64_t mxfp8_differences(const Gpu& gpu, MatrixView y, const Memory& q, const Memory& scale) {
  const auto n = static_cast<size_t>(y.rows * y.cols);
  std::vector<uint8_t> q_cpu(n);
  std::vector<uint8_t> scale_cpu(n / 32);
  formats::quantize_mxfp8_rows(y, q_cpu.data(), scale_cpu.data(), formats::Element::kE4M3);
  return different(gpu.download<uint8_t>(q, n), q_cpu) +
         different(gpu.download<uint8_t>(scale, n / 32), scale_cpu);
}
int64_t nvfp4_differences(const Gpu& gpu, MatrixView y, const formats::Nvfp4Options& options, const Memory& q,
                          const Memory& scale, const Memory& amax) {
  const auto n = static_cast<size_t>(y.rows * y.cols);
  const auto rows = static_cast<size_t>(y.rows);
  std::vector<uint8_t> q_cpu(n / 2);
  std::vector<uint8_t> scale_cpu(n / 16);
  std::vector<float> amax_cpu(rows);
  formats::quantize_nvfp4(y, options, {q_cpu.data(), scale_cpu.data(), amax_cpu.data()});
  return different(gpu.download<uint8_t>(q, n / 2), q_cpu) +
         different(gpu.download<uint8_t>(scale, n / 16), scale_cpu) +
         different(gpu.download<float>(amax, rows), amax_cpu);
}

constexpr float kEps = 1e-6F;

// Differences of the values and of inv_rms.
template <class T>
int64_t rms_norm_differences(const Gpu& gpu, int64_t rows, int64_t cols) {
  std::vector<T> x = mixed<T>(static_cast<uint64_t>(rows * 7 + cols), rows, cols);
  const std::vector<BF16> weight = normal<BF16>(3, cols);
  std::vector<T> y(x.size());
  std::vector<float> inv(static_cast<size_t>(rows));
  const MatrixView host = matrix_view(x.data(), rows, cols);
  rms_norm(host, weight.data(), kEps, matrix_view(y.data(), rows, cols), inv.data());
  const Memory x_memory = gpu.upload(x);
  const Memory weight_memory = gpu.upload(weight);
  const Memory y_memory = gpu.allocate(x_memory.bytes());
  const Memory inv_memory = gpu.allocate(inv.size() * sizeof(float));
  cuda::rms_norm(at(host, x_memory), weight_memory.as<BF16>(), kEps, at(host, y_memory),
                 inv_memory.as<float>(), gpu.handle());
  int64_t count = different(gpu.download<T>(y_memory, y.size()), y) +
                  different(gpu.download<float>(inv_memory, inv.size()), inv);
  // In place, without inv_rms.
  cuda::rms_norm(at(host, x_memory), weight_memory.as<BF16>(), kEps, at(host, x_memory), nullptr,
                 gpu.handle());
  count += different(gpu.download<T>(x_memory, y.size()), y);
  return count;
}

template <class T>
int64_t swiglu_differences(const Gpu& gpu, int64_t rows, int64_t cols) {
  std::vector<T> gate = mixed<T>(static_cast<uint64_t>(rows + cols), rows, cols);
  std::vector<T> up = mixed<T>(static_cast<uint64_t>(rows + cols + 99), rows, cols);
  std::vector<T> y(gate.size());
  const MatrixView host = matrix_view(gate.data(), rows, cols);
  swiglu(host, matrix_view(up.data(), rows, cols), matrix_view(y.data(), rows, cols));
  const Memory gate_memory = gpu.upload(gate);
  const Memory up_memory = gpu.upload(up);
  cuda::swiglu(at(host, gate_memory), at(host, up_memory), at(host, gate_memory), gpu.handle());
  return different(gpu.download<T>(gate_memory, y.size()), y);
}

Fused fused_differences(const Gpu& gpu, int64_t rows, int64_t cols) {
  Fused count;
  std::vector<BF16> x = mixed<BF16>(static_cast<uint64_t>(rows * 31 + cols), rows, cols);
  std::vector<BF16> up = mixed<BF16>(static_cast<uint64_t>(rows * 37 + cols), rows, cols);
  const std::vector<BF16> weight = normal<BF16>(3, cols);
  std::vector<BF16> y(x.size());
  const MatrixView host = matrix_view(x.data(), rows, cols);
  const MatrixView y_host = matrix_view(y.data(), rows, cols);
  const Memory x_memory = gpu.upload(x);
  const Memory up_memory = gpu.upload(up);
  const Memory weight_memory = gpu.upload(weight);
  const Memory y_memory = gpu.allocate(x_memory.bytes());
  const Memory q = gpu.allocate(x.size());
  const Memory scale = gpu.allocate(x.size() / 16);
  const Memory amax = gpu.allocate(static_cast<size_t>(rows) * sizeof(float));
  const formats::Nvfp4Output out{q.as<uint8_t>(), scale.as<uint8_t>(), amax.as<float>()};
  const formats::Nvfp4Options plain{formats::Nvfp4Scope::kToken, formats::Nvfp4Layout::k1x16,
                                    FourOverSix::kNone, 448};
  const formats::Nvfp4Options four{formats::Nvfp4Scope::kToken, formats::Nvfp4Layout::k1x16,
                                   FourOverSix::kMae, 256};

  rms_norm(host, weight.data(), kEps, y_host, nullptr);
  if (cols % 32 == 0) {
    cuda::rms_norm_mxfp8(at(host, x_memory), weight_memory.as<BF16>(), kEps, at(host, y_memory), nullptr,
                         q.as<uint8_t>(), scale.as<uint8_t>(), gpu.handle());
    count.rms_mxfp8 +=
        mxfp8_differences(gpu, y_host, q, scale) + different(gpu.download<BF16>(y_memory, y.size()), y);
  }
  for (const auto& options : {plain, four}) {
    cuda::rms_norm_nvfp4(at(host, x_memory), weight_memory.as<BF16>(), kEps, MatrixView{}, nullptr, out,
                         options.four_over_six, options.range, gpu.handle());
    count.rms_nvfp4 += nvfp4_differences(gpu, y_host, options, q, scale, amax);
  }

  swiglu(host, matrix_view(up.data(), rows, cols), y_host);
  if (cols % 32 == 0) {
    cuda::swiglu_mxfp8(at(host, x_memory), at(host, up_memory), at(host, y_memory), q.as<uint8_t>(),
                       scale.as<uint8_t>(), gpu.handle());
    count.swiglu_mxfp8 +=
        mxfp8_differences(gpu, y_host, q, scale) + different(gpu.download<BF16>(y_memory, y.size()), y);
  }
  for (const auto& options : {plain, four}) {
    cuda::swiglu_nvfp4(at(host, x_memory), at(host, up_memory), MatrixView{}, out, options.four_over_six,
                       options.range, gpu.handle());
    count.swiglu_nvfp4 += nvfp4_differences(gpu, y_host, options, q, scale, amax);
  }
  return count;
}

const std::vector<std::pair<int64_t, int64_t>> kShapes = {{1, 16},    {5, 64},     {64, 128}, {33, 576},
                                                          {7, 768},   {128, 2048}, {3, 4096}, {16, 6144},
                                                          {2, 14336}, {5, 40960}};

}  // namespace

TEST_CASE("rows: rms norm has the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [rows, cols] : kShapes) {
    CAPTURE(rows, cols);
    CHECK(rms_norm_differences<BF16>(*gpu, rows, cols) == 0);
    CHECK(rms_norm_differences<float>(*gpu, rows, cols) == 0);
  }
  for (const auto& [rows, cols] : {std::pair{int64_t{9}, int64_t{17}}, {4, 100}, {3, 50001}, {2, 7}}) {
    CAPTURE(rows, cols);
    CHECK(rms_norm_differences<BF16>(*gpu, rows, cols) == 0);
    CHECK(rms_norm_differences<float>(*gpu, rows, cols) == 0);
  }
}

TEST_CASE("rows: swiglu has the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [rows, cols] :
       {std::pair{int64_t{1}, int64_t{1}}, {3, 5}, {7, 768}, {128, 1536}, {40, 6144}, {9, 1001}}) {
    CAPTURE(rows, cols);
    CHECK(swiglu_differences<BF16>(*gpu, rows, cols) == 0);
    CHECK(swiglu_differences<float>(*gpu, rows, cols) == 0);
  }
}

TEST_CASE("rows: fused norm and swiglu write the quantizers' bytes") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [rows, cols] : kShapes) {
    CAPTURE(rows, cols);
    const Fused count = fused_differences(*gpu, rows, cols);
    CHECK(count.rms_mxfp8 == 0);
    CHECK(count.rms_nvfp4 == 0);
    CHECK(count.swiglu_mxfp8 == 0);
    CHECK(count.swiglu_nvfp4 == 0);
  }
}

TEST_CASE("rows: rope has the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int64_t kTokens = 37;
  constexpr int64_t kHeads = 5;
  Random random(5);
  std::vector<int32_t> positions;
  std::vector<int32_t> rows;
  for (int64_t t = 0; t < kTokens; ++t) {
    positions.push_back(static_cast<int32_t>(random.next() % 4000));
    rows.push_back(static_cast<int32_t>((t * 11) % kTokens));
  }
  const auto compare = [&]<class T>(T, int64_t dim, bool neighbours, bool scattered) {
    RopeTable table(dim, 10000.0, RopeScaling{});
    table.ensure(4000);
    const int64_t half = dim / 2;
    const Memory cos = gpu->upload(table.cos(0), static_cast<size_t>(4000 * half) * sizeof(float));
    const Memory sin = gpu->upload(table.sin(0), static_cast<size_t>(4000 * half) * sizeof(float));
    const cuda::RopeTableView view{cos.as<float>(), sin.as<float>(), half};
    const Memory position_memory = gpu->upload(positions);
    const Memory row_memory = gpu->upload(rows);
    std::vector<T> x = mixed<T>(9, kTokens, kHeads * dim);
    std::vector<T> y(x.size());
    const MatrixView host = matrix_view(x.data(), kTokens, kHeads * dim);
    const MatrixView y_host = matrix_view(y.data(), kTokens, kHeads * dim);
    const Memory x_memory = gpu->upload(x);
    const Memory y_memory = gpu->allocate(x_memory.bytes());
    const int32_t* y_rows = scattered ? rows.data() : nullptr;
    const int32_t* y_rows_device = scattered ? row_memory.as<int32_t>() : nullptr;
    if (neighbours) {
      apply_rope_heads(host, {kHeads, dim, dim, RopePairs::kNeighbours}, positions.data(), table, y_host,
                       y_rows);
      cuda::apply_rope_heads(at(host, x_memory), {kHeads, dim, dim, true}, position_memory.as<int32_t>(),
                             view, at(host, y_memory), y_rows_device, gpu->handle());
    } else {
      apply_rope(host, positions.data(), table, y_host, y_rows);
      cuda::apply_rope(at(host, x_memory), position_memory.as<int32_t>(), view, at(host, y_memory),
                       y_rows_device, gpu->handle());
    }
    CHECK(different(gpu->download<T>(y_memory, y.size()), y) == 0);
    if (!neighbours && !scattered) {  // in place
      cuda::apply_rope(at(host, x_memory), position_memory.as<int32_t>(), view, at(host, x_memory), nullptr,
                       gpu->handle());
      CHECK(different(gpu->download<T>(x_memory, y.size()), y) == 0);
    }
  };
  for (const int64_t dim : {64, 128, 12}) {
    for (const bool neighbours : {false, true}) {
      for (const bool scattered : {false, true}) {
        compare(BF16{}, dim, neighbours, scattered);
        compare(0.0F, dim, neighbours, scattered);
      }
    }
  }
}

TEST_CASE("rows: rotary queries and keys and values go to the cache in one launch with the bits of three") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int64_t kTokens = 37;
  constexpr int64_t kCacheRows = 64;
  Random random(6);
  std::vector<int32_t> positions;
  std::vector<int32_t> rows;
  for (int64_t t = 0; t < kTokens; ++t) {
    positions.push_back(static_cast<int32_t>(random.next() % 4000));
    rows.push_back(static_cast<int32_t>((t * 11 + 3) % kCacheRows));
  }
  const Memory position_memory = gpu->upload(positions);
  const Memory row_memory = gpu->upload(rows);
  struct Case {
    int64_t dim, q_heads, kv_heads, pad;  // pad: elements between the rows of q, k and v
    bool in_place;
  };
  for (const Case& c : {Case{64, 9, 3, 0, false},
                        {128, 32, 4, 0, true},
                        {16, 4, 2, 8, false},
                        {32, 3, 3, 16, true},
                        {64, 2, 1, 3, false},
                        {8, 4, 2, 0, false}}) {
    CAPTURE(c.dim);
    CAPTURE(c.pad);
    RopeTable table(c.dim, 10000.0, RopeScaling{});
    table.ensure(4000);
    const int64_t half = c.dim / 2;
    const Memory cos = gpu->upload(table.cos(0), static_cast<size_t>(4000 * half) * sizeof(float));
    const Memory sin = gpu->upload(table.sin(0), static_cast<size_t>(4000 * half) * sizeof(float));
    const cuda::RopeTableView view{cos.as<float>(), sin.as<float>(), half};
    const int64_t q_width = c.q_heads * c.dim;
    const int64_t kv_width = c.kv_heads * c.dim;
    const auto upload = [&](uint64_t seed, int64_t width) {
      return gpu->upload(normal<BF16>(seed, kTokens * (width + c.pad)));
    };
    const auto matrix = [&](const Memory& memory, int64_t height, int64_t width, int64_t stride) {
      return MatrixView{memory.data(), Dtype::kBF16, height, width, stride};
    };
    const Memory inputs[] = {upload(1, q_width), upload(2, kv_width), upload(3, kv_width)};
    const MatrixView q = matrix(inputs[0], kTokens, q_width, q_width + c.pad);
    const MatrixView k = matrix(inputs[1], kTokens, kv_width, kv_width + c.pad);
    const MatrixView v = matrix(inputs[2], kTokens, kv_width, kv_width + c.pad);
    struct Outputs {
      std::vector<BF16> q, k, v;
    };
    const auto run = [&](bool one_launch) {
      const std::vector<BF16> zeros(static_cast<size_t>(kCacheRows * q_width), BF16{});
      const Memory q_copy = gpu->upload(normal<BF16>(1, kTokens * (q_width + c.pad)));
      const Memory q_memory = gpu->upload(zeros);
      const Memory k_memory = gpu->upload(zeros);
      const Memory v_memory = gpu->upload(zeros);
      MatrixView q_in = q;
      MatrixView q_out = matrix(q_memory, kTokens, q_width, q_width);
      if (c.in_place) {
        q_in.data = q_copy.data();
        q_out = q_in;
      }
      const MatrixView k_cache = matrix(k_memory, kCacheRows, kv_width, kv_width);
      const MatrixView v_cache = matrix(v_memory, kCacheRows, kv_width, kv_width);
      const auto* to = row_memory.as<int32_t>();
      const auto* at_positions = position_memory.as<int32_t>();
      if (one_launch) {
        cuda::rope_to_cache({q_in, k, v, q_out, k_cache, v_cache, at_positions, to}, view, gpu->handle());
      } else {
        cuda::apply_rope(q_in, at_positions, view, q_out, nullptr, gpu->handle());
        cuda::apply_rope(k, at_positions, view, k_cache, to, gpu->handle());
        cuda::scatter_rows(v, to, v_cache, gpu->handle());
      }
      const Memory& turned = c.in_place ? q_copy : q_memory;
      return Outputs{gpu->download<BF16>(turned, static_cast<size_t>(kTokens * q_out.stride)),
                     gpu->download<BF16>(k_memory, static_cast<size_t>(kCacheRows * kv_width)),
                     gpu->download<BF16>(v_memory, static_cast<size_t>(kCacheRows * kv_width))};
    };
    const Outputs got = run(true);
    const Outputs want = run(false);
    CHECK(different(got.q, want.q) == 0);
    CHECK(different(got.k, want.k) == 0);
    CHECK(different(got.v, want.v) == 0);
  }
}

TEST_CASE("rows: embedding and residual sums have the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int64_t kVocab = 1000;
  for (const int64_t cols : {7, 576, 2048}) {
    const std::vector<BF16> table = mixed<BF16>(1, kVocab, cols);
    std::vector<int32_t> tokens;
    Random random(4);
    tokens.reserve(99);
    for (int i = 0; i < 99; ++i) tokens.push_back(static_cast<int32_t>(random.next() % kVocab));
    const Memory table_memory = gpu->upload(table);
    const Memory token_memory = gpu->upload(tokens);
    const auto compare = [&]<class T>(T) {
      std::vector<T> y(static_cast<size_t>(99 * cols));
      const MatrixView host = matrix_view(y.data(), 99, cols);
      embed_rows(table.data(), tokens, host);
      const Memory y_memory = gpu->allocate(y.size() * sizeof(T));
      cuda::embed_rows(table_memory.as<BF16>(), token_memory.as<int32_t>(), 99, at(host, y_memory),
                       gpu->handle());
      CHECK(different(gpu->download<T>(y_memory, y.size()), y) == 0);
      std::vector<T> delta = mixed<T>(8, 99, cols);
      const Memory delta_memory = gpu->upload(delta);
      add_rows(host, matrix_view(delta.data(), 99, cols), host);
      cuda::add_rows(at(host, y_memory), at(host, delta_memory), at(host, y_memory), gpu->handle());
      CHECK(different(gpu->download<T>(y_memory, y.size()), y) == 0);
    };
    compare(BF16{});
    compare(0.0F);
  }
}

TEST_CASE("rows: routers choose and weigh as on the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const auto compare = [&](const RouterRule& rule, bool biased) {
    constexpr int64_t kTokens = 203;
    const int64_t experts = rule.experts;
    std::vector<float> logits = normal<float>(11, kTokens * experts, 2.0F);
    for (int64_t t = 0; t < kTokens; ++t) {
      float* row = logits.data() + t * experts;
      if (t % 5 == 1) {  // ties
        for (int64_t e = 0; e < experts; ++e) row[e] = std::rint(row[e]);
      } else if (t % 50 == 2) {
        row[t % experts] = std::bit_cast<float>(0xffc00000u);
      } else if (t % 50 == 3) {
        row[t % experts] = INFINITY;
      } else if (t % 50 == 4) {
        row[t % experts] = -INFINITY;
        row[(t + 1) % experts] = -0.0F;
      }
    }
    const std::vector<float> bias = normal<float>(12, experts, 0.1F);
    std::vector<float> scores(logits.size());
    std::vector<int32_t> ids(static_cast<size_t>(kTokens * rule.k));
    std::vector<float> weights(ids.size());
    std::vector<float> scratch(static_cast<size_t>(experts + rule.groups));
    const float* used_bias = biased ? bias.data() : nullptr;
    for (int64_t t = 0; t < kTokens; ++t) {
      router_scores(rule, logits.data() + t * experts, scores.data() + t * experts);
      router_choose(rule, scores.data() + t * experts, used_bias, ids.data() + t * rule.k, scratch.data());
      router_weights(rule, scores.data() + t * experts, ids.data() + t * rule.k, weights.data() + t * rule.k);
    }
    const Memory logit_memory = gpu->upload(logits);
    const Memory bias_memory = gpu->upload(bias);
    const Memory score_memory = gpu->allocate(scores.size() * sizeof(float));
    const Memory id_memory = gpu->allocate(ids.size() * sizeof(int32_t));
    const Memory weight_memory = gpu->allocate(weights.size() * sizeof(float));
    for (const bool replayed : {false, true}) {
      cuda::route(rule, logit_memory.as<float>(), kTokens, biased ? bias_memory.as<float>() : nullptr,
                  replayed, score_memory.as<float>(), id_memory.as<int32_t>(), weight_memory.as<float>(),
                  gpu->handle());
      CHECK(different(gpu->download<float>(score_memory, scores.size()), scores) == 0);
      CHECK(different(gpu->download<int32_t>(id_memory, ids.size()), ids) == 0);
      CHECK(different(gpu->download<float>(weight_memory, weights.size()), weights) == 0);
    }
  };
  compare({RouterScoring::kSoftmax, 128, 8, 1, 1, true, 1.0F}, false);
  compare({RouterScoring::kSoftmax, 128, 8, 1, 1, false, 1.0F}, false);
  compare({RouterScoring::kSoftmax, 60, 4, 1, 1, true, 1.0F}, false);
  compare({RouterScoring::kSoftmax, 7, 7, 1, 1, true, 1.0F}, false);
  compare({RouterScoring::kSigmoid, 256, 8, 8, 4, true, 2.5F}, true);
  compare({RouterScoring::kSigmoid, 64, 6, 1, 1, false, 1.0F}, true);
}

TEST_CASE("rows: experts are sorted and combined as on the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const auto& [tokens, experts, k] : {std::tuple{int64_t{1}, int64_t{128}, int64_t{8}},
                                           {1000, 128, 8},
                                           {77, 8, 2},
                                           {1500, 60, 6},
                                           {1100, 1024, 8}}) {
    std::vector<int32_t> ids;
    Random random(6);
    for (int64_t i = 0; i < tokens * k; ++i)
      ids.push_back(static_cast<int32_t>(random.next() % static_cast<uint64_t>(experts)));
    const auto rows = ids.size();
    std::vector<int32_t> offsets(static_cast<size_t>(experts + 1));
    std::vector<int32_t> sorted_tokens(rows);
    std::vector<int32_t> sorted_slots(rows);
    std::vector<int32_t> slot_rows(rows);
    sort_by_expert(ids, experts, k,
                   {offsets.data(), sorted_tokens.data(), sorted_slots.data(), slot_rows.data()});
    const Memory id_memory = gpu->upload(ids);
    const Memory offset_memory = gpu->allocate(offsets.size() * 4);
    const Memory token_memory = gpu->allocate(rows * 4);
    const Memory slot_memory = gpu->allocate(rows * 4);
    const Memory row_memory = gpu->allocate(rows * 4);
    const Memory scratch = gpu->allocate(
        static_cast<size_t>(cuda::sort_scratch(static_cast<int64_t>(rows), experts)) * sizeof(int32_t));
    cuda::sort_by_expert(id_memory.as<int32_t>(), static_cast<int64_t>(rows), experts, k,
                         {offset_memory.as<int32_t>(), token_memory.as<int32_t>(), slot_memory.as<int32_t>(),
                          row_memory.as<int32_t>()},
                         scratch.as<int32_t>(), gpu->handle());
    CHECK(different(gpu->download<int32_t>(offset_memory, offsets.size()), offsets) == 0);
    CHECK(different(gpu->download<int32_t>(token_memory, rows), sorted_tokens) == 0);
    CHECK(different(gpu->download<int32_t>(slot_memory, rows), sorted_slots) == 0);
    CHECK(different(gpu->download<int32_t>(row_memory, rows), slot_rows) == 0);

    const int64_t row_count = tokens * k;
    const auto compare = [&, tokens = tokens, k = k]<class T>(T, int64_t cols) {
      std::vector<T> x = mixed<T>(21, tokens, cols);
      std::vector<T> down = mixed<T>(22, row_count, cols);
      const std::vector<float> weights = normal<float>(23, row_count);
      const MatrixView host = matrix_view(x.data(), tokens, cols);
      const MatrixView down_host = matrix_view(down.data(), row_count, cols);
      const Memory x_memory = gpu->upload(x);
      const Memory down_memory = gpu->upload(down);
      const Memory weight_memory = gpu->upload(weights);
      const Memory gathered = gpu->allocate(down_memory.bytes());
      cuda::gather_rows(at(host, x_memory), token_memory.as<int32_t>(), at(down_host, gathered),
                        gpu->handle());
      std::vector<T> gathered_cpu(down.size());
      for (int64_t r = 0; r < row_count; ++r) {
        std::copy_n(x.begin() + sorted_tokens[static_cast<size_t>(r)] * cols, cols,
                    gathered_cpu.begin() + r * cols);
      }
      CHECK(different(gpu->download<T>(gathered, down.size()), gathered_cpu) == 0);
      combine_experts(host, down_host, weights.data(), slot_rows.data(), k, 0, tokens, host);
      cuda::combine_experts(at(host, x_memory), at(down_host, down_memory), weight_memory.as<float>(),
                            row_memory.as<int32_t>(), k, at(host, x_memory), gpu->handle());
      CHECK(different(gpu->download<T>(x_memory, x.size()), x) == 0);
    };
    for (const int64_t cols : {2048, 100, 7}) {
      compare(BF16{}, cols);
      compare(0.0F, cols);
    }
  }
}

TEST_CASE("rows: log-probabilities and entropies have the CPU's bits") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const int64_t vocab : {1, 7, 100, 2048, 2049, 49152, 151936}) {
    constexpr int64_t kRows = 40;
    std::vector<float> logits = normal<float>(static_cast<uint64_t>(vocab), kRows * vocab, 4.0F);
    std::vector<float> temperatures;
    std::vector<int32_t> tokens;
    for (int64_t r = 0; r < kRows; ++r) {
      temperatures.push_back(r % 3 == 0 ? 1.0F : 0.3F + 0.1F * static_cast<float>(r));
      tokens.push_back(static_cast<int32_t>((r * 7919) % vocab));
    }
    logits[0] = -INFINITY;
    logits[static_cast<size_t>(2 * vocab)] = INFINITY;
    logits[static_cast<size_t>(3 * vocab)] = NAN;
    std::vector<float> logprobs;
    std::vector<float> entropies;
    for (int64_t r = 0; r < kRows; ++r) {
      const auto i = static_cast<size_t>(r);
      const float* row = logits.data() + r * vocab;
      const SoftmaxStats stats = softmax_stats(row, vocab, temperatures[i]);
      logprobs.push_back(token_logprob(stats, row[tokens[i]], temperatures[i]));
      entropies.push_back(softmax_entropy(row, vocab, temperatures[i], stats));
    }
    const Memory logit_memory = gpu->upload(logits);
    const Memory temperature_memory = gpu->upload(temperatures);
    const Memory token_memory = gpu->upload(tokens);
    const Memory logprob_memory = gpu->allocate(kRows * 4);
    const Memory entropy_memory = gpu->allocate(kRows * 4);
    const MatrixView view = at(matrix_view(logits.data(), kRows, vocab), logit_memory);
    CAPTURE(vocab);
    cuda::token_logprobs(view, temperature_memory.as<float>(), token_memory.as<int32_t>(),
                         logprob_memory.as<float>(), entropy_memory.as<float>(), gpu->handle());
    CHECK(different(gpu->download<float>(logprob_memory, kRows), logprobs) == 0);
    CHECK(different(gpu->download<float>(entropy_memory, kRows), entropies) == 0);
    const Memory alone = gpu->allocate(kRows * 4);
    cuda::token_logprobs(view, temperature_memory.as<float>(), token_memory.as<int32_t>(), alone.as<float>(),
                         nullptr, gpu->handle());
    CHECK(different(gpu->download<float>(alone, kRows), logprobs) == 0);
  }
}
