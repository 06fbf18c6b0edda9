// AdamW and its reductions on the device against the CPU's element, quantizer and loops.
#include <algorithm>
#include <bit>
#include <cmath>
#include <cstdio>
#include <limits>

#include "gpu.hpp"
#include "hard_values.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/adamw/adamw_element.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "support/catch.hpp"

using namespace accord;
using gpu_test::different;
using gpu_test::Gpu;
using kernels::AdamwFactors;
namespace cuda = accord::kernels::cuda;

namespace {

uint32_t magnitude(float x) { return std::bit_cast<uint32_t>(x) & 0x7fffffffu; }

struct State {
  std::vector<float> master, gradient, exp_avg, exp_avg_sq;
};

enum class Values { kOrdinary, kHard };

std::vector<float> values_of(Values kind, uint64_t seed, int64_t count, ThreadPool& pool) {
  std::vector<float> x(static_cast<size_t>(count));
  // Rows of 97: every kind of hard value comes up often.
  const int64_t rows = (count + 96) / 97;
  std::vector<float> filled(static_cast<size_t>(rows * 97));
  gpu_test::fill_hard(seed, rows, 97, filled.data(), pool);
  std::copy_n(filled.begin(), count, x.begin());
  if (kind == Values::kHard) return x;
  for (float& value : x) {  // finite and small; zeros and subnormals stay
    const uint32_t bits = std::bit_cast<uint32_t>(value);
    if (magnitude(value) >= 0x42000000u) value = std::bit_cast<float>((bits & 0x807fffffu) | 0x3c000000u);
  }
  return x;
}

State state_of(Values kind, int64_t count, ThreadPool& pool) {
  State s{values_of(kind, 1, count, pool), values_of(kind, 2, count, pool), values_of(kind, 3, count, pool),
          values_of(kind, 4, count, pool)};
  if (kind == Values::kOrdinary) {
    for (float& v : s.exp_avg_sq) v = v * v;
  }
  return s;
}

void update_on_cpu(State& s, const AdamwFactors& f) {
  for (size_t i = 0; i < s.master.size(); ++i) {
    kernels::adamw_element(s.master[i], s.gradient[i], s.exp_avg[i], s.exp_avg_sq[i], f);
  }
}

AdamwFactors factors_of(double lr, double decay, float scale, int steps) {
  AdamwFactors f;
  f.decay = static_cast<float>(1.0 - lr * decay);
  f.beta1 = 0.9F;
  f.one_minus_beta1 = static_cast<float>(1.0 - 0.9);
  f.beta2 = 0.95F;
  f.one_minus_beta2 = static_cast<float>(1.0 - 0.95);
  f.step = static_cast<float>(lr / (1.0 - std::pow(0.9, steps)));
  f.inv_sqrt_correction2 = static_cast<float>(1.0 / std::sqrt(1.0 - std::pow(0.95, steps)));
  f.eps = 1e-8F;
  f.scale = scale;
  f.move = lr != 0.0;
  return f;
}

// A vector on the device, `first` elements after an aligned address.
template <class T>
struct Shifted {
  Memory memory;
  size_t first;
  T* data() const { return memory.as<T>() + first; }
};
Shifted<float> upload(const Gpu& gpu, const std::vector<float>& x, size_t first) {
  std::vector<float> padded(first, 0.0F);
  padded.insert(padded.end(), x.begin(), x.end());
  return {gpu.upload(padded), first};
}
template <class T>
Shifted<T> allocate(const Gpu& gpu, size_t count, size_t first) {
  return {gpu.allocate((count + first) * sizeof(T)), first};
}
template <class T>
std::vector<T> download(const Gpu& gpu, const Shifted<T>& x, size_t count) {
  std::vector<T> all = gpu.download<T>(x.memory, x.first + count);
  return {all.begin() + static_cast<int64_t>(x.first), all.end()};
}

struct DeviceState {
  DeviceState(const Gpu& gpu, const State& s, size_t first)
      : master(upload(gpu, s.master, first)),
        gradient(upload(gpu, s.gradient, first)),
        exp_avg(upload(gpu, s.exp_avg, first)),
        exp_avg_sq(upload(gpu, s.exp_avg_sq, first)) {}
  // Elements that differ from `s`, and from the gradients as they were.
  int64_t differs(const Gpu& gpu, const State& s) const {
    const size_t n = s.master.size();
    return different(download(gpu, master, n), s.master) + different(download(gpu, gradient, n), s.gradient) +
           different(download(gpu, exp_avg, n), s.exp_avg) +
           different(download(gpu, exp_avg_sq, n), s.exp_avg_sq);
  }
  Shifted<float> master, gradient, exp_avg, exp_avg_sq;
};

const AdamwFactors kAllFactors[] = {factors_of(1e-3, 0.1, 1.0F, 1), factors_of(3e-5, 0.0, 0.37F, 1000),
                                    factors_of(0.0, 0.1, 1.0F, 5), factors_of(1.0, 0.01, 1e-20F, 3)};

}  // namespace

