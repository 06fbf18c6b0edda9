#pragma once
// Times of operations beside the ceilings of the same run: a copy's and a read's bandwidth, and the rate of a
// large BF16 product. Operands come from rotating memory, so that each launch finds them outside of the
// cache.
#include <array>
#include <cstdint>
#include <functional>
#include <span>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "gpu.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

namespace layer_bench {

// What an operation must move and compute once.
struct Work {
  double read = 0.0;  // bytes
  double written = 0.0;
  double operations = 0.0;
};

struct Measured {
  Work work;
  double seconds = 0.0;
};

inline constexpr std::array<accord::WeightFormat, 3> kFormats{
    accord::WeightFormat::kBF16, accord::WeightFormat::kMXFP8, accord::WeightFormat::kNVFP4};

// Bytes of a weight with its block scales.
double weight_bytes(accord::WeightFormat format, double elements);

class Bench {
 public:
  // Rotating memory of `elements` bf16 values and as many of each other kind.
  Bench(const gpu_test::Gpu& gpu, int64_t elements);

  const gpu_test::Gpu& gpu() const { return gpu_; }
  accord::StreamHandle stream() const { return gpu_.handle(); }
  int64_t num_elements() const { return bf16_.elements; }

  // The next `count` elements, aligned to 256 bytes. Inputs are random values in (-0.5, 0.5).
  accord::BF16* bf16(int64_t count);
  float* f32(int64_t count);
  void* room(int64_t bytes);  // outputs
  template <class T>
  T* out(int64_t count) {
    return static_cast<T*>(room(count * static_cast<int64_t>(sizeof(T))));
  }
  // The next [n,k] of random weights that the device's quantizer made.
  accord::kernels::cuda::GemmWeight weight(accord::WeightFormat format, int64_t n, int64_t k);

  // Median seconds of a launch, many back to back.
  double seconds(const std::function<void()>& launch) const;
  // Measures the ceilings and prints them; `product_size`: of the square product.
  void measure_ceilings(int64_t product_size);
  // Seconds at the ceiling.
  double ideal_seconds(const Work& work) const { return bound(work).seconds; }
  // "37.7 MB, 12.1 µs, 73 %": what bounds the operation, its time, its share of that ceiling.
  std::string cell(const Measured& measured) const;

 private:
  struct Pool {
    accord::Memory memory;
    int64_t elements = 0;
    int64_t at = 0;
    int64_t next(int64_t count);
  };
  struct Bound {
    double seconds = 0.0;
    bool operations = false;
  };
  Bound bound(const Work& work) const;
  void quantize_pools();

  const gpu_test::Gpu& gpu_;
  Pool bf16_, f32_, room_, weights_;
  accord::Memory mxfp8_, mxfp8_scales_, nvfp4_, nvfp4_scales_, nvfp4_outer_;
  double copy_rate_ = 1.0, read_rate_ = 1.0, product_rate_ = 1.0;
};

// Rows of operations with one column per format, printed as Markdown.
class Table {
 public:
  Table(const Bench& bench, std::string title) : bench_(bench), title_(std::move(title)) {}

  void add(size_t format, const std::string& name, const Measured& measured);
  void add_text(size_t format, const std::string& name, const std::string& text);
  // Seconds of the rows so far: as measured, and at their ceilings.
  double sum(size_t format) const { return sums_[format]; }
  double ideal(size_t format) const { return ideals_[format]; }
  void print(std::span<const std::string> columns) const;

 private:
  struct Row {
    std::string name;
    std::array<std::string, kFormats.size()> cells;
  };
  Row& row(const std::string& name);

  const Bench& bench_;
  std::string title_;
  std::vector<Row> rows_;
  std::array<double, kFormats.size()> sums_{}, ideals_{};
};

}  // namespace layer_bench
