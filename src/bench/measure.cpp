#include "bench/measure.hpp"

#include <fmt/format.h>

#include <algorithm>

namespace accord::bench {
namespace {

constexpr double kMostlyRead = 0.1;  // of what is read is written at most

std::string with_unit(double value, const char* const (&units)[4]) {
  const int unit = value >= 1e12 ? 3 : value >= 1e9 ? 2 : value >= 1e6 ? 1 : 0;
  constexpr double kScales[4] = {1e3, 1e6, 1e9, 1e12};
  const double scaled = value / kScales[unit];
  return fmt::format("{:.{}f} {}", scaled, scaled < 10 ? 2 : scaled < 100 ? 1 : 0, units[unit]);
}

}  // namespace

const char* limit_name(Limit limit) {
  switch (limit) {
    case Limit::kCopy:
      return "copy";
    case Limit::kRead:
      return "read";
    case Limit::kProduct:
      return "product";
    case Limit::kSameRead:
      return "a plain read";
  }
  return "";
}

std::string to_text(const Ceilings& c) {
  return fmt::format(
      "copy (read and write) {}/s, read {}/s, own BF16 product of {} squared {}/s, a launch {}",
      bytes_text(c.copy), bytes_text(c.read), c.product_size, operations_text(c.product),
      microseconds_text(c.launch_seconds));
}

Bound bound_of(const Ceilings& ceilings, const Work& work) {
  const bool reads = work.written < kMostlyRead * work.read;
  const double rate = reads ? ceilings.read : ceilings.copy;
  const double moving = rate > 0.0 ? (work.read + work.written) / rate : 0.0;
  const double computing = ceilings.product > 0.0 ? work.operations / ceilings.product : 0.0;
  if (computing > moving) return {computing, Limit::kProduct};
  return {moving, reads ? Limit::kRead : Limit::kCopy};
}

double weight_bytes(WeightFormat format, double elements) {
  switch (format) {
    case WeightFormat::kMXFP8:
      return elements * (1.0 + 1.0 / 32);
    case WeightFormat::kNVFP4:
      return elements * (0.5 + 1.0 / 16);
    default:
      return elements * 2.0;
  }
}

const char* format_name(WeightFormat format) {
  switch (format) {
    case WeightFormat::kMXFP8:
      return "MXFP8";
    case WeightFormat::kNVFP4:
      return "NVFP4";
    default:
      return "BF16";
  }
}

std::vector<std::string> format_columns() {
  std::vector<std::string> columns;
  columns.reserve(kFormats.size());
  for (const WeightFormat format : kFormats) columns.emplace_back(format_name(format));
  return columns;
}

std::string bytes_text(double bytes) { return with_unit(bytes, {"KB", "MB", "GB", "TB"}); }
std::string operations_text(double operations) {
  return with_unit(operations, {"KFLOP", "MFLOP", "GFLOP", "TFLOP"});
}
std::string microseconds_text(double seconds) {
  const double us = seconds * 1e6;
  return fmt::format("{:.{}f} µs", us, us < 100 ? 1 : 0);
}

}  // namespace accord::bench
