// Kernels that overlap at their ends (kernels/cuda/overlap.cuh) have the bits of kernels of which each starts
// when all before it are complete: the chain of a decode step's layers, and products right behind a change of
// their weights.
#include <algorithm>
#include <functional>
#include <string>

#include "device/graph.hpp"
#include "exact_reference.hpp"
#include "gpu.hpp"
#include "kernels/attention/attention_cuda.hpp"
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

constexpr float kEps = 1e-5F;
constexpr int64_t kHeads = 9;
constexpr int64_t kKvHeads = 3;
constexpr int64_t kHead = 64;
constexpr int64_t kHidden = kHeads * kHead;
constexpr int64_t kKv = kKvHeads * kHead;
constexpr int64_t kInner = 1536;
constexpr int64_t kPosition = 520;  // in attention's second split
constexpr int64_t kPages = kPosition / 16 + 1;
constexpr int kLayers = 4;

using Step = std::function<void()>;

// The kernels of `kLayers` layers over one set of weights, each a step.
class Chain {
 public:
  Chain(const Gpu& gpu, WeightFormat format, int64_t rows)
      : gpu_(gpu), format_(format), rows_(rows), cache_rows_(rows * kPages * 16) {
    const std::pair<int64_t, int64_t> shapes[] = {{kHidden, kHidden}, {kKv, kHidden},    {kKv, kHidden},
                                                  {kHidden, kHidden}, {kInner, kHidden}, {kInner, kHidden},
                                                  {kHidden, kInner}};
    for (const auto& [n, k] : shapes) {
      const auto seed = static_cast<uint64_t>(weights_.size());
      weights_.push_back(
          {upload(gpu, make_weight(format, make_data(Data::kNormal, n, k, seed + 1), n, k)), n, k});
    }
    x_start_ = gpu.upload(to_bf16(make_data(Data::kNormal, rows, kHidden, 90)));
    norm_weight_ = gpu.upload(to_bf16(make_data(Data::kNormal, 1, kHidden, 91)));
    cache_start_ = gpu.upload(to_bf16(make_data(Data::kNormal, cache_rows_, kKv, 92)));
    angles_ = gpu.upload(make_data(Data::kNormal, kPosition + 1, kHead / 2, 93));
    std::vector<int32_t> positions, to_rows, pages;
    std::vector<cuda::AttentionTile> tiles;
    for (int32_t r = 0; r < rows; ++r) {
      const auto first = static_cast<int32_t>(pages.size());
      for (int32_t p = 0; p < kPages; ++p) pages.push_back((first + p) * 16);
      positions.push_back(kPosition);
      to_rows.push_back(pages.back() + kPosition % 16);
      tiles.push_back({r, 1, kPosition, first});
    }
    positions_ = gpu.upload(positions);
    to_rows_ = gpu.upload(to_rows);
    pages_ = gpu.upload(pages);
    tiles_ = gpu.upload(tiles);
    const auto bf16 = [&](int64_t n) { return gpu.allocate(static_cast<size_t>(n) * sizeof(BF16)); };
    for (Memory* m : {&x_, &norm_, &q_, &attended_, &branch_, &x_mid_}) *m = bf16(rows * kHidden);
    for (Memory* m : {&k_, &v_}) *m = bf16(rows * kKv);
    for (Memory* m : {&gate_, &up_, &act_, &values_}) *m = bf16(rows * kInner);
    for (Memory* m : {&k_cache_, &v_cache_}) *m = bf16(cache_rows_ * kKv);
    codes_ = gpu.allocate(static_cast<size_t>(rows * kInner));
    scales_ = gpu.allocate(static_cast<size_t>(rows * kInner / 16));
    outer_ = gpu.allocate(static_cast<size_t>(rows) * sizeof(float));
    lse_ = gpu.allocate(static_cast<size_t>(rows * kHeads) * sizeof(float));
    partials_ = gpu.allocate(static_cast<size_t>(cuda::attention_partials_bytes(dims(), rows, 2)));
    for (int layer = 0; layer < kLayers; ++layer) add_layer();
  }

