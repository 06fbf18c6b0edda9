// The operations of the trainer's backward (src/trainer/cuda_*_backward_cuda.cpp) and of an optimizer step.
#include <algorithm>

#include "bench/layer_operations.hpp"
#include "kernels/adamw/adamw_cuda.hpp"
#include "kernels/attention/attention_cuda.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/embedding/embedding_backward_cuda.hpp"
#include "kernels/formats/decode_cuda.hpp"
#include "kernels/formats/mxfp8_cuda.hpp"
#include "kernels/formats/nvfp4_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "kernels/logprob/logprob_backward_cuda.hpp"
#include "kernels/moe/moe_backward_cuda.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_backward_cuda.hpp"
#include "kernels/rope/rope_backward_cuda.hpp"
#include "kernels/swiglu/swiglu_backward_cuda.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

class Backward : LayerOperations {
 public:
  Backward(const Run& run, Table& table) : LayerOperations(run, table) {}

  void layer() {
    if (s_.moe) {
      experts();
    } else {
      round("down's gradient to BF16", s_.rows * s_.hidden);
      linear("down", s_.hidden, s_.width, {});
      swiglu();
      linear("gate", s_.width, s_.hidden, {});
      linear("up", s_.width, s_.hidden, {.accumulate = true, .input_made = true});
    }
    norm("second norm", s_.rows, s_.hidden, true);
    round("o's gradient to BF16", s_.rows * s_.hidden);
    linear("o", s_.hidden, s_.q_width, {.bf16 = true});
    attention();
    rope("rotary q", s_.q_width);
    rope("rotary k", s_.kv_width);
    if (config_.qk_norm) {
      norm("q norm", s_.rows * s_.heads, s_.head_dim, false);
      norm("k norm", s_.rows * s_.kv_heads, s_.head_dim, false);
    }
    round("v's gradient to BF16", s_.rows * s_.kv_width);
    linear("q", s_.q_width, s_.hidden, {});
    linear("k", s_.kv_width, s_.hidden, {.accumulate = true, .input_made = true});
    linear("v", s_.kv_width, s_.hidden, {.accumulate = true, .input_made = true});
    norm("norm", s_.rows, s_.hidden, true);
  }

  void head(int64_t rows) {
    const int64_t logits = rows * s_.vocab;
    const Memory ones = bench_.gpu().upload(std::vector<float>(static_cast<size_t>(rows), 1.0F));
    report("logprob", "log-probability", {4 * real(logits), 2 * real(logits), 0}, [&] {
      cuda::logprob_backward(f32_rows(rows, s_.vocab), ones.as<float>(), batch_.tokens.as<int32_t>(),
                             bench_.f32(rows), bench_.f32(rows), bench_.f32(rows), bench_.out<BF16>(logits),
                             bench_.stream());
    });
    dgrad("LM head dX", rows, s_.vocab, s_.hidden, {});
    wgrad("LM head dW", rows, s_.vocab, s_.hidden);
    norm("final norm", rows, s_.hidden, false);
    const double values = real(rows * s_.hidden);
    report("copy", "scatter rows", {4 * values, 4 * values, 0}, [&] {
      cuda::scatter_rows(f32_rows(rows, s_.hidden), batch_.row_ids.as<int32_t>(), out_f32(s_.rows, s_.hidden),
                         bench_.stream());
    });
    embedding();
  }

 private:
  struct Linear {
    bool bf16 = false;
    bool accumulate = false;  // dX is added to
    bool input_made = false;  // the operand of the linear before serves
  };
  bool by_columns() const { return format_ == WeightFormat::kMXFP8; }  // mode `quantized`
  bool dequantized() const { return format_ == WeightFormat::kNVFP4; }

  void round(const std::string& name, int64_t count) {
    report("linear", name, {4 * real(count), 2 * real(count), 0},
           [&] { cuda::round_to_bf16(bench_.f32(count), count, bench_.out<BF16>(count), bench_.stream()); });
  }

  void norm(const std::string& name, int64_t rows, int64_t cols, bool accumulate) {
    const int64_t count = rows * cols;
    const Memory scratch = must(
        Memory::allocate(bench_.gpu().device(),
                         static_cast<size_t>(cuda::rmsnorm_backward_scratch(rows, cols)) * sizeof(float)));
    report("rmsnorm", name,
           {6 * real(count) + (accumulate ? 4 * real(count) : 0), (accumulate ? 4 : 2) * real(count), 0},
           [&] {
             const MatrixView x = bf16_rows(rows, cols);
             const MatrixView dx = accumulate ? out_f32(rows, cols) : out_bf16(rows, cols);
             cuda::rmsnorm_backward(x, bench_.f32(rows), bench_.bf16(cols), bench_.f32(count), dx, accumulate,
                                    bench_.out<float>(cols), scratch.as<float>(), bench_.stream());
           });
  }

