// Quantizers and decoders: input bytes per second next to memcpy of the same input in the same run, and
// instructions per element.
//
//   bench_formats             one line per kernel: GB/s, share of memcpy, instructions per element
//   bench_formats --once NAME one pass of one kernel, for `valgrind --tool=callgrind` or `perf stat`
//
// Instructions are counted with perf_event_open. Where the kernel refuses it (perf_event_paranoid, a virtual
// machine without counters) the column says n/a; then run
//   valgrind --tool=callgrind --toggle-collect='*run_kernel*' bench_formats --once NAME
// and divide by the element count that --once prints. Speed is only worth something after test_kernels
// passed.
#include <fmt/format.h>
#include <linux/perf_event.h>
#include <sys/ioctl.h>
#include <sys/syscall.h>
#include <unistd.h>

#include <algorithm>
#include <bit>
#include <chrono>
#include <cstring>
#include <functional>
#include <optional>
#include <string>
#include <vector>

#include "base/philox.hpp"
#include "device/buffer.hpp"
#include "kernels/formats/amax.hpp"
#include "kernels/formats/decode.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace {

using namespace accord;
using namespace accord::formats;

constexpr int64_t kRows = 512;
constexpr int64_t kCols = 2048;
constexpr int64_t kElements = kRows * kCols;
constexpr int kRepeats = 15;

// User-space instructions of this thread.
class InstructionCounter {
 public:
  InstructionCounter() {
    perf_event_attr attributes{};
    attributes.type = PERF_TYPE_HARDWARE;
    attributes.size = sizeof(attributes);
    attributes.config = PERF_COUNT_HW_INSTRUCTIONS;
    attributes.disabled = 1;
    attributes.exclude_kernel = 1;
    attributes.exclude_hv = 1;
    fd_ = static_cast<int>(syscall(SYS_perf_event_open, &attributes, 0, -1, -1, 0));
  }
  ~InstructionCounter() {
    if (fd_ >= 0) {
      close(fd_);
    }
  }
  InstructionCounter(const InstructionCounter&) = delete;
  InstructionCounter& operator=(const InstructionCounter&) = delete;

  std::optional<int64_t> count(const std::function<void()>& work) {
    if (fd_ < 0) {
      return std::nullopt;
    }
    ioctl(fd_, PERF_EVENT_IOC_RESET, 0);
    ioctl(fd_, PERF_EVENT_IOC_ENABLE, 0);
    work();
    ioctl(fd_, PERF_EVENT_IOC_DISABLE, 0);
    int64_t value = 0;
    if (read(fd_, &value, sizeof(value)) != sizeof(value) || value == 0) {
      return std::nullopt;
    }
    return value;
  }

 private:
  int fd_ = -1;
};

struct Data {
  Buffer x{kElements * sizeof(float)};
  Buffer narrow{kElements * sizeof(BF16)};
  Buffer copy{kElements * sizeof(float)};
  Buffer q{kElements};
  Buffer scale{kElements / 16};
  Buffer amax{kRows * sizeof(float)};

  Data() {
    PhiloxStream random(1, 1);
    for (int64_t i = 0; i < kElements; ++i) {
      const auto value = static_cast<float>(random.next_normal());
      x.as<float>()[i] = value;
      narrow.as<BF16>()[i] = to_bf16(value);
    }
  }
  MatrixView f32() const { return matrix_view(x.as<float>(), kRows, kCols); }
  MatrixView bf16() const { return matrix_view(narrow.as<BF16>(), kRows, kCols); }
  Nvfp4Output out() const { return {q.as<uint8_t>(), scale.as<uint8_t>(), amax.as<float>()}; }
};

struct Kernel {
  std::string name;
  int64_t input_bytes;
  std::function<void()> work;
};

// Not inlined, so that callgrind can collect from here.
[[gnu::noinline]] void run_kernel(const std::function<void()>& work) { work(); }

