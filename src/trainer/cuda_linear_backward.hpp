#pragma once
// linear_backward.hpp on CUDA, in stream order: products of BF16 operands (gemm_cuda.hpp) that are made in
// the recipe's mode (kernels/linear/linear_backward.hpp has the table) and live until the product is done.
// Gradients of weights are added to in fp32.
//
// Operands share one block of memory, the gradient of the weight's first, then that of the input's; large
// ones are made in pieces, of columns of the weight and of the output's gradient, each followed by its
// product: an output of a product depends on its own row and column alone, so pieces change no bit.
#include <cstdint>
#include <initializer_list>
#include <optional>
#include <span>

#include "kernels/formats/element.hpp"
#include "kernels/gemm/gemm_cuda.hpp"
#include "model/forward.hpp"
#include "trainer/cuda_scratch.hpp"

namespace accord::trainer {

// Refuses a linear weight whose shape the products do not take; names it.
Status check_cuda_backward(const ModelConfig& config);

// Where the gradient of an input goes: contiguous, fp32 or bf16.
struct CudaInputGradient {
  void* data = nullptr;
  bool bf16 = false;        // of one linear alone
  bool accumulate = false;  // adds to what is there; fp32
};

class CudaLinearBackward {
 public:
  explicit CudaLinearBackward(const CudaContext& context);

  struct Linear {
    int64_t parameter = -1;  // its weight [out,in]
    const model::LinearWeight* weight = nullptr;
    // [rows,out], contiguous. Consumed: where the mode quantizes it by rows, that is done in place.
    BF16* dy = nullptr;
    // Null: the gradient is added to the parameter's in fp32. Else it goes here, rounded once.
    BF16* bf16_gradient = nullptr;
  };
  // Linears that share their input x [rows,in] (contiguous): dx = sum of dy w in order.
  Status run(std::initializer_list<Linear> linears, const BF16* x, int64_t rows, CudaInputGradient dx);

  // Sorted rows of all experts of a layer, as the forward's tape has them.
  struct ExpertRows {
    int64_t rows = 0;
    int32_t num_experts = 0;
    const int32_t* offsets = nullptr;        // [E + 1]
    kernels::cuda::GemmGroups groups;        // the tape's tiles; experts and gather are set here
    const int32_t* sorted_tokens = nullptr;  // where x has a row per token; null: x is sorted
    int64_t tokens = 0;                      // rows of x then
  };
  // One projection of all experts: weights of one shape and format.
  struct ExpertLinear {
    std::span<const int64_t> parameters;           // [E]
    std::span<const model::LinearWeight> weights;  // [E]
    const void* bf16_weights = nullptr;            // CudaModel::ExpertWeights' table, of BF16 weights
    void* const* gradients = nullptr;              // [E] device table
    BF16* dy = nullptr;                            // [rows,out], sorted; consumed
  };
  // The gradient of an expert without rows stays as it is. dx is sorted.
  Status run_experts(std::initializer_list<ExpertLinear> linears, const BF16* x, const ExpertRows& rows,
                     CudaInputGradient dx);

  int64_t bytes() const { return scratch_.bytes() + frame_.bytes(); }

 private:
  // Of the call under way: x as the last linear's mode wants it.
  struct SharedInput {
    std::optional<kernels::ActivationFormat> format;
    const BF16* values = nullptr;
  };
  struct Groups {  // of rows that are quantized by columns on their own; none: all rows are one
    const int32_t* offsets = nullptr;
    int32_t count = 0;
  };

  // A linear whose outputs are no multiple of 8 (a router of a few experts), with zeros up to one.
  Status run_padded(const Linear& linear, const BF16* x, int64_t rows, CudaInputGradient dx);
  void weight_product(const Linear& linear, int64_t rows, const BF16* x);
  Status input_product(const Linear& linear, int64_t rows, CudaInputGradient dx);

  recipe::BackwardMode mode_of(const model::LinearWeight& weight) const;
  formats::Element element_of(int64_t parameter) const;
  // Whether bf16 of what the mode multiplies dy with lies somewhere already: original() then.
  bool has_original(int64_t parameter, const model::LinearWeight& w) const;
  // Columns [first, first + count) of it, contiguous; all of them where bf16(master) is asked for.
  void make_weight(int64_t parameter, const model::LinearWeight& w, int64_t first, int64_t count, BF16* out);
  StatusOr<const kernels::cuda::GemmWeight*> expert_table(const ExpertLinear& linear);

  // Bytes of the frame that a call takes at most.
  int64_t frame_bytes(std::initializer_list<Linear> linears, int64_t rows) const;
  int64_t input_bytes(const model::LinearWeight& w, int64_t rows) const;
  int64_t input_scratch(const model::LinearWeight& w, int64_t rows) const;
  int64_t weight_product_bytes(const Linear& linear, int64_t rows) const;
  int64_t input_product_bytes(const Linear& linear, int64_t rows) const;
  // x for the weights' gradients, into `out`.
  void make_input(const model::LinearWeight& w, const BF16* x, int64_t rows, Groups groups, BF16* out,
                  SharedInput& shared);
  void decode_rows(const BF16* x, int64_t rows, int64_t cols, const kernels::ActivationFormat& format,
                   BF16* out);
  void quantize_in_place(BF16* dy, int64_t rows, int64_t cols, formats::Element element);

  const CudaContext& c_;
  CudaScratch scratch_;
  CudaFrame frame_;
  // The table of experts' weights in scratch: where they start, and their stride.
  const BF16* table_of_ = nullptr;
  int64_t table_stride_ = 0;
  int64_t table_count_ = 0;
};

}  // namespace accord::trainer