  void swiglu() {
    const int64_t count = s_.sorted * s_.width;
    report("swiglu", "swiglu", {8 * real(count), 4 * real(count), 0}, [&] {
      cuda::swiglu_backward(bf16_rows(s_.sorted, s_.width), bf16_rows(s_.sorted, s_.width), bench_.f32(count),
                            bench_.out<BF16>(count), bench_.out<BF16>(count), bench_.stream());
    });
  }

  void rope(const std::string& name, int64_t width) {
    const int64_t count = s_.rows * width;
    const int64_t half = s_.head_dim / 2;
    const bool bf16 = !config_.qk_norm;
    report("rope", name, {4 * real(count), (bf16 ? 2 : 4) * real(count), 0}, [&] {
      const float* const angles = bench_.f32(phase_.length * half);
      cuda::rope_backward(bench_.f32(count), s_.rows, width, batch_.positions.as<int32_t>(),
                          {angles, angles, half}, bf16 ? out_bf16(s_.rows, width) : out_f32(s_.rows, width),
                          bench_.stream());
    });
  }

  void attention() {
    cuda::AttentionBackwardArgs a;
    a.dims = attention_dims(config_);
    a.q_stride = a.out_stride = a.dout_stride = s_.q_width;
    a.k_stride = a.v_stride = s_.kv_width;
    a.num_rows = s_.rows;
    a.tiles = batch_.backward_tiles.as<cuda::AttentionBackwardTile>();
    a.num_tiles = batch_.num_backward_tiles;
    const int64_t q = s_.rows * s_.q_width;
    const int64_t kv = s_.rows * s_.kv_width;
    const double pairs = real(s_.rows) * real(phase_.length + 1) / 2;
    const Work work{6 * real(q) + 4 * real(kv), 4 * real(q) + 8 * real(kv), 10 * pairs * real(s_.q_width)};
    report("attention", "attention", work, [&] {
      a.q = bench_.bf16(q);
      a.k = bench_.bf16(kv);
      a.v = bench_.bf16(kv);
      a.out = bench_.bf16(q);
      a.dout = bench_.bf16(q);
      a.lse = bench_.f32(s_.rows * s_.heads);
      a.delta = bench_.out<float>(s_.rows * s_.heads);
      a.dq = bench_.out<float>(q);
      a.dk = bench_.out<float>(kv);
      a.dv = bench_.out<float>(kv);
      cuda::attention_backward(a, bench_.stream());
    });
  }

  // ---- linears: W [n,k] over rows ------------------------------------------------------------------------

  static cuda::GemmBackward backward(int64_t m, int64_t n, int64_t l, int64_t lda, bool bf16,
                                     bool accumulate) {
    cuda::GemmBackward g;
    g.m = m;
    g.n = n;
    g.l = l;
    g.lda = lda;
    g.ldb = n;
    g.c = {nullptr, n, bf16, accumulate};
    return g;
  }

  void dgrad(const std::string& name, int64_t rows, int64_t n, int64_t k, const Linear& how) {
    cuda::GemmBackward g = backward(rows, k, n, n, how.bf16, how.accumulate);
    const double out = (how.bf16 ? 2 : 4) * real(rows * k);
    const Work work{2 * real(rows * n) + 2 * real(n * k) + (how.accumulate ? out : 0), out,
                    2 * real(rows) * real(n) * real(k)};
    report("gemm", name, work, [&] {
      g.a = bench_.bf16(rows * n);
      g.b = bench_.bf16(n * k);
      g.c.data = bench_.room((how.bf16 ? 2 : 4) * rows * k);
      cuda::gemm_dgrad(g, bench_.stream());
    });
  }

  void wgrad(const std::string& name, int64_t rows, int64_t n, int64_t k) {
    cuda::GemmBackward g = backward(n, k, rows, n, false, true);
    const Work work{2 * real(rows * n) + 2 * real(rows * k) + 4 * real(n * k), 4 * real(n * k),
                    2 * real(rows) * real(n) * real(k)};
    report("gemm", name, work, [&] {
      g.a = bench_.bf16(rows * n);
      g.b = bench_.bf16(rows * k);
      g.c.data = bench_.out<float>(n * k);
      cuda::gemm_wgrad(g, bench_.stream());
    });
  }

  void linear(const std::string& name, int64_t n, int64_t k, const Linear& how) {
    operands(name, s_.rows, s_.rows, n, k, how);
    dgrad(name + " dX", s_.rows, n, k, how);
    wgrad(name + " dW", s_.rows, n, k);
  }

