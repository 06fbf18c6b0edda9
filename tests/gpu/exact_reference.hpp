#pragma once
// Operands in every weight format and what products of them must be, from the CPU's exact mode.
#include <cstdint>
#include <string>
#include <vector>

#include "base/dtype.hpp"
#include "base/weight_format.hpp"
#include "gpu.hpp"
#include "kernels/gemm/gemm_cuda.hpp"

namespace gpu_test {

// normal: standard; heavy: normal / (uniform + small)^2; cancelling: pairs x, -x(1 + tiny); positive; tiny:
// near the smallest normal bf16; subnormal: bf16 subnormals among normal values.
enum class Data { kNormal, kHeavy, kCancelling, kPositive, kTiny, kSubnormal };
constexpr Data kAllData[] = {Data::kNormal,   Data::kHeavy, Data::kCancelling,
                             Data::kPositive, Data::kTiny,  Data::kSubnormal};
const char* name_of(Data data);
std::vector<float> make_data(Data data, int64_t rows, int64_t cols, uint64_t seed);

// A weight [n,k] as it lies in an arena, and its decoded operand values.
struct TestWeight {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  float outer = 1.0F;
  std::vector<accord::BF16> decoded;  // [n,k] what the tensor cores see
};
TestWeight make_weight(accord::WeightFormat format, const std::vector<float>& values, int64_t n, int64_t k);

// Activations [m,k], quantized per token in `format`.
struct TestActivations {
  std::vector<uint8_t> data;
  std::vector<uint8_t> scales;
  std::vector<float> outer;
  std::vector<accord::BF16> decoded;
};
TestActivations make_activations(accord::WeightFormat format, const std::vector<float>& values, int64_t m,
                                 int64_t k);

// [m,n] of chains, k padded with zeros to a multiple of 16; over all threads of the machine.
std::vector<float> exact_products(const std::vector<accord::BF16>& a, const std::vector<accord::BF16>& b,
                                  int64_t m, int64_t n, int64_t k);
// docs/contract.md, section 4, in place.
void nvfp4_epilogue(std::vector<float>& c, int64_t m, int64_t n, const std::vector<float>& a_outer,
                    float b_outer);

std::vector<accord::BF16> to_bf16(const std::vector<float>& x);
std::vector<accord::BF16> transposed(const std::vector<accord::BF16>& x, int64_t rows, int64_t cols);

constexpr accord::WeightFormat kFormats[] = {accord::WeightFormat::kBF16, accord::WeightFormat::kMXFP8,
                                             accord::WeightFormat::kNVFP4};
const char* name_of(accord::WeightFormat format);

struct DeviceWeight {
  accord::Memory data, scales, outer;
  accord::kernels::cuda::GemmWeight weight() const {
    return {data.data(), scales.as<uint8_t>(), outer.as<float>()};
  }
};
DeviceWeight upload(const Gpu& gpu, const TestWeight& w);

// Prints one line and checks that nothing differs.
void report(const char* what, const std::string& detail, int64_t wrong, size_t outputs);

}  // namespace gpu_test