  const std::vector<Step>& steps() const { return steps_; }

  // Everything that the steps write is as at the start.
  void reset() const {
    const Stream& stream = gpu_.stream();
    for (const Memory* m : written()) must(stream.fill(m->data(), 0xa5, m->bytes()));
    must(stream.copy(x_.data(), x_start_.data(), x_.bytes()));
    must(stream.copy(k_cache_.data(), cache_start_.data(), k_cache_.bytes()));
    must(stream.copy(v_cache_.data(), cache_start_.data(), v_cache_.bytes()));
  }
  std::vector<std::vector<uint8_t>> results() const {
    std::vector<std::vector<uint8_t>> out;
    for (const Memory* m : written()) out.push_back(gpu_.download<uint8_t>(*m, m->bytes()));
    return out;
  }

 private:
  struct Weight {
    DeviceWeight weight;
    int64_t n, k;
  };

  static cuda::AttentionDims dims() {
    return {static_cast<int32_t>(kHeads), static_cast<int32_t>(kKvHeads), static_cast<int32_t>(kHead),
            static_cast<int32_t>(kHead), 0.125F};
  }
  std::vector<const Memory*> written() const {
    return {&x_,  &norm_, &q_,     &k_,      &v_,     &attended_, &branch_, &x_mid_,   &gate_,
            &up_, &act_,  &codes_, &scales_, &outer_, &values_,   &lse_,    &k_cache_, &v_cache_};
  }
  MatrixView view(const Memory& m, int64_t cols) const { return {m.data(), Dtype::kBF16, rows_, cols, cols}; }

  void add(Step step) { steps_.push_back(std::move(step)); }

  formats::Nvfp4Output nvfp4() const {
    return {codes_.as<uint8_t>(), scales_.as<uint8_t>(), outer_.as<float>()};
  }

  // Of x, or of x + branch, which goes to x_mid.
  void norm(bool residual) {
    add([this, residual] {
      const MatrixView none{nullptr, Dtype::kBF16, rows_, kHidden, kHidden};
      const MatrixView x = view(x_, kHidden);
      const BF16* const weight = norm_weight_.as<BF16>();
      cuda::Residual sum;
      if (residual) sum = {view(branch_, kHidden), view(x_mid_, kHidden)};
      if (format_ == WeightFormat::kBF16) {
        cuda::rms_norm(x, weight, kEps, view(norm_, kHidden), nullptr, gpu_.handle(), sum);
      } else if (format_ == WeightFormat::kMXFP8) {
        cuda::rms_norm_mxfp8(x, weight, kEps, none, nullptr, codes_.as<uint8_t>(), scales_.as<uint8_t>(),
                             gpu_.handle(), values_.as<BF16>(), sum);
      } else {
        cuda::rms_norm_nvfp4(x, weight, kEps, none, nullptr, nvfp4(), FourOverSix::kNone, 448, gpu_.handle(),
                             values_.as<BF16>(), sum);
      }
    });
  }

  void quantize_attended() {
    if (format_ == WeightFormat::kBF16) return;
    add([this] {
      const MatrixView x = view(attended_, kHidden);
      if (format_ == WeightFormat::kMXFP8) {
        formats::cuda::quantize_mxfp8_rows(x, codes_.as<uint8_t>(), scales_.as<uint8_t>(),
                                           formats::Element::kE4M3, gpu_.handle(), values_.as<BF16>());
      } else {
        formats::Nvfp4Options options;
        options.scope = formats::Nvfp4Scope::kToken;
        formats::cuda::quantize_nvfp4(x, options, nvfp4(), nullptr, nullptr, gpu_.handle(),
                                      values_.as<BF16>());
      }
    });
  }