  // What the modes of quantized weights make before the products; `count` weights of [n,k].
  void operands(const std::string& name, int64_t rows, int64_t input_rows, int64_t n, int64_t k,
                const Linear& how, int64_t count = 1, const Routed* routed = nullptr) {
    const std::string weight = name + ": weight as operand";
    const std::string gradient = name + ": gradient as operands";
    const std::string input = name + ": input as operand";
    if (!by_columns() && !dequantized()) {
      absent(weight);
      absent(gradient);
      if (!how.input_made) absent(input);
      return;
    }
    if (dequantized()) {
      decoded_weights(weight, n, k, count);
      absent(gradient);
      if (!how.input_made) rows_operand(input, input_rows, k);
      return;
    }
    const int64_t values = n * k;
    report("linear", weight, {4 * real(count * values), 2 * real(count * values), 0}, [&] {
      for (int64_t i = 0; i < count; ++i) {
        cuda::mxfp8_columns(f32_rows(n, k), nullptr, 0, formats::Element::kE4M3, bench_.out<BF16>(values),
                            bench_.stream());
      }
    });
    rows_and_columns(gradient, rows, n, routed);
    if (how.input_made) return;
    const bool gathers = input_rows != rows;
    report("linear", input, {2 * real(input_rows * k), 2 * real(rows * k), 0}, [&] {
      MatrixView x = bf16_rows(input_rows, k);
      if (gathers) {
        const MatrixView sorted = out_bf16(rows, k);
        cuda::gather_rows(x, routed->tokens.as<int32_t>(), sorted, bench_.stream());
        x = sorted;
      }
      columns(x, routed);
    });
  }

  void columns(MatrixView x, const Routed* routed) {
    cuda::mxfp8_columns(x, routed == nullptr ? nullptr : routed->offsets.as<int32_t>(),
                        routed == nullptr ? 0 : static_cast<int32_t>(s_.experts), formats::Element::kE4M3,
                        bench_.out<BF16>(x.rows * x.cols), bench_.stream());
  }

  void decoded_weights(const std::string& name, int64_t n, int64_t k, int64_t count) {
    const double values = real(count * n * k);
    report("formats", name, {weight_bytes(format_, values), 2 * values, 0}, [&] {
      for (int64_t i = 0; i < count; ++i) {
        const cuda::GemmWeight w = bench_.weight(format_, n, k);
        formats::cuda::dequantize_nvfp4(static_cast<const uint8_t*>(w.data), w.scales, w.outer,
                                        formats::Nvfp4Scope::kTensor, 448, out_bf16(n, k), bench_.stream());
      }
    });
  }

  // Quantized as the forward did, and decoded.
  void rows_operand(const std::string& name, int64_t rows, int64_t cols) {
    const double values = real(rows * cols);
    const double bytes = quantized_bytes(rows * cols);
    report("formats", name, {2 * values + bytes, bytes + 2 * values, 0}, [&] {
      const Codes c = codes(rows, cols);
      quantize_rows(bf16_rows(rows, cols), c);
      formats::cuda::dequantize_nvfp4(c.q, c.scales, c.outer, formats::Nvfp4Scope::kToken, 448,
                                      out_bf16(rows, cols), bench_.stream());
    });
  }

  void rows_and_columns(const std::string& name, int64_t rows, int64_t cols, const Routed* routed) {
    const double values = real(rows * cols);
    const double bytes = quantized_bytes(rows * cols);
    report("linear", name, {4 * values + bytes, bytes + 4 * values, 0}, [&] {
      const MatrixView dy = bf16_rows(rows, cols);
      const Codes c = codes(rows, cols);
      quantize_rows(dy, c);
      formats::cuda::dequantize_mxfp8_rows(c.q, c.scales, formats::Element::kE4M3, out_bf16(rows, cols),
                                           bench_.stream());
      columns(dy, routed);
    });
  }

  // ---- experts -------------------------------------------------------------------------------------------

  void experts() {
    const Routed routed(bench_, config_, s_);
    const double values = real(s_.rows * s_.hidden);
    const double sorted = real(s_.sorted * s_.hidden);
    report("moe", "combine", {4 * values + 2 * sorted, 2 * sorted, 0}, [&] {
      cuda::moe_combine_backward(
          bench_.f32(s_.rows * s_.hidden), s_.hidden, bf16_rows(s_.sorted, s_.hidden),
          routed.tokens.as<int32_t>(), routed.slots.as<int32_t>(), routed.weights.as<float>(), s_.slots,
          bench_.out<BF16>(s_.sorted * s_.hidden), bench_.out<float>(s_.sorted), bench_.stream());
    });
    report("router", "router", {4 * real(s_.rows * s_.experts), 2 * real(s_.rows * s_.experts), 0}, [&] {
      cuda::router_backward(routed.rule, bench_.f32(s_.rows * s_.experts), routed.ids.as<int32_t>(),
                            bench_.f32(s_.sorted), s_.rows, bench_.out<BF16>(s_.rows * s_.experts),
                            bench_.stream());
    });
    dgrad("router dX", s_.rows, s_.experts, s_.hidden, {});
    wgrad("router dW", s_.rows, s_.experts, s_.hidden);
    expert_linear("experts' down", routed, s_.hidden, s_.width, false, {});
    swiglu();
    expert_linear("experts' gate", routed, s_.width, s_.hidden, true, {});
    expert_linear("experts' up", routed, s_.width, s_.hidden, true, {.accumulate = true, .input_made = true});
    report("moe", "dispatch", {4 * sorted + 4 * values, 4 * values, 0}, [&] {
      cuda::moe_dispatch_backward(bench_.f32(s_.sorted * s_.hidden), s_.hidden,
                                  routed.slot_rows.as<int32_t>(), s_.slots, s_.rows,
                                  bench_.out<float>(s_.rows * s_.hidden), bench_.stream());
    });
  }

