// The quantizers' bytes on the device against the CPU's.
#include "quantizers.hpp"

#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <cstdlib>
#include <cstring>
#include <filesystem>
#include <thread>

#include "checkpoint/safetensors.hpp"
#include "device_policy.hpp"
#include "hard_values.hpp"
#include "kernels/formats/amax.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/decode_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::formats;
using gpu_test::all_quantizers;
using gpu_test::Gpu;
using gpu_test::Quantizer;

namespace {

int num_cores() { return std::max(1, static_cast<int>(std::thread::hardware_concurrency())); }

// Differences of every quantizer that takes the shape, over one matrix on the host.
template <class T>
int64_t compare_all(const Gpu& gpu, std::vector<T>& x, int64_t rows, int64_t cols, ThreadPool& pool,
                    std::vector<int64_t>* per_quantizer = nullptr) {
  const Memory device = gpu.upload(x);
  const MatrixView host_view = matrix_view(x.data(), rows, cols);
  MatrixView view = host_view;
  view.data = device.data();
  int64_t total = 0;
  for (size_t i = 0; i < all_quantizers().size(); ++i) {
    const Quantizer& quantizer = all_quantizers()[i];
    if (!quantizer.takes(rows, cols)) {
      continue;
    }
    const int64_t count = different(on_gpu(quantizer, view, gpu), on_cpu(quantizer, host_view, pool));
    if (count != 0) {
      std::printf("%s [%lld, %lld] %s: %lld bytes differ\n", sizeof(T) == 2 ? "bf16" : "fp32",
                  static_cast<long long>(rows), static_cast<long long>(cols), quantizer.name().c_str(),
                  static_cast<long long>(count));
    }
    if (per_quantizer != nullptr) {
      (*per_quantizer)[i] += rows * cols;
    }
    total += count;
  }
  return total;
}

template <class T>
std::vector<T> hard(uint64_t seed, int64_t rows, int64_t cols, ThreadPool& pool) {
  std::vector<T> x(static_cast<size_t>(rows * cols));
  gpu_test::fill_hard(seed, rows, cols, x.data(), pool);
  return x;
}

int64_t compare_hard(const Gpu& gpu, uint64_t seed, int64_t rows, int64_t cols, ThreadPool& pool) {
  auto bf16 = hard<BF16>(2 * seed, rows, cols, pool);
  auto fp32 = hard<float>(2 * seed + 1, rows, cols, pool);
  return compare_all(gpu, bf16, rows, cols, pool) + compare_all(gpu, fp32, rows, cols, pool);
}

}  // namespace

// Small shapes apart, for tools that slow kernels down.
TEST_CASE("quantizers: small shapes of every remainder") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(num_cores());
  uint64_t seed = 1;
  int64_t differences = 0;
  for (const int64_t cols : {16, 32, 48, 64, 96, 128, 160, 480, 512, 576}) {
    for (const int64_t rows : {1, 3, 16, 32, 33, 64, 160}) {
      differences += compare_hard(*gpu, ++seed, rows, cols, pool);
    }
  }
  for (const int64_t cols : {1, 7, 20, 36, 100}) {  // columns need no block along them
    differences += compare_hard(*gpu, ++seed, 64, cols, pool);
  }
  CHECK(differences == 0);
}