TEST_CASE("AdamW has the bits of the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  for (const Values kind : {Values::kOrdinary, Values::kHard}) {
    int64_t wrong = 0;
    int64_t compared = 0;
    for (const AdamwFactors& factors : kAllFactors) {
      for (const int64_t count : {1, 3, 4, 1023, 100000, 3000001}) {
        for (const size_t first : {0, 1}) {
          State s = state_of(kind, count, pool);
          const DeviceState d(*gpu, s, first);
          cuda::adamw(d.master.data(), d.gradient.data(), d.exp_avg.data(), d.exp_avg_sq.data(), count,
                      factors, gpu->handle());
          update_on_cpu(s, factors);
          wrong += d.differs(*gpu, s);
          compared += 3 * count;
        }
      }
    }
    std::printf("adamw, %s values: %lld, %lld differ\n", kind == Values::kHard ? "hard" : "ordinary",
                static_cast<long long>(compared), static_cast<long long>(wrong));
    CHECK(wrong == 0);
  }
}

TEST_CASE("AdamW with a learning rate of 0 leaves every master") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  const State s = state_of(Values::kHard, 5000, pool);
  const DeviceState d(*gpu, s, 0);
  cuda::adamw(d.master.data(), d.gradient.data(), d.exp_avg.data(), d.exp_avg_sq.data(), 5000,
              factors_of(0.0, 0.1, 1.0F, 1), gpu->handle());
  const std::vector<float> master = download(*gpu, d.master, s.master.size());
  int64_t changed = 0;
  for (size_t i = 0; i < master.size(); ++i) {
    changed += std::bit_cast<uint32_t>(master[i]) != std::bit_cast<uint32_t>(s.master[i]) ? 1 : 0;
  }
  CHECK(changed == 0);
}

TEST_CASE("AdamW exports the bytes of the quantizer and counts as it does") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  struct Shape {
    int64_t rows, cols;
  };
  const Shape shapes[] = {{1, 32}, {33, 64}, {100, 576}, {7, 31}, {1, 576}, {300, 2048}};
  for (const Values kind : {Values::kOrdinary, Values::kHard}) {
    int64_t wrong = 0;
    int64_t flushed = 0;
    int64_t saturated = 0;
    for (const auto& [rows, cols] : shapes) {
      for (const AdamwFactors& factors : kAllFactors) {
        for (const size_t first : {0, 1}) {
          for (const int form : {0, 1, 2}) {  // amax alone, bf16, MXFP8
            if (form == 2 && cols % 32 != 0) continue;
            const auto n = static_cast<size_t>(rows * cols);
            State s = state_of(kind, rows * cols, pool);
            const DeviceState d(*gpu, s, first);
            const auto bf16 = allocate<BF16>(*gpu, n, first);
            const auto q = allocate<uint8_t>(*gpu, n, first);
            const auto scales = allocate<uint8_t>(*gpu, n / 32 + 1, first);
            const bool counted = form != 1 || rows != 100;
            ExportCounts want;
            if (rows == 33) want = {5, 7, magnitude(1e3F)};
            const Memory counts = gpu->upload(std::vector<ExportCounts>{want});
            cuda::AdamwExport exported;
            exported.rows = rows;
            exported.cols = cols;
            if (form == 1) exported.bf16 = bf16.data();
            if (form == 2) exported.mxfp8 = q.data();
            if (form == 2) exported.mxfp8_scales = scales.data();
            if (counted) exported.counts = counts.as<ExportCounts>();
            cuda::adamw_export(d.master.data(), d.gradient.data(), d.exp_avg.data(), d.exp_avg_sq.data(),
                               exported, factors, gpu->handle());
            update_on_cpu(s, factors);
            wrong += d.differs(*gpu, s);

            std::vector<BF16> rounded(n);
            std::transform(s.master.begin(), s.master.end(), rounded.begin(),
                           [](float x) { return to_bf16(x); });
            if (form == 1) wrong += different(download(*gpu, bf16, n), rounded);
            if (form == 2) {
              std::vector<uint8_t> want_q(n);
              std::vector<uint8_t> want_scales(n / 32);
              formats::QuantHealth seen;
              formats::quantize_mxfp8_rows(matrix_view(rounded.data(), rows, cols), want_q.data(),
                                           want_scales.data(), formats::Element::kE4M3, &seen);
              want.saturated += seen.saturated;
              want.flushed += seen.flushed;
              wrong += different(download(*gpu, q, n), want_q) +
                       different(download(*gpu, scales, n / 32), want_scales);
            }
            if (counted) {
              for (const float x : s.master) {
                want.largest_bits = std::max(want.largest_bits, magnitude(x));
                want.flushed += x != 0.0F && to_float(to_bf16(x)) == 0.0F ? 1 : 0;
              }
              flushed += want.flushed;
              saturated += want.saturated;
              const ExportCounts got = gpu->download<ExportCounts>(counts, 1)[0];
              // Of a NaN only that it is one.
              const bool largest = want.largest_bits > 0x7f800000u ? got.largest_bits > 0x7f800000u
                                                                   : got.largest_bits == want.largest_bits;
              wrong += largest && got.flushed == want.flushed && got.saturated == want.saturated ? 0 : 1;
            }
          }
        }
      }
    }
    std::printf("adamw export, %s values: %lld differ; %lld flushed, %lld saturated\n",
                kind == Values::kHard ? "hard" : "ordinary", static_cast<long long>(wrong),
                static_cast<long long>(flushed), static_cast<long long>(saturated));
    CHECK(wrong == 0);
    CHECK(flushed > 0);
  }
}