  void expert_linear(const std::string& name, const Routed& routed, int64_t n, int64_t k, bool gathers,
                     const Linear& how) {
    const int64_t input_rows = gathers ? s_.rows : s_.sorted;
    operands(name, s_.sorted, input_rows, n, k, how, s_.experts, &routed);
    std::vector<cuda::GemmWeight> weights;
    std::vector<void*> outputs;
    for (int64_t e = 0; e < s_.experts; ++e) {
      weights.push_back(bench_.weight(WeightFormat::kBF16, n, k));
      outputs.push_back(bench_.out<float>(n * k));
    }
    const Memory weight_table = bench_.gpu().upload(weights);
    const Memory output_table = bench_.gpu().upload(outputs);
    const double flops = 2 * real(s_.sorted) * real(n) * real(k);
    cuda::GemmGroups groups = routed.groups;
    groups.experts = weight_table.as<cuda::GemmWeight>();
    cuda::GemmBackward dx = backward(s_.sorted, k, n, n, false, how.accumulate);
    dx.groups = &groups;
    const double out = 4 * real(s_.sorted * k);
    report("gemm", name + " dX",
           {2 * real(s_.sorted * n) + 2 * real(routed.used_experts * n * k) + (how.accumulate ? out : 0), out,
            flops},
           [&] {
             dx.a = bench_.bf16(s_.sorted * n);
             dx.c.data = bench_.out<float>(s_.sorted * k);
             cuda::gemm_dgrad(dx, bench_.stream());
           });
    cuda::GemmBackward dw = backward(n, k, 0, n, false, true);
    dw.num_experts = static_cast<int32_t>(s_.experts);
    dw.offsets = routed.offsets.as<int32_t>();
    // Columns are quantized after the gather.
    const bool in_product = gathers && !by_columns();
    dw.b_gather = in_product ? routed.tokens.as<int32_t>() : nullptr;
    dw.outputs = static_cast<void* const*>(output_table.data());
    const double gradients = 4 * real(s_.experts * n * k);
    report("gemm", name + " dW",
           {2 * real(s_.sorted * n) + 2 * real((in_product ? s_.rows : s_.sorted) * k) + gradients, gradients,
            flops},
           [&] {
             dw.a = bench_.bf16(s_.sorted * n);
             dw.b = bench_.bf16((in_product ? s_.rows : s_.sorted) * k);
             cuda::gemm_wgrad(dw, bench_.stream());
           });
  }

  // Every token of the batch once.
  void embedding() {
    std::vector<int32_t> tokens;
    std::vector<int32_t> offsets{0};
    const int64_t different = std::min(s_.rows, s_.vocab);
    for (int64_t i = 0; i < different; ++i) {
      tokens.push_back(static_cast<int32_t>((i * 7919 + 1) % s_.vocab));
      offsets.push_back(static_cast<int32_t>(s_.rows * (i + 1) / different));
    }
    const Memory token_memory = bench_.gpu().upload(tokens);
    const Memory offset_memory = bench_.gpu().upload(offsets);
    const cuda::TokenRows rows{token_memory.as<int32_t>(), offset_memory.as<int32_t>(),
                               batch_.row_ids.as<int32_t>(), static_cast<int32_t>(different)};
    const double table = 4 * real(different * s_.hidden);
    report("embedding", "embedding", {4 * real(s_.rows * s_.hidden) + table, table, 0}, [&] {
      cuda::embedding_backward(rows, bench_.f32(s_.rows * s_.hidden), s_.hidden,
                               bench_.out<float>(s_.vocab * s_.hidden), bench_.stream());
    });
  }
};

}  // namespace

void backward_operations(const Run& run, Table& table) { Backward(run, table).layer(); }
void head_backward_operations(const Run& run, Table& table) { Backward(run, table).head(head_rows(run)); }

}  // namespace accord::bench
