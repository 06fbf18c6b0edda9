#pragma once
// What an operation must move and compute once, the ceilings of the run it was measured in, and its share of
// the one that binds.
#include <array>
#include <cstdint>
#include <string>
#include <vector>

#include "base/weight_format.hpp"

namespace accord::bench {

constexpr double real(int64_t count) { return static_cast<double>(count); }

struct Work {
  double read = 0.0;  // bytes
  double written = 0.0;
  double operations = 0.0;
};

// kSameRead: a plain read of the very weights, measured beside a product of few rows.
enum class Limit : uint8_t { kCopy, kRead, kProduct, kSameRead };
const char* limit_name(Limit limit);

// Rates measured in the same run; 0: not measured.
struct Ceilings {
  double copy = 0.0;     // bytes per second, read and written
  double read = 0.0;     // bytes per second
  double product = 0.0;  // operations per second of a large BF16 product of our own
  int64_t product_size = 0;
  double launch_seconds = 0.0;  // of an operation with next to no work
};
// "copy (read and write) 4.22 TB/s, read 4.44 TB/s, own BF16 8192^3 707 TFLOP/s, a launch 4.1 us"
std::string to_text(const Ceilings& ceilings);

// The time at the ceiling that binds, and which one that is. Little is written (below a tenth of what is
// read): the rate is that of reads. A rate that was not measured binds nothing.
struct Bound {
  double seconds = 0.0;
  Limit limit = Limit::kCopy;
};
Bound bound_of(const Ceilings& ceilings, const Work& work);

// Bytes of `elements` weights with their block scales.
double weight_bytes(WeightFormat format, double elements);

inline constexpr std::array<WeightFormat, 3> kFormats{WeightFormat::kBF16, WeightFormat::kMXFP8,
                                                      WeightFormat::kNVFP4};
const char* format_name(WeightFormat format);  // BF16, MXFP8, NVFP4
std::vector<std::string> format_columns();     // of kFormats

// "37.7 MB", "17.2 GFLOP"; "12.1 us" (below 100), "668 us".
std::string bytes_text(double bytes);
std::string operations_text(double operations);
std::string microseconds_text(double seconds);

}  // namespace accord::bench
