#include <algorithm>
#include <array>
#include <utility>
#include <vector>

#include "bench/device_bench.hpp"
#include "device/launch.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

constexpr int kRounds = 5;
constexpr int kMaxLaunches = 128;
constexpr double kRoundSeconds = 1e-3;
constexpr double kLeastSeconds = 1e-7;
constexpr int64_t kAlignment = 4096;  // elements: scales of a part are then aligned, too
constexpr int64_t kPoolCols = 4096;
constexpr int64_t kHostValues = int64_t{1} << 20;

uint64_t next_random(uint64_t& state) {
  state ^= state << 13;
  state ^= state >> 7;
  state ^= state << 17;
  return state;
}

// Repeats the first `filled` bytes over the block.
void repeat(const Stream& stream, void* data, size_t filled, size_t bytes) {
  auto* const at = static_cast<std::byte*>(data);
  while (filled < bytes) {
    const size_t piece = std::min(filled, bytes - filled);
    must(stream.copy(at + filled, at, piece));
    filled += piece;
  }
}

template <class T>
void fill_pool(const Gpu& gpu, T* to, int64_t elements, float scale) {
  std::vector<T> values(static_cast<size_t>(std::min(kHostValues, elements)));
  uint64_t state = 88172645463325252u;
  for (T& value : values) {
    value = from_float<T>((static_cast<float>(next_random(state) >> 40) * 0x1p-24F - 0.5F) * scale);
  }
  const size_t bytes = values.size() * sizeof(T);
  must(gpu.stream().copy(to, values.data(), bytes));
  must(gpu.stream().synchronize());
  repeat(gpu.stream(), to, bytes, static_cast<size_t>(elements) * sizeof(T));
}

double median_seconds(const Gpu& gpu, const std::function<void()>& launch) {
  Event start = must(Event::create(gpu.device()));
  Event end = must(Event::create(gpu.device()));
  const auto round = [&](int launches) {
    must(start.record(gpu.stream()));
    for (int i = 0; i < launches; ++i) launch();
    must(end.record(gpu.stream()));
    must(end.synchronize());
    return must(end.milliseconds_since(start)) / 1e3 / launches;
  };
  round(1);
  const double once = std::max(round(2), kLeastSeconds);
  const int launches = std::clamp(static_cast<int>(kRoundSeconds / once), 2, kMaxLaunches);
  std::array<double, kRounds> times{};
  for (double& time : times) time = round(launches);
  std::sort(times.begin(), times.end());
  return std::max(times[kRounds / 2], kLeastSeconds);
}

// Rates of a copy between two blocks, and of the faster of two kernels that read one.
double copy_rate(const Gpu& gpu, void* to, const void* from, size_t bytes) {
  return 2.0 * static_cast<double>(bytes) /
         median_seconds(gpu, [&] { must(gpu.stream().copy(to, from, bytes)); });
}
double read_rate(const Gpu& gpu, const float* values, int64_t floats) {
  const Memory bits = gpu.allocate(sizeof(uint32_t));
  const Memory sum = gpu.allocate(sizeof(double));
  const Memory scratch = gpu.allocate(static_cast<size_t>(cuda::squares_scratch(floats)) * sizeof(double));
  const double seconds = std::min(
      median_seconds(gpu, [&] { cuda::max_abs_bits(values, floats, bits.as<uint32_t>(), gpu.handle()); }),
      median_seconds(gpu, [&] {
        cuda::sum_of_squares(values, floats, sum.as<double>(), scratch.as<double>(), gpu.handle());
      }));
  return 4.0 * static_cast<double>(floats) / seconds;
}

}  // namespace

int64_t DeviceBench::Pool::next(int64_t count) {
  require(count <= elements, "an operand fits into the rotating memory");
  if (at + count > elements) at = 0;
  const int64_t begin = at;
  at += (count + kAlignment - 1) / kAlignment * kAlignment;
  return begin;
}

DeviceBench::DeviceBench(const Gpu& gpu, int64_t elements) : gpu_(gpu) {
  const auto allocate = [&](Pool& pool, int64_t count, size_t size) {
    pool.elements = count;
    pool.memory = must(Memory::allocate(gpu.device(), static_cast<size_t>(count) * size));
  };
  allocate(bf16_, elements, sizeof(BF16));
  allocate(weights_, elements, sizeof(BF16));
  allocate(f32_, elements, sizeof(float));
  allocate(room_, 4 * elements, 1);
  fill_pool(gpu, bf16_.memory.as<BF16>(), elements, 1.0F);
  fill_pool(gpu, weights_.memory.as<BF16>(), elements, 1.0F);
  fill_pool(gpu, f32_.memory.as<float>(), elements, 1.0F);
  must(gpu.stream().fill(room_.memory.data(), 0, room_.memory.bytes()));
  quantize_pools();
}