TEST_CASE("quantizers: large shapes of every remainder") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(num_cores());
  uint64_t seed = 1000;
  int64_t differences = 0;
  for (const int64_t cols : {768, 1024, 1536, 2048, 2064, 4096, 8192, 14336, 40960, 40976, 50000, 65552}) {
    for (const int64_t rows : {1, 3, 16, 32, 33, 64, 160}) {
      if (rows * cols <= 4 << 20 || rows <= 32) {
        differences += compare_hard(*gpu, ++seed, rows, cols, pool);
      }
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("quantizers: views with strides and odd addresses") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(num_cores());
  int64_t differences = 0;
  const auto compare = [&](auto& x, int64_t offset, int64_t rows, int64_t cols, int64_t stride) {
    using T = typename std::decay_t<decltype(x)>::value_type;
    const Memory device = gpu->upload(x);
    const MatrixView host{x.data() + offset, DtypeOf<T>::value, rows, cols, stride};
    const MatrixView view{device.template as<T>() + offset, DtypeOf<T>::value, rows, cols, stride};
    for (const Quantizer& quantizer : all_quantizers()) {
      const int64_t count = different(on_gpu(quantizer, view, *gpu), on_cpu(quantizer, host, pool));
      if (count != 0) {
        std::printf("offset %d stride %d %s: %d bytes differ\n", static_cast<int>(offset),
                    static_cast<int>(stride), quantizer.name().c_str(), static_cast<int>(count));
      }
      differences += count;
    }
  };
  auto bf16 = hard<BF16>(5, 70, 3000, pool);
  auto fp32 = hard<float>(6, 70, 3000, pool);
  for (const int64_t offset : {0, 1, 8, 24}) {
    for (const int64_t stride : {544, 2000, 2001, 2004}) {
      compare(bf16, offset, 64, 544, stride);
      compare(fp32, offset, 64, 544, stride);
    }
  }
  CHECK(differences == 0);
}

TEST_CASE("quantizers: every bf16 value at every place of a block") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(num_cores());
  // Row r: value r, at place p of block p of 32, among ordinary values; one row is one token too.
  constexpr int64_t kRows = 65536;
  constexpr int64_t kCols = 32 * 32;
  std::vector<BF16> x(static_cast<size_t>(kRows * kCols));
  std::vector<BF16> columns(x.size());
  pool.parallel_for(kRows, [&](int64_t r) {
    for (int64_t c = 0; c < kCols; ++c) {
      const auto ordinary = static_cast<uint16_t>(0x3e00 + (r * 131 + c * 37) % 0x180 + ((r + c) % 2 << 15));
      const bool there = c % 32 == c / 32;
      x[static_cast<size_t>(r * kCols + c)] = BF16{there ? static_cast<uint16_t>(r) : ordinary};
      // Value 32 * (r / 32) + c / 32 in row c % 32 of its stripe: every value in every row of a block.
      const auto value = static_cast<uint16_t>(r / 32 * 32 + c / 32);
      columns[static_cast<size_t>(r * kCols + c)] = BF16{c % 32 == r % 32 ? value : ordinary};
    }
  });
  CHECK(compare_all(*gpu, x, kRows, kCols, pool) == 0);
  CHECK(compare_all(*gpu, columns, kRows, kCols, pool) == 0);
}

TEST_CASE("quantizers: random bits with hard exponents") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(num_cores());
  const char* wanted = std::getenv("ACCORD_TEST_ELEMENTS");
  const int64_t elements = wanted == nullptr ? int64_t{1} << 24 : std::strtoll(wanted, nullptr, 10);
  constexpr int64_t kChunk = int64_t{1} << 23;
  std::vector<int64_t> per_quantizer(all_quantizers().size());
  constexpr int64_t kWidths[] = {2048, 576, 4096, 1536, 768, 12288};
  int64_t differences = 0;
  int64_t done = 0;
  for (uint64_t seed = 100; done < elements; seed += 2) {
    const int64_t cols = kWidths[seed / 2 % std::size(kWidths)];
    const int64_t rows = kChunk / cols / 32 * 32;
    auto bf16 = hard<BF16>(seed, rows, cols, pool);
    auto fp32 = hard<float>(seed + 1, rows, cols, pool);
    differences += compare_all(*gpu, bf16, rows, cols, pool, &per_quantizer);
    differences += compare_all(*gpu, fp32, rows, cols, pool, &per_quantizer);
    done += 2 * rows * cols;
  }
  std::printf("quantizers: %lld random elements each, %zu quantizers: %lld bytes differ\n",
              static_cast<long long>(done), per_quantizer.size(), static_cast<long long>(differences));
  for (const int64_t count : per_quantizer) {
    CHECK(count == done);
  }
  CHECK(differences == 0);
}

