#include "bench/roofline.hpp"

#include <cmath>

#include "bench/random_policy.hpp"
#include "bench/shapes.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::bench;

namespace {

constexpr double kBandwidth = 4.3e12;
constexpr double kContext = 2048;

StepBytes bytes_of(const Shape& shape, const std::string& format) {
  const RandomPolicy policy = planned_policy(shape.config, format).value();
  return step_bytes(policy.config, policy.manifest, 2).value();
}

}  // namespace

TEST_CASE("decode rooflines of Qwen3-30B-A3B at 4.3 TB/s and 2k context") {
  const Shape shape = find_shape("qwen3-30b-a3b").value();
  // docs/hardware.md, from the formula with 2.46 GB of dense weights.
  struct Row {
    double batch;
    double tokens[3];
  };
  const Row rows[] = {{1, {684, 949, 1168}},
                      {8, {1253, 2133, 3231}},
                      {32, {2311, 3930, 5946}},
                      {128, {6385, 9470, 12360}},
                      {256, {9830, 13121, 15657}}};
  const char* const formats[] = {"bf16", "mxfp8", "nvfp4"};
  for (int f = 0; f < 3; ++f) {
    const StepBytes bytes = bytes_of(shape, formats[f]);
    CAPTURE(formats[f]);
    CHECK(std::abs(bytes.dense - 2.46e9) < 0.005e9);
    CHECK(bytes.cache_row == 98304);
    for (const Row& row : rows) {
      CAPTURE(row.batch);
      CHECK(std::abs(bytes.tokens_per_second(row.batch, kContext, kBandwidth) / row.tokens[f] - 1.0) < 0.001);
    }
  }
}

TEST_CASE("coverage is the expected share of the experts") {
  const StepBytes bytes = bytes_of(find_shape("qwen3-30b-a3b").value(), "bf16");
  CHECK(std::abs(bytes.coverage(1) * 128 - 8.0) < 1e-9);
  CHECK(std::abs(bytes.coverage(8) * 128 - 128 * (1 - std::pow(120.0 / 128, 8))) < 1e-9);
  CHECK(bytes.coverage(100000) == 1.0);
  CHECK(std::abs(bytes.experts - 48.0 * 128 * 3 * 2048 * 768 * 2) < 1.0);
}

TEST_CASE("a dense model reads everything, and a tied table once") {
  const Shape shape = find_shape("smollm2-135m").value();
  const StepBytes bytes = bytes_of(shape, "bf16");
  CHECK(bytes.experts == 0.0);
  double all = 0.0;
  for (const ParamSpec& spec : parameter_specs(shape.config)) all += 2.0 * static_cast<double>(spec.numel());
  CHECK(bytes.dense == all);
  CHECK(bytes.cache_row == 30 * 2 * 3 * 64 * 2);
  // Eight bits and a scale per 32 in place of 16 bits, but for the table and the norms.
  const StepBytes mxfp8 = bytes_of(shape, "mxfp8");
  const double table = 49152.0 * 576 * 2;
  const double norms = 61.0 * 576 * 2;
  CHECK(std::abs(mxfp8.dense - (table + norms + (all - table - norms) * 33 / 64)) < 1.0);
}

TEST_CASE("an embedding table of its own is not read, and layers can be fewer") {
  const Shape shape = find_shape("qwen3-30b-a3b").value();
  const Shape half{"half", with_layers(shape.config, 24)};
  const StepBytes all = bytes_of(shape, "nvfp4");
  const StepBytes some = bytes_of(half, "nvfp4");
  CHECK(some.experts * 2 == all.experts);
  CHECK(some.cache_row * 2 == all.cache_row);
  const double head = 151936.0 * 2048 * 2 + 2048 * 2;  // and the final norm
  CHECK(std::abs((some.dense - head) * 2 - (all.dense - head)) < 1.0);
}
