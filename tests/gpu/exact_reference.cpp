#include "exact_reference.hpp"

#include <algorithm>
#include <cmath>
#include <cstdio>
#include <cstring>
#include <thread>

#include "base/philox.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "kernels/gemm/exact.hpp"
#include "support/catch.hpp"

namespace gpu_test {

using namespace accord;

const char* name_of(Data data) {
  switch (data) {
    case Data::kNormal:
      return "normal";
    case Data::kHeavy:
      return "heavy-tailed";
    case Data::kCancelling:
      return "cancelling";
    case Data::kPositive:
      return "positive";
    case Data::kTiny:
      return "tiny";
    case Data::kSubnormal:
      return "subnormal";
  }
  return "";
}

std::vector<float> make_data(Data data, int64_t rows, int64_t cols, uint64_t seed) {
  PhiloxStream random(seed, 3);
  std::vector<float> out(static_cast<size_t>(rows * cols));
  for (size_t i = 0; i < out.size(); ++i) {
    const double x = random.next_normal();
    double value = x;
    switch (data) {
      case Data::kNormal:
        break;
      case Data::kHeavy: {
        const double u = random.next_double() + 1e-3;
        value = x / (u * u);
        break;
      }
      case Data::kCancelling:
        value = i % 2 == 1 ? -static_cast<double>(out[i - 1]) * (random.next_u32() % 4 == 0 ? 1.0078125 : 1.0)
                           : x;
        break;
      case Data::kPositive:
        value = std::abs(x);
        break;
      case Data::kTiny:
        value = std::ldexp(
            x, -60 - static_cast<int>(i / static_cast<size_t>(cols) % 12));  // sums among fp32's smallest
        break;
      case Data::kSubnormal:
        value = random.next_u32() % 2 == 0 ? x * 0x1p-128 : x;
        break;
    }
    out[i] = static_cast<float>(value);
  }
  return out;
}

std::vector<BF16> to_bf16(const std::vector<float>& x) {
  std::vector<BF16> out(x.size());
  std::transform(x.begin(), x.end(), out.begin(), [](float v) { return accord::to_bf16(v); });
  return out;
}

std::vector<BF16> transposed(const std::vector<BF16>& x, int64_t rows, int64_t cols) {
  std::vector<BF16> out(x.size());
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t c = 0; c < cols; ++c) {
      out[static_cast<size_t>(c * rows + r)] = x[static_cast<size_t>(r * cols + c)];
    }
  }
  return out;
}

namespace {

MatrixView view_of(const std::vector<float>& x, int64_t rows, int64_t cols) {
  return {const_cast<float*>(x.data()), Dtype::kF32, rows, cols, cols};  // quantizers only read
}

void quantize(WeightFormat format, const std::vector<float>& values, int64_t rows, int64_t cols,
              bool per_token, std::vector<uint8_t>& data, std::vector<uint8_t>& scales,
              std::vector<float>& outer, std::vector<BF16>& decoded) {
  const auto count = static_cast<size_t>(rows * cols);
  decoded = to_bf16(values);
  if (format == WeightFormat::kBF16) {
    data.resize(count * 2);
    std::memcpy(data.data(), decoded.data(), data.size());
    return;
  }
  std::vector<float> row(static_cast<size_t>(cols));
  if (format == WeightFormat::kMXFP8) {
    data.resize(count);
    scales.resize(count / 32);
    formats::quantize_mxfp8_rows(view_of(values, rows, cols), data.data(), scales.data(),
                                 formats::Element::kE4M3);
  } else {
    data.resize(count / 2);
    scales.resize(count / 16);
    outer.resize(per_token ? static_cast<size_t>(rows) : 1);
    formats::Nvfp4Options options;
    options.scope = per_token ? formats::Nvfp4Scope::kToken : formats::Nvfp4Scope::kTensor;
    formats::quantize_nvfp4(view_of(values, rows, cols), options, {data.data(), scales.data(), outer.data()});
  }
  for (int64_t r = 0; r < rows; ++r) {
    if (format == WeightFormat::kMXFP8) {
      formats::decode_mxfp8_row(data.data() + r * cols, scales.data() + r * (cols / 32), cols, row.data());
    } else {
      formats::decode_nvfp4_products_row(data.data() + r * (cols / 2), scales.data() + r * (cols / 16), cols,
                                         row.data());
    }
    for (int64_t c = 0; c < cols; ++c) {
      decoded[static_cast<size_t>(r * cols + c)] = accord::to_bf16(row[static_cast<size_t>(c)]);
    }
  }
}

}  // namespace

