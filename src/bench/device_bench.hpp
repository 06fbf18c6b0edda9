#pragma once
// Times of launches on a device. Operands come from rotating memory, so that each launch finds them outside
// of the cache.
#include <cstdint>
#include <functional>

#include "bench/gpu.hpp"
#include "bench/measure.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

namespace accord::bench {

class DeviceBench {
 public:
  // Rotating memory of `elements` bf16 values (a multiple of 4096) and as many of each other kind.
  DeviceBench(const Gpu& gpu, int64_t elements);

  const Gpu& gpu() const { return gpu_; }
  StreamHandle stream() const { return gpu_.handle(); }
  int64_t num_elements() const { return bf16_.elements; }

  // The next `count` elements, aligned to 256 bytes. Inputs are random values in (-0.5, 0.5).
  BF16* bf16(int64_t count);
  float* f32(int64_t count);
  void* room(int64_t bytes);  // outputs
  template <class T>
  T* out(int64_t count) {
    return static_cast<T*>(room(count * static_cast<int64_t>(sizeof(T))));
  }
  // The next [n,k] of random weights that the device's quantizer made.
  kernels::cuda::GemmWeight weight(WeightFormat format, int64_t n, int64_t k);

  // Median seconds of a launch, many back to back.
  double seconds(const std::function<void()>& launch) const;
  // `product_size`: of the square product.
  void measure_ceilings(int64_t product_size);
  const Ceilings& ceilings() const { return ceilings_; }

 private:
  struct Pool {
    Memory memory;
    int64_t elements = 0;
    int64_t at = 0;
    int64_t next(int64_t count);
  };
  void quantize_pools();

  const Gpu& gpu_;
  Pool bf16_, f32_, room_, weights_;
  Memory mxfp8_, mxfp8_scales_, nvfp4_, nvfp4_scales_, nvfp4_outer_;
  Ceilings ceilings_;
};

// Random bf16 values in (-0.5, 0.5) * scale: the same numbers again and again.
void fill_random(const Gpu& gpu, BF16* values, int64_t count, float scale);

// Rates of a copy and of reading, from memory that the calling thread's device has free for this moment; the
// product's rate stays 0.
Ceilings measure_bandwidth(const Gpu& gpu, int64_t bytes);

}  // namespace accord::bench