TEST_CASE("sums of squares do not depend on anything but the values") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  for (const int64_t count : {0, 1, 3, 4, 1000, 16384, 16385, (1 << 20) + 5, 20000003}) {
    const std::vector<float> x = values_of(Values::kOrdinary, 9, count, pool);
    const Memory result = gpu->allocate(3 * sizeof(double));
    const Memory scratch =
        gpu->allocate(static_cast<size_t>(cuda::squares_scratch(count) + 1) * sizeof(double));
    const Shifted<float> aligned = upload(*gpu, x, 0);
    const Shifted<float> shifted = upload(*gpu, x, 1);
    cuda::sum_of_squares(aligned.data(), count, result.as<double>(), scratch.as<double>(), gpu->handle());
    cuda::sum_of_squares(aligned.data(), count, result.as<double>() + 1, scratch.as<double>(), gpu->handle());
    cuda::sum_of_squares(shifted.data(), count, result.as<double>() + 2, scratch.as<double>(), gpu->handle());
    const std::vector<double> got = gpu->download<double>(result, 3);
    long double sum = 0.0L;
    for (const float value : x) sum += static_cast<double>(value) * value;
    const auto want = static_cast<double>(sum);
    CAPTURE(count);
    CHECK(got[0] == got[1]);
    CHECK(got[0] == got[2]);
    CHECK(std::abs(got[0] - want) <= 1e-12 * want);
  }
}

TEST_CASE("the first value that is not finite is found") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr float kInf = std::numeric_limits<float>::infinity();
  constexpr float kNan = std::numeric_limits<float>::quiet_NaN();
  ThreadPool pool(2);
  for (const int64_t count : {0, 1, 5, 4097, 5000002}) {
    const std::vector<float> clean = values_of(Values::kOrdinary, 21, count, pool);
    std::vector<std::vector<int64_t>> places = {{}};
    if (count > 0) places.insert(places.end(), {{0}, {count - 1}, {count / 2, count - 1}, {count / 3, 0}});
    for (const std::vector<int64_t>& at : places) {
      std::vector<float> x = clean;
      int64_t want = count;
      for (size_t i = 0; i < at.size(); ++i) {
        x[static_cast<size_t>(at[i])] = i == 0 ? -kInf : kNan;
        want = std::min(want, at[i]);
      }
      for (const size_t first : {0, 1}) {
        const Shifted<float> data = upload(*gpu, x, first);
        const Memory result = gpu->allocate(sizeof(int64_t));
        cuda::first_non_finite(data.data(), count, result.as<int64_t>(), gpu->handle());
        CHECK(gpu->download<int64_t>(result, 1)[0] == want);
      }
    }
  }
}

TEST_CASE("largest magnitudes and flushed masters are counted as on the CPU") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  ThreadPool pool(2);
  for (const Values kind : {Values::kOrdinary, Values::kHard}) {
    for (const int64_t count : {0, 1, 5, 4097, 5000002}) {
      const std::vector<float> x = values_of(kind, 31, count, pool);
      uint32_t largest = 0;
      int64_t flushed = 0;
      for (const float value : x) {
        largest = std::max(largest, magnitude(value));
        flushed += value != 0.0F && to_float(to_bf16(value)) == 0.0F ? 1 : 0;
      }
      for (const size_t first : {0, 1}) {
        const Shifted<float> data = upload(*gpu, x, first);
        const Memory bits = gpu->allocate(sizeof(uint32_t));
        const Memory counted = gpu->allocate(sizeof(int64_t));
        cuda::max_abs_bits(data.data(), count, bits.as<uint32_t>(), gpu->handle());
        cuda::flushed_by_bf16(data.data(), count, counted.as<int64_t>(), gpu->handle());
        CHECK(gpu->download<uint32_t>(bits, 1)[0] == largest);
        CHECK(gpu->download<int64_t>(counted, 1)[0] == flushed);
      }
    }
  }
}
