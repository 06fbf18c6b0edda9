#pragma once
// One quantizer on both devices: every format, layout and rule as a value, so that tests can go over them.
#include <cstdint>
#include <string>
#include <vector>

#include "device/thread_pool.hpp"
#include "gpu.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"

namespace gpu_test {

struct Quantizer {
  enum class Kind { kMxfp8Rows, kMxfp8Cols, kMxfp8Both, kNvfp4 };
  Kind kind = Kind::kMxfp8Rows;
  accord::formats::Element element = accord::formats::Element::kE4M3;
  accord::formats::Nvfp4Options nvfp4;

  std::string name() const;
  bool takes(int64_t rows, int64_t cols) const;
};

const std::vector<Quantizer>& all_quantizers();

// Everything a quantizer writes, on the host: its bytes, then the bits of its outer scales.
struct Bytes {
  std::vector<std::vector<uint8_t>> parts;
  std::vector<float> amax;
};

Bytes on_cpu(const Quantizer& quantizer, accord::MatrixView x, accord::ThreadPool& pool);
// x on the device.
Bytes on_gpu(const Quantizer& quantizer, accord::MatrixView x, const Gpu& gpu);
int64_t different(const Bytes& a, const Bytes& b);

// What the quantizer saw; x on the device for the second. Not for kMxfp8Both.
accord::formats::QuantHealth health_on_cpu(const Quantizer& quantizer, accord::MatrixView x);
accord::formats::QuantHealth health_on_gpu(const Quantizer& quantizer, accord::MatrixView x, const Gpu& gpu);

// What tests/data/quant calls this quantizer's results; empty where it has none.
std::string reference_name(const Quantizer& quantizer);

}  // namespace gpu_test