  void swiglu() {
    add([this] {
      const MatrixView none{nullptr, Dtype::kBF16, rows_, kInner, kInner};
      const MatrixView gate = view(gate_, kInner);
      const MatrixView up = view(up_, kInner);
      if (format_ == WeightFormat::kBF16) {
        cuda::swiglu(gate, up, view(act_, kInner), gpu_.handle());
      } else if (format_ == WeightFormat::kMXFP8) {
        cuda::swiglu_mxfp8(gate, up, none, codes_.as<uint8_t>(), scales_.as<uint8_t>(), gpu_.handle(),
                           values_.as<BF16>());
      } else {
        cuda::swiglu_nvfp4(gate, up, none, nvfp4(), FourOverSix::kNone, 448, gpu_.handle(),
                           values_.as<BF16>());
      }
    });
  }

  void products(const Memory& plain, std::vector<std::pair<size_t, const Memory*>> outputs) {
    add([this, &plain, outputs] {
      std::vector<cuda::GemmForward> all;
      for (const auto& [weight, y] : outputs) {
        const Weight& w = weights_[weight];
        cuda::GemmForward g;
        g.format = format_;
        g.m = rows_;
        g.n = w.n;
        g.k = w.k;
        g.a = format_ == WeightFormat::kBF16 ? plain.as<BF16>() : values_.as<BF16>();
        g.lda = w.k;
        g.a_outer = outer_.as<float>();
        g.b = w.weight.weight();
        g.c = {y->data(), w.n, true, false};
        g.b_at_rest = true;
        all.push_back(g);
      }
      cuda::gemm_forward_together(all, gpu_.handle());
    });
  }

  void add_layer() {
    norm(false);
    products(norm_, {{0, &q_}, {1, &k_}, {2, &v_}});
    add([this] {
      const auto cache = [&](const Memory& m) {
        return MatrixView{m.data(), Dtype::kBF16, cache_rows_, kKv, kKv};
      };
      cuda::rope_to_cache(
          {view(q_, kHidden), view(k_, kKv), view(v_, kKv), view(q_, kHidden), cache(k_cache_),
           cache(v_cache_), positions_.as<int32_t>(), to_rows_.as<int32_t>()},
          {angles_.as<float>(), angles_.as<float>(), kHead / 2}, gpu_.handle());
    });
    add([this] {
      cuda::AttentionForward a;
      a.dims = dims();
      a.q = q_.as<BF16>();
      a.q_stride = a.out_stride = kHidden;
      a.k = k_cache_.as<BF16>();
      a.v = v_cache_.as<BF16>();
      a.k_stride = a.v_stride = kKv;
      a.out = attended_.as<BF16>();
      a.lse = lse_.as<float>();
      a.pages = pages_.as<int32_t>();
      a.tiles = tiles_.as<cuda::AttentionTile>();
      a.num_tiles = static_cast<int32_t>(rows_);
      a.few_rows = true;
      a.max_splits = 2;
      a.positions = positions_.as<int32_t>();
      a.num_rows = rows_;
      a.partials = partials_.data();
      cuda::attention_forward(a, gpu_.handle());
    });
    quantize_attended();
    products(attended_, {{3, &branch_}});
    norm(true);
    products(norm_, {{4, &gate_}, {5, &up_}});
    swiglu();
    products(act_, {{6, &branch_}});
    add([this] {
      cuda::add_rows(view(x_mid_, kHidden), view(branch_, kHidden), view(x_, kHidden), gpu_.handle());
    });
  }

  const Gpu& gpu_;
  WeightFormat format_;
  int64_t rows_;
  int64_t cache_rows_;
  std::vector<Weight> weights_;
  std::vector<Step> steps_;
  Memory x_start_, cache_start_, norm_weight_, angles_, positions_, to_rows_, pages_, tiles_;
  Memory x_, norm_, q_, k_, v_, attended_, branch_, x_mid_, gate_, up_, act_, values_, k_cache_, v_cache_;
  Memory codes_, scales_, outer_, lse_, partials_;
};

