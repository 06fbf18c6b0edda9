#pragma once
// The first GPU (or ACCORD_TEST_DEVICE), operands in its memory and times of calls, for the programs beside
// this file. Errors end the program with their message.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <vector>

#include "gpu.hpp"

namespace gpu_bench {

using accord::Memory;
using gpu_test::must;

// Ends the program where there is no GPU.
class GpuBench {
 public:
  GpuBench();

  accord::StreamHandle stream() const { return gpu_.handle(); }

  // Normally distributed bf16 values, or bytes for other formats (no NaN codes, moderate scales); 4 MiB of
  // them, repeated.
  Memory random(size_t bytes, bool bf16);
  Memory scales(size_t bytes, uint8_t value) const;
  Memory allocate(size_t bytes) const { return gpu_.allocate(bytes); }
  template <class T>
  Memory upload(const std::vector<T>& x) const {
    return gpu_.upload(x);
  }

  // Median time of one call among batches of calls; call(i) may rotate over its data.
  double milliseconds(const std::function<void(int)>& call) const;
  // Of a copy within the device, in both directions together.
  double copy_bytes_per_second() const;

 private:
  gpu_test::Gpu gpu_;
  std::vector<uint8_t> pieces_[2];
};

}  // namespace gpu_bench
