#pragma once
// Rotary position embedding over the two halves of each head (Hugging Face's rotate_half):
//   y[i]       = x[i] cos(p f_i) - x[i + d/2] sin(p f_i)
//   y[i + d/2] = x[i + d/2] cos(p f_i) + x[i] sin(p f_i)        i < d/2, f_i = theta^(-2i/d)
// computed in fp32 (two products, one sum) and rounded once.
//
// Frequencies and angles are rounded to fp32 as Hugging Face and the inference engines do (at position
// 30,000 that rounding is visible); their cosines are taken in double by libm at start-up.
// Scaling: transformers' rope_type "linear", "llama3" and "yarn" (arXiv 2309.00071); the last multiplies
// cosines and sines by a factor (rope_attention_factor).
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
  float factor() const { return factor_; }

 private:
  int64_t half_;
  int64_t positions_ = 0;
  float factor_;
  std::vector<float> frequencies_;
  std::vector<float> cos_;
  std::vector<float> sin_;
};

// Which numbers of a head turn together: i and i + d/2, or the neighbours 2i and 2i+1 (DeepSeek). The result
// has halves in both cases, as transformers leaves it; queries and keys agree, and only their dots are used.
enum class RopePairs : uint8_t { kHalves, kNeighbours };

// The rotary columns of wider heads: head h of x starts at column h * x_stride, head h of y at h * y_stride.
// x and y do not overlap. Row t turns by positions[t] and goes to row y_rows[t] of y (null: row t).
struct RopeHeads {
  int64_t heads = 0;
  int64_t x_stride = 0;
  int64_t y_stride = 0;
  RopePairs pairs = RopePairs::kHalves;
};
void apply_rope_heads(MatrixView x, const RopeHeads& layout, const int32_t* positions, const RopeTable& table,
                      MatrixView y, const int32_t* y_rows);

// x: [T, heads * head_dim]; y: the same width and dtype, may be x. Row t turns by positions[t] and goes to
// row y_rows[t] of y (null: row t).
void apply_rope(MatrixView x, const int32_t* positions, const RopeTable& table, MatrixView y,
                const int32_t* y_rows);

}  // namespace accord::kernels
