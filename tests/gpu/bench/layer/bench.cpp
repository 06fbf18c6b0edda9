#include "bench.hpp"

#include <algorithm>
#include <cstdio>
#include <utility>

#include "device/launch.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"

namespace layer_bench {

using namespace accord;
using gpu_test::must;
namespace cuda = kernels::cuda;

namespace {

constexpr int kRounds = 5;
constexpr int kMaxLaunches = 128;
constexpr double kRoundSeconds = 1e-3;
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
void fill_random(const gpu_test::Gpu& gpu, const Memory& memory, int64_t elements) {
  std::vector<T> values(static_cast<size_t>(std::min(kHostValues, elements)));
  uint64_t state = 88172645463325252u;
  for (T& value : values) {
    value = from_float<T>(static_cast<float>(next_random(state) >> 40) * 0x1p-24F - 0.5F);
  }
  const size_t bytes = values.size() * sizeof(T);
  must(gpu.stream().copy(memory.data(), values.data(), bytes));
  must(gpu.stream().synchronize());
  repeat(gpu.stream(), memory.data(), bytes, static_cast<size_t>(elements) * sizeof(T));
}

std::string with_unit(double value, const char* const (&units)[3]) {
  const int unit = value >= 1e12 ? 2 : value >= 1e9 ? 1 : 0;
  const double scaled = value / (unit == 2 ? 1e12 : unit == 1 ? 1e9 : 1e6);
  char text[64];
  std::snprintf(text, sizeof(text),
                scaled < 10    ? "%.2f %s"
                : scaled < 100 ? "%.1f %s"
                               : "%.0f %s",
                scaled, units[unit]);
  return text;
}

}  // namespace

double weight_bytes(WeightFormat format, double elements) {
  switch (format) {
    case WeightFormat::kMXFP8:
      return elements * (1.0 + 1.0 / 32);
    case WeightFormat::kNVFP4:
      return elements * (0.5 + 1.0 / 16);
    default:
      return elements * 2.0;
  }
}

int64_t Bench::Pool::next(int64_t count) {
  require(count <= elements, "an operand fits into the rotating memory");
  if (at + count > elements) at = 0;
  const int64_t begin = at;
  at += (count + kAlignment - 1) / kAlignment * kAlignment;
  return begin;
}

Bench::Bench(const gpu_test::Gpu& gpu, int64_t elements) : gpu_(gpu) {
  const auto allocate = [&](Pool& pool, int64_t count, size_t size) {
    pool.elements = count;
    pool.memory = must(Memory::allocate(gpu.device(), static_cast<size_t>(count) * size));
  };
  allocate(bf16_, elements, sizeof(BF16));
  allocate(weights_, elements, sizeof(BF16));
  allocate(f32_, elements, sizeof(float));
  allocate(room_, 4 * elements, 1);
  fill_random<BF16>(gpu, bf16_.memory, elements);
  fill_random<BF16>(gpu, weights_.memory, elements);
  fill_random<float>(gpu, f32_.memory, elements);
  must(gpu.stream().fill(room_.memory.data(), 0, room_.memory.bytes()));
  quantize_pools();
}

// Blocks of a flat array do not depend on the length of its rows, so one quantized array serves every shape.
void Bench::quantize_pools() {
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

BF16* Bench::bf16(int64_t count) { return bf16_.memory.as<BF16>() + bf16_.next(count); }
float* Bench::f32(int64_t count) { return f32_.memory.as<float>() + f32_.next(count); }
void* Bench::room(int64_t bytes) { return room_.memory.as<std::byte>() + room_.next(bytes); }

cuda::GemmWeight Bench::weight(WeightFormat format, int64_t n, int64_t k) {
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

double Bench::seconds(const std::function<void()>& launch) const {
  Event start = must(Event::create(gpu_.device()));
  Event end = must(Event::create(gpu_.device()));
  const auto round = [&](int launches) {
    must(start.record(gpu_.stream()));
    for (int i = 0; i < launches; ++i) launch();
    must(end.record(gpu_.stream()));
    must(end.synchronize());
    return must(end.milliseconds_since(start)) / 1e3 / launches;
  };
  round(1);
  const double once = std::max(round(2), 1e-7);
  const int launches = std::clamp(static_cast<int>(kRoundSeconds / once), 2, kMaxLaunches);
  std::array<double, kRounds> times{};
  for (double& time : times) time = round(launches);
  std::sort(times.begin(), times.end());
  return times[kRounds / 2];
}

void Bench::measure_ceilings(int64_t product_size) {
  const size_t bytes = bf16_.memory.bytes();
  copy_rate_ = 2.0 * static_cast<double>(bytes) /
               seconds([&] { must(gpu_.stream().copy(room_.memory.data(), bf16_.memory.data(), bytes)); });
  const int64_t floats = f32_.elements;
  auto* const bits = out<uint32_t>(1);
  auto* const sum = out<double>(1);
  auto* const scratch = out<double>(cuda::squares_scratch(floats));
  const auto* const values = f32_.memory.as<float>();
  const double read =
      std::min(seconds([&] { cuda::max_abs_bits(values, floats, bits, stream()); }),
               seconds([&] { cuda::sum_of_squares(values, floats, sum, scratch, stream()); }));
  read_rate_ = std::max(copy_rate_, 4.0 * static_cast<double>(floats) / read);
  cuda::GemmForward product;
  product.m = product.n = product.k = product.lda = product_size;
  const double product_seconds = seconds([&] {
    product.a = bf16(product_size * product_size);
    product.b = weight(WeightFormat::kBF16, product_size, product_size);
    product.c = {room(2 * product_size * product_size), product_size, /*bf16=*/true, false};
    cuda::gemm_forward(product, stream());
  });
  const auto size = static_cast<double>(product_size);
  product_rate_ = 2.0 * size * size * size / product_seconds;
  const double empty = seconds([&] {
    const MatrixView row = matrix_view(bf16(kPoolCols), 1, kPoolCols);
    cuda::add_rows(row, row, matrix_view(out<BF16>(kPoolCols), 1, kPoolCols), stream());
  });
  std::printf("%s: copy (read and write) %.2f TB/s, read %.2f TB/s, own BF16 %lld³ %.0f TFLOP/s; ",
              gpu_.name().c_str(), copy_rate_ / 1e12, read_rate_ / 1e12, static_cast<long long>(product_size),
              product_rate_ / 1e12);
  std::printf("a launch %.1f µs\n", empty * 1e6);
}

Bench::Bound Bench::bound(const Work& work) const {
  const bool reads = work.written < 0.1 * work.read;
  const double moving = (work.read + work.written) / (reads ? read_rate_ : copy_rate_);
  const double computing = work.operations / product_rate_;
  return {std::max(moving, computing), computing > moving};
}

std::string Bench::cell(const Measured& measured) const {
  static constexpr const char* kBytes[3] = {"MB", "GB", "TB"};
  static constexpr const char* kOperations[3] = {"MFLOP", "GFLOP", "TFLOP"};
  const Work& work = measured.work;
  const std::string amount = bound(work).operations ? with_unit(work.operations, kOperations)
                                                    : with_unit(work.read + work.written, kBytes);
  char text[96];
  const double us = measured.seconds * 1e6;
  std::snprintf(text, sizeof(text), us < 100 ? "%s, %.1f µs, %.0f %%" : "%s, %.0f µs, %.0f %%",
                amount.c_str(), us, 100.0 * ideal_seconds(work) / measured.seconds);
  return text;
}

Table::Row& Table::row(const std::string& name) {
  for (Row& r : rows_) {
    if (r.name == name) return r;
  }
  rows_.push_back({name, {}});
  return rows_.back();
}

void Table::add(size_t format, const std::string& name, const Measured& measured) {
  row(name).cells[format] = bench_.cell(measured);
  sums_[format] += measured.seconds;
  ideals_[format] += bench_.ideal_seconds(measured.work);
}

void Table::add_text(size_t format, const std::string& name, const std::string& text) {
  row(name).cells[format] = text;
}

void Table::print(std::span<const std::string> columns) const {
  std::printf("\n| %s |", title_.c_str());
  for (const std::string& column : columns) std::printf(" %s |", column.c_str());
  std::printf("\n|---|");
  for (size_t i = 0; i < columns.size(); ++i) std::printf("---|");
  std::printf("\n");
  for (const Row& r : rows_) {
    std::printf("| %s |", r.name.c_str());
    for (size_t i = 0; i < columns.size(); ++i) std::printf(" %s |", r.cells[i].c_str());
    std::printf("\n");
  }
  std::fflush(stdout);
}

}  // namespace layer_bench