TestWeight make_weight(WeightFormat format, const std::vector<float>& values, int64_t n, int64_t k) {
  TestWeight w;
  std::vector<float> outer = {1.0F};
  quantize(format, values, n, k, false, w.data, w.scales, outer, w.decoded);
  w.outer = outer[0];
  return w;
}

TestActivations make_activations(WeightFormat format, const std::vector<float>& values, int64_t m,
                                 int64_t k) {
  TestActivations a;
  quantize(format, values, m, k, true, a.data, a.scales, a.outer, a.decoded);
  return a;
}

std::vector<float> exact_products(const std::vector<BF16>& a, const std::vector<BF16>& b, int64_t m,
                                  int64_t n, int64_t k) {
  const int64_t padded = (k + 15) / 16 * 16;
  const auto pad = [&](const std::vector<BF16>& x, int64_t rows) {
    std::vector<BF16> out(static_cast<size_t>(rows * padded));
    for (int64_t r = 0; r < rows; ++r) std::copy_n(x.begin() + r * k, k, out.begin() + r * padded);
    return out;
  };
  const std::vector<BF16> wide_a = pad(a, m);
  const std::vector<BF16> wide_b = pad(b, n);
  const auto rows_of = [&](const std::vector<BF16>& x, int64_t rows) {
    std::vector<const BF16*> out;
    for (int64_t r = 0; r < rows; ++r) out.push_back(x.data() + r * padded);
    return out;
  };
  const std::vector<const BF16*> a_rows = rows_of(wide_a, m);
  const std::vector<const BF16*> b_rows = rows_of(wide_b, n);
  std::vector<float> c(static_cast<size_t>(m * n));
  const int64_t threads = std::max<int64_t>(1, std::thread::hardware_concurrency());
  std::vector<std::thread> workers;
  for (int64_t t = 0; t < threads; ++t) {
    const int64_t begin = n * t / threads;
    const int64_t end = n * (t + 1) / threads;
    if (begin == end) continue;
    workers.emplace_back([&, begin, end] {
      kernels::gemm_rows_exact(a_rows.data(), m, b_rows.data() + begin, end - begin, padded, c.data() + begin,
                               n);
    });
  }
  for (std::thread& worker : workers) worker.join();
  return c;
}

void nvfp4_epilogue(std::vector<float>& c, int64_t m, int64_t n, const std::vector<float>& a_outer,
                    float b_outer) {
  constexpr float kInverse = 1.0F / (36.0F * 448.0F * 448.0F);
  for (int64_t i = 0; i < m; ++i) {
    const float outer = a_outer[static_cast<size_t>(i)] * b_outer;
    for (int64_t j = 0; j < n; ++j) {
      float& x = c[static_cast<size_t>(i * n + j)];
      x = (x * kInverse) * outer;
    }
  }
}

const char* name_of(WeightFormat format) {
  return format == WeightFormat::kBF16 ? "BF16" : format == WeightFormat::kMXFP8 ? "MXFP8" : "NVFP4";
}

DeviceWeight upload(const Gpu& gpu, const TestWeight& w) {
  return {gpu.upload(w.data), gpu.upload(w.scales), gpu.upload(std::vector<float>{w.outer})};
}

void report(const char* what, const std::string& detail, int64_t wrong, size_t outputs) {
  std::printf("%-28s %-44s %10zu outputs, %lld differ\n", what, detail.c_str(), outputs,
              static_cast<long long>(wrong));
  CHECK(wrong == 0);
}

}  // namespace gpu_test