TEST_CASE("quantizers: an outer scale given from outside") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(num_cores());
  auto a = hard<BF16>(11, 64, 512, pool);
  auto b = hard<BF16>(13, 96, 512, pool);
  const Memory device_a = gpu->upload(a);
  const Memory device_b = gpu->upload(b);
  const MatrixView host_a = matrix_view(a.data(), 64, 512);
  const MatrixView host_b = matrix_view(b.data(), 96, 512);
  float shared = std::max(amax(host_a), amax(host_b));
  Nvfp4Options options;
  std::vector<uint8_t> q(64 * 256);
  std::vector<uint8_t> scale(64 * 32);
  float stored = 0.0F;
  quantize_nvfp4(host_a, options, {q.data(), scale.data(), &stored}, &shared);

  const Memory q_memory = gpu->allocate(q.size());
  const Memory scale_memory = gpu->allocate(scale.size());
  const Memory amax_memory = gpu->allocate(2 * sizeof(float));
  const Memory scratch = gpu->allocate(formats::cuda::kAmaxScratch * sizeof(float));
  auto* unit = amax_memory.as<float>();
  MatrixView view_a = host_a;
  MatrixView view_b = host_b;
  view_a.data = device_a.data();
  view_b.data = device_b.data();
  formats::cuda::amax(view_a, unit, false, scratch.as<float>(), gpu->handle());
  formats::cuda::amax(view_b, unit, true, scratch.as<float>(), gpu->handle());
  formats::cuda::quantize_nvfp4(view_a, options,
                                {q_memory.as<uint8_t>(), scale_memory.as<uint8_t>(), unit + 1}, unit, nullptr,
                                gpu->handle());
  CHECK(gpu->download<float>(amax_memory, 2) == std::vector<float>{shared, shared});
  CHECK(gpu_test::different(gpu->download<uint8_t>(q_memory, q.size()), q) == 0);
  CHECK(gpu_test::different(gpu->download<uint8_t>(scale_memory, scale.size()), scale) == 0);
}

TEST_CASE("quantizers: what they saw is counted as on the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(num_cores());
  const auto compare = [&](auto x, int64_t rows, int64_t cols) {
    const Memory device = gpu->upload(x);
    const MatrixView host = matrix_view(x.data(), rows, cols);
    MatrixView view = host;
    view.data = device.data();
    for (const Quantizer& quantizer : all_quantizers()) {
      if (quantizer.kind == Quantizer::Kind::kMxfp8Both) {
        continue;
      }
      const QuantHealth a = gpu_test::health_on_cpu(quantizer, host);
      const QuantHealth b = gpu_test::health_on_gpu(quantizer, view, *gpu);
      INFO(quantizer.name());
      CHECK(a.elements == b.elements);
      CHECK(a.saturated == b.saturated);
      CHECK(a.flushed == b.flushed);
      CHECK(a.nan == b.nan);
      CHECK(a.amax == b.amax);
    }
  };
  for (const auto& [rows, cols] : {std::pair{int64_t{32}, int64_t{32}}, {64, 544}, {512, 1024}}) {
    compare(hard<BF16>(31, rows, cols, pool), rows, cols);
    compare(hard<float>(32, rows, cols, pool), rows, cols);
  }
}

