#pragma once
// The backward of linear layers, in the recipe's mode (contract, section 5). Linears of format BF16 keep the
// BF16 backward in every mode. The copies that a mode asks for are made here from the tape, the masters and
// the arena, live until the products are done, and no others are made.
#include <initializer_list>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "kernels/formats/element.hpp"
#include "model/forward.hpp"
#include "trainer/matmul.hpp"
#include "trainer/workspace.hpp"

namespace accord::trainer {

// Refuses `quantized` for NVFP4 weights and for rows that its column-wise copies do not divide; names the
// tensor.
Status check_backward(const WeightManifest& manifest, recipe::BackwardMode mode);

// A list of independent groups that run together.
class LinearBackward {
 public:
  explicit LinearBackward(Workspace& workspace) : w_(workspace) {}

  struct Linear {
    int64_t parameter = -1;  // its weight [out,in]
    const model::LinearWeight* weight = nullptr;
    const float* dy = nullptr;  // [rows,out], rounded to the operand dtype
  };
  // Linears that share their input x[rows,in]: dx[rows,in] = sum of dy w in order, and dy^T x is added to
  // each weight's gradient. `rows` are the tokens of one product: of one expert in a mixture of experts. With
  // none nothing happens. Pointers must live until run().
  void add(std::initializer_list<Linear> linears, const float* x, int64_t rows, float* dx);
  Status run();

 private:
  enum class Form : uint8_t {
    kOriginal,       // bf16(master)
    kDecoded,        // bf16(decoded rows of the weight)
    kActivation,     // bf16(decoded Q_row(in)), in the weight's format
    kRows,           // decoded MXFP8 by rows of in
    kColumns,        // decoded MXFP8 by columns of in
    kMasterColumns,  // decoded MXFP8 by columns of bf16(master)
  };
  // Where an operand is: as given, or made by run() in the buffer.
  struct Operand {
    const float* given = nullptr;
    int64_t offset = 0;
  };
  struct Job {
    Form form;
    formats::Element element;
    int64_t parameter;
    const model::LinearWeight* weight;
    const float* in;  // null where the weight is the input
    int64_t row_begin, rows, cols;
    int64_t offset;  // of the operand
  };
  struct Product {
    int64_t parameter, out;
    Operand dgrad_dy, weight, wgrad_dy, x;
  };
  struct Group {
    int64_t rows, in;
    float* dx;
    std::vector<Product> products;
  };

  Operand make(Form form, const Linear& linear, const float* in, int64_t rows, int64_t cols,
               formats::Element element = formats::Element::kE4M3);
  Product plan(const Linear& linear, const float* x, int64_t rows);
  void run_job(const Job& job, float* out);

  Workspace& w_;
  Products products_;
  std::vector<Group> groups_;
  std::vector<Job> jobs_;
  int64_t floats_ = 0;
  Buffer operands_;
  // Of the group being added: its x in the forms made so far.
  struct SharedInput {
    Form form;
    kernels::ActivationFormat format;
    Operand operand;
  };
  std::vector<SharedInput> shared_;
};

}  // namespace accord::trainer
