// Quantizers and decoders of matrices, bf16 and fp32, and the digest of an arena.
#include <fmt/format.h>

#include <algorithm>
#include <array>
#include <chrono>
#include <utility>

#include "bench/operations.hpp"
#include "bench/random_policy.hpp"
#include "kernels/formats/decode_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "weights/device_digest.hpp"

namespace accord::bench {

namespace {

namespace cuda = formats::cuda;
using formats::Element;
using formats::Nvfp4Layout;
using formats::Nvfp4Options;
using formats::Nvfp4Scope;

constexpr int64_t kCols = 2048;
constexpr double kMxfp8Bytes = 33.0 / 32;
constexpr double kNvfp4Bytes = 9.0 / 16;
constexpr std::array<int64_t, 3> kSizes{int64_t{64} << 20, int64_t{256} << 20, int64_t{1} << 30};
constexpr std::array<int64_t, 3> kTinySizes{int64_t{1} << 18, int64_t{1} << 19, int64_t{1} << 20};
constexpr int kDigestRounds = 5;

class Formats {
 public:
  Formats(DeviceBench& bench, Table& table)
      : bench_(bench),
        table_(table),
        scratch_(bench.gpu().allocate(cuda::kAmaxScratch * sizeof(float))),
        one_(bench.gpu().upload(std::vector<float>{1.0F})) {}

  // Inputs of `bytes`.
  void column(size_t index, int64_t bytes) {
    index_ = index;
    quantizers<BF16>("bf16", bytes);
    quantizers<float>("fp32", bytes);
    decoders(bytes);
  }

 private:
  template <class T>
  MatrixView input(int64_t rows) {
    if constexpr (std::is_same_v<T, BF16>) return matrix_view(bench_.bf16(rows * kCols), rows, kCols);
    return matrix_view(bench_.f32(rows * kCols), rows, kCols);
  }

  void report(const std::string& name, double values, double read, double written,
              const std::function<void()>& launch) {
    if (!table_.wants("formats")) return;
    table_.add(index_, "formats", name, {read * values, written * values, 0.0}, bench_.seconds(launch));
  }

  template <class T>
  void quantizers(const std::string& dtype, int64_t bytes) {
    const int64_t rows = bytes / static_cast<int64_t>(sizeof(T)) / kCols;
    const auto values = static_cast<double>(rows * kCols);
    const double in = sizeof(T);
    const auto codes = [&] { return bench_.out<uint8_t>(rows * kCols); };
    const auto scales = [&] { return bench_.out<uint8_t>(rows * kCols / formats::kNvfp4Block); };
    for (const Element element : {Element::kE4M3, Element::kE5M2}) {
      const std::string what =
          fmt::format("{} to MXFP8 {}", dtype, element == Element::kE4M3 ? "e4m3" : "e5m2");
      report(what + ", rows", values, in, kMxfp8Bytes,
             [&] { cuda::quantize_mxfp8_rows(input<T>(rows), codes(), scales(), element, bench_.stream()); });
      report(what + ", columns", values, in, kMxfp8Bytes,
             [&] { cuda::quantize_mxfp8_cols(input<T>(rows), codes(), scales(), element, bench_.stream()); });
      report(what + ", both", values, in, 2 * kMxfp8Bytes, [&] {
        cuda::quantize_mxfp8_both(input<T>(rows), codes(), scales(), codes(), scales(), element,
                                  bench_.stream());
      });
    }
    const auto nvfp4 = [&](const std::string& name, const Nvfp4Options& options, bool given) {
      const int reads = options.scope == Nvfp4Scope::kTensor && !given ? 2 : 1;
      report(fmt::format("{} to NVFP4, {}", dtype, name), values, reads * in, kNvfp4Bytes, [&, given] {
        cuda::quantize_nvfp4(input<T>(rows), options, {codes(), scales(), bench_.out<float>(rows)},
                             given ? one_.as<float>() : nullptr, scratch_.as<float>(), bench_.stream());
      });
    };
    Nvfp4Options token;
    token.scope = Nvfp4Scope::kToken;
    Nvfp4Options square;
    square.layout = Nvfp4Layout::k16x16;
    nvfp4("per token", token, false);
    nvfp4("per tensor", {}, false);
    nvfp4("per tensor, A given", {}, true);
    nvfp4("16x16", square, false);
    nvfp4("16x16, A given", square, true);
    token.four_over_six = square.four_over_six = FourOverSix::kMse;
    nvfp4("per token, four over six", token, false);
    nvfp4("16x16, four over six, A given", square, true);
  }