void check_chain(const Gpu& gpu, WeightFormat format, int64_t rows, int rounds) {
  CAPTURE(static_cast<int>(format));
  CAPTURE(rows);
  const Chain chain(gpu, format, rows);
  const auto submit = [&] {
    for (const Step& step : chain.steps()) step();
  };
  chain.reset();
  for (const Step& step : chain.steps()) {
    step();
    gpu.synchronize();
  }
  const auto want = chain.results();
  const Graph graph = must(Graph::capture(gpu.stream(), [&] {
    submit();
    return absl::OkStatus();
  }));
  int wrong = 0;
  for (int round = 0; round < rounds; ++round) {
    chain.reset();
    submit();
    wrong += chain.results() != want ? 1 : 0;
    chain.reset();
    must(graph.launch(gpu.stream()));
    wrong += chain.results() != want ? 1 : 0;
  }
  CHECK(wrong == 0);
}

}  // namespace

TEST_CASE("kernels that overlap have the bits of kernels one by one") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  for (const WeightFormat format : kFormats) {
    if (gpu->emulated()) {
      check_chain(*gpu, format, 3, 1);
    } else {
      for (const int64_t rows : {5, 48, 128}) check_chain(*gpu, format, rows, 10);
    }
  }
}

TEST_CASE("products behind a change of their weights use the new ones") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int64_t kRows = 64;
  const int changes = gpu->emulated() ? 2 : 60;
  const auto bytes = [](int64_t n) { return static_cast<size_t>(n) * sizeof(BF16); };
  const Memory x = gpu->upload(to_bf16(make_data(Data::kNormal, kRows, kHidden, 1)));
  const Memory norm_weight = gpu->upload(to_bf16(make_data(Data::kNormal, 1, kHidden, 2)));
  const Memory norm = gpu->allocate(bytes(kRows * kHidden));
  const Memory own[2] = {gpu->upload(to_bf16(make_data(Data::kNormal, kInner, kHidden, 3))),
                         gpu->upload(to_bf16(make_data(Data::kNormal, kInner, kHidden, 4)))};
  const Memory weight = gpu->allocate(own[0].bytes());
  const Memory out = gpu->allocate(bytes(2 * changes * kRows * kInner));
  const auto matrix = [](const Memory& m, int64_t rows) {
    return MatrixView{m.data(), Dtype::kBF16, rows, kHidden, kHidden};
  };
  const auto change = [&](int i) {
    cuda::copy_columns(matrix(own[i % 2], kInner), {1, kHidden}, nullptr, matrix(weight, kInner),
                       gpu->handle());
  };
  const auto normalize = [&] {
    cuda::rms_norm(matrix(x, kRows), norm_weight.as<BF16>(), kEps, matrix(norm, kRows), nullptr,
                   gpu->handle());
  };
  const auto product = [&](const Memory& b, int index, bool at_rest) {
    cuda::GemmForward g;
    g.m = kRows;
    g.n = kInner;
    g.k = kHidden;
    g.a = norm.as<BF16>();
    g.lda = kHidden;
    g.b.data = b.data();
    g.c = {out.as<BF16>() + index * kRows * kInner, kInner, true, false};
    g.b_at_rest = at_rest;
    cuda::gemm_forward(g, gpu->handle());
  };
  const auto result = [&](int index) {
    std::vector<BF16> values(static_cast<size_t>(kRows * kInner));
    must(gpu->stream().copy(values.data(), out.as<BF16>() + index * kRows * kInner, bytes(kRows * kInner)));
    gpu->synchronize();
    return values;
  };
  std::vector<BF16> want[2];
  normalize();
  for (int i = 0; i < 2; ++i) {
    gpu->synchronize();
    product(own[i], i, false);
    want[i] = result(i);
  }
  REQUIRE(different(want[0], want[1]) > 0);
  for (int i = 0; i < changes; ++i) {  // behind a norm, and right behind the change
    change(i);
    normalize();
    product(weight, 2 * i, true);
    change(i + 1);
    product(weight, 2 * i + 1, false);
  }
  int64_t wrong = 0;
  for (int i = 0; i < changes; ++i) {
    wrong += different(result(2 * i), want[i % 2]) + different(result(2 * i + 1), want[(i + 1) % 2]);
  }
  CHECK(wrong == 0);
}
