#include "quantizers.hpp"

#include <algorithm>
#include <cstring>

#include "kernels/formats/amax.hpp"
#include "kernels/formats/health_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"

namespace gpu_test {

using namespace accord;
using namespace accord::formats;

std::string Quantizer::name() const {
  if (kind != Kind::kNvfp4) {
    const char* axis = kind == Kind::kMxfp8Rows ? "rows" : kind == Kind::kMxfp8Cols ? "cols" : "both";
    return std::string("mxfp8 ") + axis + (element == Element::kE4M3 ? " e4m3" : " e5m2");
  }
  std::string text = nvfp4.layout == Nvfp4Layout::k16x16 ? "nvfp4 16x16"
                     : nvfp4.scope == Nvfp4Scope::kToken ? "nvfp4 token"
                                                         : "nvfp4 tensor";
  if (nvfp4.four_over_six != FourOverSix::kNone) {
    text += std::string(nvfp4.four_over_six == FourOverSix::kMse ? " mse " : " mae ") +
            std::to_string(nvfp4.range);
  }
  return text;
}

bool Quantizer::takes(int64_t rows, int64_t cols) const {
  switch (kind) {
    case Kind::kMxfp8Rows:
      return check_mxfp8_shape(rows, cols, Axis::kRow).ok();
    case Kind::kMxfp8Cols:
      return check_mxfp8_shape(rows, cols, Axis::kCol).ok();
    case Kind::kMxfp8Both:
      return check_mxfp8_shape(rows, cols, Axis::kRow).ok() && check_mxfp8_shape(rows, cols, Axis::kCol).ok();
    case Kind::kNvfp4:
      return check_nvfp4_shape(rows, cols, nvfp4).ok();
  }
  return false;
}

const std::vector<Quantizer>& all_quantizers() {
  static const std::vector<Quantizer> all = [] {
    std::vector<Quantizer> list;
    for (const auto kind :
         {Quantizer::Kind::kMxfp8Rows, Quantizer::Kind::kMxfp8Cols, Quantizer::Kind::kMxfp8Both}) {
      for (const Element element : {Element::kE4M3, Element::kE5M2}) {
        list.push_back({kind, element, {}});
      }
    }
    for (const auto& [scope, layout] : {std::pair{Nvfp4Scope::kToken, Nvfp4Layout::k1x16},
                                        std::pair{Nvfp4Scope::kTensor, Nvfp4Layout::k1x16},
                                        std::pair{Nvfp4Scope::kTensor, Nvfp4Layout::k16x16}}) {
      list.push_back({Quantizer::Kind::kNvfp4, Element::kE4M3, {scope, layout, FourOverSix::kNone, 448}});
      for (const FourOverSix mode : {FourOverSix::kMse, FourOverSix::kMae}) {
        for (const int range : {448, 256}) {
          list.push_back({Quantizer::Kind::kNvfp4, Element::kE4M3, {scope, layout, mode, range}});
        }
      }
    }
    return list;
  }();
  return all;
}

namespace {

// Sizes in bytes of what a quantizer writes.
std::vector<size_t> part_sizes(const Quantizer& quantizer, int64_t rows, int64_t cols) {
  const auto elements = static_cast<size_t>(rows * cols);
  switch (quantizer.kind) {
    case Quantizer::Kind::kMxfp8Rows:
    case Quantizer::Kind::kMxfp8Cols:
      return {elements, elements / 32};
    case Quantizer::Kind::kMxfp8Both:
      return {elements, elements / 32, elements, elements / 32};
    case Quantizer::Kind::kNvfp4:
      return {elements / 2, elements / 16};
  }
  return {};
}

size_t num_scopes(const Quantizer& quantizer, int64_t rows) {
  if (quantizer.kind != Quantizer::Kind::kNvfp4) {
    return 0;
  }
  return quantizer.nvfp4.scope == Nvfp4Scope::kToken ? static_cast<size_t>(rows) : 1;
}

constexpr int64_t kSlice = 64;  // rows of a task

}  // namespace

Bytes on_cpu(const Quantizer& quantizer, MatrixView x, ThreadPool& pool) {
  Bytes out;
  for (const size_t size : part_sizes(quantizer, x.rows, x.cols)) {
    out.parts.emplace_back(size);
  }
  out.amax.resize(num_scopes(quantizer, x.rows));
  const int64_t slices = (x.rows + kSlice - 1) / kSlice;
  const auto slice = [&](int64_t i) {
    return x.slice_rows(i * kSlice, std::min(kSlice, x.rows - i * kSlice));
  };
  const bool per_tensor =
      quantizer.kind == Quantizer::Kind::kNvfp4 && quantizer.nvfp4.scope == Nvfp4Scope::kTensor;
  if (per_tensor) {
    std::vector<float> maxima(static_cast<size_t>(slices));
    pool.parallel_for(slices, [&](int64_t i) { maxima[static_cast<size_t>(i)] = amax(slice(i)); });
    out.amax[0] = *std::max_element(maxima.begin(), maxima.end());
  }
  pool.parallel_for(slices, [&](int64_t i) {
    const MatrixView part = slice(i);
    const int64_t at = i * kSlice * x.cols;
    switch (quantizer.kind) {
      case Quantizer::Kind::kMxfp8Rows:
        quantize_mxfp8_rows(part, out.parts[0].data() + at, out.parts[1].data() + at / 32, quantizer.element);
        break;
      case Quantizer::Kind::kMxfp8Cols:
        quantize_mxfp8_cols(part, out.parts[0].data() + at, out.parts[1].data() + at / 32, quantizer.element);
        break;
      case Quantizer::Kind::kMxfp8Both:
        quantize_mxfp8_rows(part, out.parts[0].data() + at, out.parts[1].data() + at / 32, quantizer.element);
        quantize_mxfp8_cols(part, out.parts[2].data() + at, out.parts[3].data() + at / 32, quantizer.element);
        break;
      case Quantizer::Kind::kNvfp4: {
        float shared = out.amax[0];
        const Nvfp4Output target{out.parts[0].data() + at / 2, out.parts[1].data() + at / 16,
                                 per_tensor ? &shared : out.amax.data() + i * kSlice};
        quantize_nvfp4(part, quantizer.nvfp4, target, per_tensor ? out.amax.data() : nullptr);
        break;
      }
    }
  });
  return out;
}

Bytes on_gpu(const Quantizer& quantizer, MatrixView x, const Gpu& gpu) {
  const std::vector<size_t> sizes = part_sizes(quantizer, x.rows, x.cols);
  std::vector<Memory> memory;
  for (const size_t size : sizes) {
    memory.push_back(gpu.allocate(size));
  }
  const size_t scopes = num_scopes(quantizer, x.rows);
  const Memory amax_memory = gpu.allocate(scopes * sizeof(float));
  const Memory scratch = gpu.allocate(cuda::kAmaxScratch * sizeof(float));
  const auto part = [&](size_t i) { return memory[i].as<uint8_t>(); };
  switch (quantizer.kind) {
    case Quantizer::Kind::kMxfp8Rows:
      cuda::quantize_mxfp8_rows(x, part(0), part(1), quantizer.element, gpu.handle());
      break;
    case Quantizer::Kind::kMxfp8Cols:
      cuda::quantize_mxfp8_cols(x, part(0), part(1), quantizer.element, gpu.handle());
      break;
    case Quantizer::Kind::kMxfp8Both:
      cuda::quantize_mxfp8_both(x, part(0), part(1), part(2), part(3), quantizer.element, gpu.handle());
      break;
    case Quantizer::Kind::kNvfp4:
      cuda::quantize_nvfp4(x, quantizer.nvfp4, {part(0), part(1), amax_memory.as<float>()}, nullptr,
                           scratch.as<float>(), gpu.handle());
      break;
  }
  Bytes out;
  for (size_t i = 0; i < sizes.size(); ++i) {
    out.parts.push_back(gpu.download<uint8_t>(memory[i], sizes[i]));
  }
  out.amax = gpu.download<float>(amax_memory, scopes);
  return out;
}

int64_t different(const Bytes& a, const Bytes& b) {
  int64_t count = different(a.amax, b.amax);
  for (size_t i = 0; i < a.parts.size(); ++i) {
    if (a.parts[i].size() != b.parts[i].size() ||
        std::memcmp(a.parts[i].data(), b.parts[i].data(), a.parts[i].size()) != 0) {
      count += different(a.parts[i], b.parts[i]);
    }
  }
  return count;
}

QuantHealth health_on_cpu(const Quantizer& quantizer, MatrixView x) {
  QuantHealth health;
  std::vector<uint8_t> q(static_cast<size_t>(x.rows * x.cols));
  std::vector<uint8_t> scale(q.size() / 16);
  std::vector<float> amax_values(static_cast<size_t>(x.rows));
  if (quantizer.kind == Quantizer::Kind::kMxfp8Rows) {
    quantize_mxfp8_rows(x, q.data(), scale.data(), quantizer.element, &health);
  } else if (quantizer.kind == Quantizer::Kind::kMxfp8Cols) {
    quantize_mxfp8_cols(x, q.data(), scale.data(), quantizer.element, &health);
  } else {
    quantize_nvfp4(x, quantizer.nvfp4, {q.data(), scale.data(), amax_values.data()}, nullptr, &health);
  }
  return health;
}

QuantHealth health_on_gpu(const Quantizer& quantizer, MatrixView x, const Gpu& gpu) {
  const auto elements = static_cast<size_t>(x.rows * x.cols);
  const Memory q = gpu.allocate(elements);
  const Memory scale = gpu.allocate(elements / 16);
  const Memory amax_memory = gpu.allocate(static_cast<size_t>(x.rows) * sizeof(float));
  const Memory amax_scratch = gpu.allocate(cuda::kAmaxScratch * sizeof(float));
  const Memory scratch = gpu.allocate(cuda::kHealthScratch * sizeof(QuantHealth));
  const Memory result = gpu.allocate(sizeof(QuantHealth));
  auto* const record = result.as<QuantHealth>();
  auto* const shares = scratch.as<QuantHealth>();
  if (quantizer.kind == Quantizer::Kind::kMxfp8Rows) {
    cuda::quantize_mxfp8_rows(x, q.as<uint8_t>(), scale.as<uint8_t>(), quantizer.element, gpu.handle());
    cuda::measure_mxfp8_rows(x, scale.as<uint8_t>(), quantizer.element, record, shares, gpu.handle());
  } else if (quantizer.kind == Quantizer::Kind::kMxfp8Cols) {
    cuda::quantize_mxfp8_cols(x, q.as<uint8_t>(), scale.as<uint8_t>(), quantizer.element, gpu.handle());
    cuda::measure_mxfp8_cols(x, scale.as<uint8_t>(), quantizer.element, record, shares, gpu.handle());
  } else {
    cuda::quantize_nvfp4(x, quantizer.nvfp4, {q.as<uint8_t>(), scale.as<uint8_t>(), amax_memory.as<float>()},
                         nullptr, amax_scratch.as<float>(), gpu.handle());
    cuda::measure_nvfp4(x, quantizer.nvfp4, scale.as<uint8_t>(), amax_memory.as<float>(), record, shares,
                        gpu.handle());
  }
  QuantHealth health;
  gpu.download(result, &health, sizeof(health));
  return health;
}

std::string reference_name(const Quantizer& quantizer) {
  if (quantizer.kind != Quantizer::Kind::kNvfp4) {
    const bool known = quantizer.element == Element::kE4M3 && quantizer.kind != Quantizer::Kind::kMxfp8Both;
    return !known ? "" : quantizer.kind == Quantizer::Kind::kMxfp8Rows ? "mxfp8.row" : "mxfp8.col";
  }
  const Nvfp4Options& options = quantizer.nvfp4;
  const std::string scope = options.layout == Nvfp4Layout::k16x16 ? "2d"
                            : options.scope == Nvfp4Scope::kToken ? "row"
                                                                  : "tensor";
  if (options.four_over_six == FourOverSix::kNone) {
    return "nvfp4." + scope;
  }
  return "four_over_six." + scope + (options.four_over_six == FourOverSix::kMse ? ".MSE." : ".MAE.") +
         std::to_string(options.range);
}

}  // namespace gpu_test
