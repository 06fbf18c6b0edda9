#pragma once
// Rotary position embedding over the two halves of each head (Hugging Face's rotate_half):
//   y[i]       = x[i] cos(p f_i) - x[i + d/2] sin(p f_i)
//   y[i + d/2] = x[i + d/2] cos(p f_i) + x[i] sin(p f_i)        i < d/2, f_i = theta^(-2i/d)
// computed in fp32 (two products, one sum) and rounded once.
//
// Frequencies and angles are rounded to fp32 as Hugging Face and the inference engines do (at position
// 30,000 that rounding is visible); their cosines are taken in double by libm at start-up.
// Llama 3 scaling: transformers' rope_type "llama3".
#include <cstdint>
#include <vector>

#include "base/model_config.hpp"
#include "device/tensor_view.hpp"

namespace accord::kernels {

class RopeTable {
 public:
  RopeTable(int64_t head_dim, double theta, const RopeScaling& scaling);

  // Makes positions [0, count) available. Not to be called while others read.
  void ensure(int64_t count);
  int64_t positions() const { return positions_; }
  int64_t head_dim() const { return 2 * half_; }

  // [head_dim / 2] values each; position < positions().
  const float* cos(int64_t position) const { return cos_.data() + position * half_; }
  const float* sin(int64_t position) const { return sin_.data() + position * half_; }
  const std::vector<float>& frequencies() const { return frequencies_; }

 private:
  int64_t half_;
  int64_t positions_ = 0;
  std::vector<float> frequencies_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

// x: [T, heads * head_dim]; y: the same width and dtype, may be x. Row t turns by positions[t] and goes to
// row y_rows[t] of y (null: row t).
void apply_rope(MatrixView x, const int32_t* positions, const RopeTable& table, MatrixView y,
                const int32_t* y_rows);

}  // namespace accord::kernels