TEST_CASE("decoders: every code under every scale") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  // Row r has scale code r in all its blocks; the columns run through the codes.
  constexpr int64_t kRows = 256;
  constexpr int64_t kCols = 512;
  std::vector<uint8_t> q(kRows * kCols);
  for (size_t i = 0; i < q.size(); ++i) q[i] = static_cast<uint8_t>(i % 256);
  std::vector<uint8_t> scale(kRows * kCols / 16);
  for (size_t i = 0; i < scale.size(); ++i) scale[i] = static_cast<uint8_t>(i / (kCols / 16));
  std::vector<uint8_t> scale32(kRows * kCols / 32);
  for (size_t i = 0; i < scale32.size(); ++i) scale32[i] = static_cast<uint8_t>(i / (kCols / 32));
  std::vector<uint8_t> col_scale(kRows / 32 * kCols);
  for (size_t i = 0; i < col_scale.size(); ++i) col_scale[i] = static_cast<uint8_t>(i * 7);
  const std::vector<float> amax = {3.4e38F,  1.0F,      0.0F,
                                   1.5e-40F, 1234.567F, std::bit_cast<float>(0x7f800000u)};
  std::vector<float> row_amax;
  for (int64_t r = 0; r < kRows; ++r) row_amax.push_back(amax[static_cast<size_t>(r) % amax.size()]);

  const Memory q_memory = gpu->upload(q);
  const Memory scale_memory = gpu->upload(scale);
  const Memory scale32_memory = gpu->upload(scale32);
  const Memory col_memory = gpu->upload(col_scale);
  const Memory amax_memory = gpu->upload(row_amax);
  const Memory out_memory = gpu->allocate(q.size() * sizeof(float));
  std::vector<float> expected(q.size());
  const auto compare = [&](auto decode) {
    decode(MatrixView{out_memory.data(), Dtype::kF32, kRows, kCols, kCols});
    CHECK(gpu_test::different(gpu->download<float>(out_memory, q.size()), expected) == 0);
    std::vector<BF16> rounded;
    for (const float v : expected) rounded.push_back(to_bf16(v));
    decode(MatrixView{out_memory.data(), Dtype::kBF16, kRows, kCols, kCols});
    CHECK(gpu_test::different(gpu->download<BF16>(out_memory, q.size()), rounded) == 0);
  };
  for (const Element element : {Element::kE4M3, Element::kE5M2}) {
    dequantize_mxfp8(q.data(), scale32.data(), kRows, kCols, Axis::kRow, element, expected.data());
    compare([&](MatrixView out) {
      formats::cuda::dequantize_mxfp8_rows(q_memory.as<uint8_t>(), scale32_memory.as<uint8_t>(), element, out,
                                           gpu->handle());
    });
    dequantize_mxfp8(q.data(), col_scale.data(), kRows, kCols, Axis::kCol, element, expected.data());
    compare([&](MatrixView out) {
      formats::cuda::dequantize_mxfp8_cols(q_memory.as<uint8_t>(), col_memory.as<uint8_t>(), element, out,
                                           gpu->handle());
    });
  }
  for (const int range : {448, 256}) {
    for (const Nvfp4Scope scope : {Nvfp4Scope::kToken, Nvfp4Scope::kTensor}) {
      dequantize_nvfp4(q.data(), scale.data(), row_amax.data(), kRows, kCols, scope, range, expected.data());
      compare([&](MatrixView out) {
        formats::cuda::dequantize_nvfp4(q_memory.as<uint8_t>(), scale_memory.as<uint8_t>(),
                                        amax_memory.as<float>(), scope, range, out, gpu->handle());
      });
    }
  }
  for (int64_t r = 0; r < kRows; ++r) {
    decode_nvfp4_products_row(q.data() + r * kCols / 2, scale.data() + r * kCols / 16, kCols,
                              expected.data() + r * kCols);
  }
  compare([&](MatrixView out) {
    formats::cuda::dequantize_nvfp4_products(q_memory.as<uint8_t>(), scale_memory.as<uint8_t>(), out,
                                             gpu->handle());
  });
}

TEST_CASE("quantizers: every reference byte is reproduced") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  int64_t num_files = 0;
  int64_t num_tensors = 0;
  int64_t differences = 0;
  for (const auto& entry : std::filesystem::directory_iterator(gpu_test::test_data() + "/quant")) {
    if (entry.path().extension() != ".safetensors") {
      continue;
    }
    const auto file = checkpoint::SafetensorsFile::open(entry.path().string());
    REQUIRE(file.ok());
    ++num_files;
    const checkpoint::TensorInfo& x = **file->require("x");
    const Memory device = gpu->upload(x.data, static_cast<size_t>(x.bytes));
    const MatrixView view{device.data(), Dtype::kF32, x.shape[0], x.shape[1], x.shape[1]};
    for (const Quantizer& quantizer : all_quantizers()) {
      const std::string prefix = gpu_test::reference_name(quantizer);
      const auto data = file->require(prefix + ".data");
      if (prefix.empty() || !data.ok()) {
        continue;
      }
      const gpu_test::Bytes bytes = on_gpu(quantizer, view, *gpu);
      const auto compare = [&](const char* name, const void* mine, size_t size) {
        const auto tensor = file->require(prefix + name);
        if (!tensor.ok()) {
          return;
        }
        ++num_tensors;
        const bool same =
            static_cast<size_t>((*tensor)->bytes) == size && std::memcmp((*tensor)->data, mine, size) == 0;
        if (!same) {
          std::printf("%s %s%s differs\n", entry.path().filename().c_str(), prefix.c_str(), name);
          ++differences;
        }
      };
      compare(".data", bytes.parts[0].data(), bytes.parts[0].size());
      compare(".scale", bytes.parts[1].data(), bytes.parts[1].size());
      if (!bytes.amax.empty()) {
        compare(".amax", bytes.amax.data(), bytes.amax.size() * sizeof(float));
      }
    }
  }
  CHECK(num_files == 16);
  CHECK(num_tensors == 304);
  CHECK(differences == 0);
}
