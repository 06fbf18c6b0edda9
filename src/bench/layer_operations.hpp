#pragma once
// What the tables of a layer's forward and backward share.
#include <functional>
#include <string>

#include "bench/operations.hpp"

namespace accord::bench {

class LayerOperations {
 protected:
  LayerOperations(const Run& run, Table& table);

  // Measures the launch and adds its row, where operations of kernels/<op> are wanted.
  void report(const std::string& op, const std::string& name, const Work& work,
              const std::function<void()>& launch);
  void absent(const std::string& name) { table_.add_none(index_, name); }

  // Rows of the rotating memory: read, or written.
  MatrixView bf16_rows(int64_t rows, int64_t cols) {
    return matrix_view(bench_.bf16(rows * cols), rows, cols);
  }
  MatrixView f32_rows(int64_t rows, int64_t cols) { return matrix_view(bench_.f32(rows * cols), rows, cols); }
  MatrixView out_bf16(int64_t rows, int64_t cols) {
    return matrix_view(bench_.out<BF16>(rows * cols), rows, cols);
  }
  MatrixView out_f32(int64_t rows, int64_t cols) {
    return matrix_view(bench_.out<float>(rows * cols), rows, cols);
  }

  // Room for quantized rows.
  struct Codes {
    uint8_t* q;
    uint8_t* scales;
    float* outer;
  };
  Codes codes(int64_t rows, int64_t cols);
  double quantized_bytes(int64_t values) const { return weight_bytes(format_, real(values)); }
  // Activations in this format, which is not BF16; operand: with BF16 that stands for what was stored.
  void quantize_rows(const MatrixView& x, const Codes& to, BF16* operand = nullptr);

  DeviceBench& bench_;
  const ModelConfig& config_;
  const Phase phase_;
  const size_t index_;
  const WeightFormat format_;
  const Sizes s_;
  Table& table_;
  const DeviceBatch batch_;
};

}  // namespace accord::bench