std::vector<Kernel> quantizers(Data& data, MatrixView x, const std::string& suffix, QuantHealth& health) {
  const int64_t bytes = kElements * size_of(x.dtype);
  auto* q = data.q.as<uint8_t>();
  auto* s = data.scale.as<uint8_t>();
  std::vector<Kernel> list;
  list.push_back({"memcpy_" + suffix, bytes,
                  [&data, x, bytes] { std::memcpy(data.copy.data(), x.data, static_cast<size_t>(bytes)); }});
  list.push_back({"amax_" + suffix, bytes, [&data, x] { data.amax.as<float>()[0] = formats::amax(x); }});
  list.push_back({"mxfp8_rows_e4m3_" + suffix, bytes, [=] { quantize_mxfp8_rows(x, q, s, Element::kE4M3); }});
  list.push_back({"mxfp8_rows_e5m2_" + suffix, bytes, [=] { quantize_mxfp8_rows(x, q, s, Element::kE5M2); }});
  list.push_back({"mxfp8_rows_e4m3_health_" + suffix, bytes,
                  [=, &health] { quantize_mxfp8_rows(x, q, s, Element::kE4M3, &health); }});
  list.push_back({"mxfp8_cols_e4m3_" + suffix, bytes, [=] { quantize_mxfp8_cols(x, q, s, Element::kE4M3); }});
  const auto nvfp4 = [&](const std::string& name, const Nvfp4Options& options) {
    list.push_back({name + suffix, bytes, [=, &data] { quantize_nvfp4(x, options, data.out()); }});
  };
  nvfp4("nvfp4_tensor_1x16_", {});
  nvfp4("nvfp4_token_1x16_", {Nvfp4Scope::kToken, Nvfp4Layout::k1x16, FourOverSix::kNone, 448});
  nvfp4("nvfp4_tensor_16x16_", {Nvfp4Scope::kTensor, Nvfp4Layout::k16x16, FourOverSix::kNone, 448});
  nvfp4("nvfp4_token_4over6_mse_", {Nvfp4Scope::kToken, Nvfp4Layout::k1x16, FourOverSix::kMse, 448});
  nvfp4("nvfp4_16x16_4over6_mae_", {Nvfp4Scope::kTensor, Nvfp4Layout::k16x16, FourOverSix::kMae, 448});
  return list;
}

// Decoders report the fp32 bytes that they write, by 2048-element rows that stay in the cache.
std::vector<Kernel> decoders(Data& data) {
  const int64_t bytes = kElements * size_of(Dtype::kF32);
  const auto rows = [&data, bytes](const std::string& name, auto decode_row) {
    return Kernel{name, bytes, [&data, decode_row] {
                    for (int64_t r = 0; r < kRows; ++r) {
                      decode_row(r, data.copy.as<float>());
                    }
                  }};
  };
  const auto* q = data.q.as<uint8_t>();
  const auto* s = data.scale.as<uint8_t>();
  const auto* narrow = data.narrow.as<BF16>();
  return {
      rows("decode_bf16_row",
           [=](int64_t r, float* out) { decode_bf16_row(narrow + r * kCols, kCols, out); }),
      rows("decode_mxfp8_row",
           [=](int64_t r, float* out) { decode_mxfp8_row(q + r * kCols, s + r * kCols / 32, kCols, out); }),
      rows("decode_nvfp4_products_row", [=](int64_t r, float* out) {
        decode_nvfp4_products_row(q + r * kCols / 2, s + r * kCols / 16, kCols, out);
      })};
}

double best_seconds(const std::function<void()>& work) {
  double best = 1e9;
  for (int i = 0; i < kRepeats; ++i) {
    const auto start = std::chrono::steady_clock::now();
    run_kernel(work);
    best = std::min(best, std::chrono::duration<double>(std::chrono::steady_clock::now() - start).count());
  }
  return best;
}

}  // namespace

int main(int argc, char** argv) {
  Data data;
  QuantHealth health;
  std::vector<Kernel> kernels;
  for (const auto& list : {quantizers(data, data.f32(), "f32", health),
                           quantizers(data, data.bf16(), "bf16", health), decoders(data)}) {
    kernels.insert(kernels.end(), list.begin(), list.end());
  }
  if (argc == 3 && std::string(argv[1]) == "--once") {
    for (const Kernel& kernel : kernels) {
      if (kernel.name == argv[2]) {
        run_kernel(kernel.work);
        fmt::print("{}: {} elements\n", kernel.name, kElements);
        return 0;
      }
    }
    fmt::print(stderr, "bench_formats: no kernel named {}\n", argv[2]);
    return 64;
  }
  if (argc != 1) {
    fmt::print(stderr, "usage: bench_formats [--once NAME]\n");
    return 64;
  }
  InstructionCounter counter;
  fmt::print("{} x {} elements\n", kRows, kCols);
  double memcpy_speed = 0.0;
  for (const Kernel& kernel : kernels) {
    const double speed = static_cast<double>(kernel.input_bytes) / best_seconds(kernel.work) * 1e-9;
    if (kernel.name.starts_with("memcpy")) {
      memcpy_speed = speed;
    }
    const std::optional<int64_t> instructions = counter.count(kernel.work);
    fmt::print("{:<32} {:7.2f} GB/s  {:5.1f} % of memcpy  {} instructions/element\n", kernel.name, speed,
               100.0 * speed / memcpy_speed,
               instructions ? fmt::format("{:.2f}", static_cast<double>(*instructions) / kElements) : "n/a");
  }
  return 0;
}