  void decoders(int64_t bytes) {
    const int64_t rows = bytes / static_cast<int64_t>(sizeof(BF16)) / kCols;
    const auto values = static_cast<double>(rows * kCols);
    const auto out = [&] { return matrix_view(bench_.out<BF16>(rows * kCols), rows, kCols); };
    report("MXFP8 rows to bf16", values, kMxfp8Bytes, 2.0, [&] {
      const kernels::cuda::GemmWeight w = bench_.weight(WeightFormat::kMXFP8, rows, kCols);
      cuda::dequantize_mxfp8_rows(static_cast<const uint8_t*>(w.data), w.scales, Element::kE4M3, out(),
                                  bench_.stream());
    });
    report("NVFP4 to bf16", values, kNvfp4Bytes, 2.0, [&] {
      const kernels::cuda::GemmWeight w = bench_.weight(WeightFormat::kNVFP4, rows, kCols);
      cuda::dequantize_nvfp4(static_cast<const uint8_t*>(w.data), w.scales, w.outer, Nvfp4Scope::kTensor, 448,
                             out(), bench_.stream());
    });
  }

  DeviceBench& bench_;
  Table& table_;
  const Memory scratch_, one_;
  size_t index_ = 0;
};

}  // namespace

void format_table(const KernelRun& run, DeviceBench& bench, bool tiny) {
  const auto& sizes = tiny ? kTinySizes : kSizes;
  std::vector<std::string> columns;
  columns.reserve(sizes.size());
  for (const int64_t size : sizes) columns.push_back(bytes_text(static_cast<double>(size)) + " of input");
  Table table(bench.ceilings(), fmt::format("quantizers, rows of {}", kCols), columns, run.options.op);
  Formats formats(bench, table);
  for (size_t i = 0; i < sizes.size(); ++i) formats.column(i, sizes[i]);
  run.finish(std::move(table));
}

void digest_table(const KernelRun& run, DeviceBench& bench, bool tiny) {
  Table table(bench.ceilings(), "digests of every tensor of an arena", {"one layer in BF16"}, run.options.op);
  if (!table.wants("digest")) return;
  const Shape shape = must(find_shape(tiny ? "tiny-moe" : "qwen3-30b-a3b"));
  const RandomPolicy policy = must(uniform_policy(with_layers(shape.config, 1), WeightFormat::kBF16));
  const Gpu& gpu = bench.gpu();
  const Memory arena = gpu.allocate(static_cast<size_t>(policy.manifest.arena_bytes));
  must(gpu.stream().fill(arena.data(), 0x3c, arena.bytes()));
  const auto digest = must(weights::DeviceDigest::create(policy.manifest, gpu.device()));
  std::vector<double> times;
  for (int i = 0; i < kDigestRounds; ++i) {
    gpu.synchronize();
    const auto begin = std::chrono::steady_clock::now();
    must(digest->begin(arena.as<std::byte>()));
    must(digest->end(gpu.stream()));
    must(digest->stream().synchronize());
    times.push_back(std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count());
  }
  std::sort(times.begin(), times.end());
  table.add(0, "digest", fmt::format("{} tensors", policy.manifest.entries.size()),
            {static_cast<double>(policy.manifest.arena_bytes), 0.0, 0.0}, times[kDigestRounds / 2]);
  run.finish(std::move(table));
}

}  // namespace accord::bench