// Blocks of a flat array do not depend on the length of its rows, so one quantized array serves every shape.
void DeviceBench::quantize_pools() {
  const auto count = static_cast<size_t>(weights_.elements);
  const auto allocate = [&](size_t bytes) { return must(Memory::allocate(gpu_.device(), bytes)); };
  mxfp8_ = allocate(count);
  mxfp8_scales_ = allocate(count / 32);
  nvfp4_ = allocate(count / 2);
  nvfp4_scales_ = allocate(count / formats::kNvfp4Block);
  nvfp4_outer_ = allocate(sizeof(float));
  const Memory scratch = allocate(formats::cuda::kAmaxScratch * sizeof(float));
  const MatrixView values = matrix_view(weights_.memory.as<BF16>(), weights_.elements / kPoolCols, kPoolCols);
  formats::cuda::quantize_mxfp8_rows(values, mxfp8_.as<uint8_t>(), mxfp8_scales_.as<uint8_t>(),
                                     formats::Element::kE4M3, stream());
  formats::cuda::quantize_nvfp4(values, {},
                                {nvfp4_.as<uint8_t>(), nvfp4_scales_.as<uint8_t>(), nvfp4_outer_.as<float>()},
                                nullptr, scratch.as<float>(), stream());
  gpu_.synchronize();  // scratch goes
}

BF16* DeviceBench::bf16(int64_t count) { return bf16_.memory.as<BF16>() + bf16_.next(count); }
float* DeviceBench::f32(int64_t count) { return f32_.memory.as<float>() + f32_.next(count); }
void* DeviceBench::room(int64_t bytes) { return room_.memory.as<std::byte>() + room_.next(bytes); }

cuda::GemmWeight DeviceBench::weight(WeightFormat format, int64_t n, int64_t k) {
  const int64_t at = weights_.next(n * k);
  switch (format) {
    case WeightFormat::kMXFP8:
      return {mxfp8_.as<uint8_t>() + at, mxfp8_scales_.as<uint8_t>() + at / 32, nullptr};
    case WeightFormat::kNVFP4:
      return {nvfp4_.as<uint8_t>() + at / 2, nvfp4_scales_.as<uint8_t>() + at / formats::kNvfp4Block,
              nvfp4_outer_.as<float>()};
    default:
      return {weights_.memory.as<BF16>() + at, nullptr, nullptr};
  }
}

double DeviceBench::seconds(const std::function<void()>& launch) const {
  return median_seconds(gpu_, launch);
}

void DeviceBench::measure_ceilings(int64_t product_size) {
  ceilings_.copy = copy_rate(gpu_, room_.memory.data(), bf16_.memory.data(), bf16_.memory.bytes());
  ceilings_.read = std::max(ceilings_.copy, read_rate(gpu_, f32_.memory.as<float>(), f32_.elements));
  cuda::GemmForward product;
  product.m = product.n = product.k = product.lda = product_size;
  const double product_seconds = seconds([&] {
    product.a = bf16(product_size * product_size);
    product.b = weight(WeightFormat::kBF16, product_size, product_size);
    product.c = {room(2 * product_size * product_size), product_size, /*bf16=*/true, false};
    cuda::gemm_forward(product, stream());
  });
  const auto size = static_cast<double>(product_size);
  ceilings_.product = 2.0 * size * size * size / product_seconds;
  ceilings_.product_size = product_size;
  ceilings_.launch_seconds = seconds([&] {
    const MatrixView row = matrix_view(bf16(kPoolCols), 1, kPoolCols);
    cuda::add_rows(row, row, matrix_view(out<BF16>(kPoolCols), 1, kPoolCols), stream());
  });
}

void fill_random(const Gpu& gpu, BF16* values, int64_t count, float scale) {
  fill_pool(gpu, values, count, scale);
}

Ceilings measure_bandwidth(const Gpu& gpu, int64_t bytes) {
  const Memory from = gpu.allocate(static_cast<size_t>(bytes));
  const Memory to = gpu.allocate(static_cast<size_t>(bytes));
  must(gpu.stream().fill(from.data(), 0, from.bytes()));
  Ceilings ceilings;
  ceilings.copy = copy_rate(gpu, to.data(), from.data(), from.bytes());
  ceilings.read =
      std::max(ceilings.copy, read_rate(gpu, from.as<float>(), bytes / static_cast<int64_t>(sizeof(float))));
  return ceilings;
}

}  // namespace accord::bench
