#include "bench/layer_operations.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"

namespace accord::bench {

LayerOperations::LayerOperations(const Run& run, Table& table)
    : bench_(run.bench),
      config_(run.config),
      phase_(run.phase),
      index_(run.format),
      format_(kFormats[run.format]),
      s_(run.config, run.phase),
      table_(table),
      batch_(run.bench.gpu(), run.config, run.phase) {}

void LayerOperations::report(const std::string& op, const std::string& name, const Work& work,
                             const std::function<void()>& launch) {
  if (table_.wants(op)) table_.add(index_, op, name, work, bench_.seconds(launch));
}

LayerOperations::Codes LayerOperations::codes(int64_t rows, int64_t cols) {
  return {bench_.out<uint8_t>(rows * cols), bench_.out<uint8_t>(rows * cols / formats::kNvfp4Block),
          bench_.out<float>(rows)};
}

void LayerOperations::quantize_rows(const MatrixView& x, const Codes& to, BF16* operand) {
  if (format_ == WeightFormat::kMXFP8) {
    formats::cuda::quantize_mxfp8_rows(x, to.q, to.scales, formats::Element::kE4M3, bench_.stream(), operand);
    return;
  }
  formats::Nvfp4Options options;
  options.scope = formats::Nvfp4Scope::kToken;
  formats::cuda::quantize_nvfp4(x, options, {to.q, to.scales, to.outer}, nullptr, nullptr, bench_.stream(),
                                operand);
}

}  // namespace accord::bench
