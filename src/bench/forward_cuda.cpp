// The operations of src/model/cuda_layer_cuda.cpp.
#include <algorithm>

#include "bench/launches.hpp"
#include "bench/layer_operations.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/rope/rope_cuda.hpp"
#include "kernels/router/router_cuda.hpp"
#include "kernels/sampler/sampler_cuda.hpp"
#include "kernels/swiglu/swiglu_cuda.hpp"

namespace accord::bench {

namespace cuda = kernels::cuda;

namespace {

constexpr float kEps = 1e-6F;
constexpr int64_t kWeightTables = 4;
constexpr int64_t kLogitsElements = int64_t{1} << 27;  // of the trainer's chunk
constexpr int64_t kMaxHeadRows = 4096;

class Forward : LayerOperations {
 public:
  Forward(const Run& run, Table& table) : LayerOperations(run, table), keep_(!run.phase.decode) {}

  void layer() {
    // A decode step's dense layers leave their last sum to the next layer's norm.
    const bool summed = phase_.decode && !s_.moe;
    norm(summed ? "sum and norm, quantized" : "norm, quantized", s_.rows, {.fuse = true, .sum = summed});
    projections("q, k and v", {s_.q_width, s_.kv_width, s_.kv_width}, s_.hidden);
    rope();
    attention();
    quantize("quantize attention", s_.rows, s_.q_width);
    projections("o", {s_.hidden}, s_.q_width);
    norm("sum and second norm, quantized", s_.rows, {.fuse = true, .sum = true, .keep = s_.moe});
    if (s_.moe) {
      experts();
      return;
    }
    projections("gate and up", {s_.width, s_.width}, s_.hidden);
    swiglu();
    projections("down", {s_.hidden}, s_.width);
    if (!summed) add("second sum");
  }

  void head(int64_t rows) {
    const int64_t values = rows * s_.hidden;
    report("embedding", "embedding rows", {2 * real(values), 2 * real(values), 0}, [&] {
      cuda::embed_rows(bench_.bf16(s_.vocab * s_.hidden), batch_.tokens.as<int32_t>(), rows,
                       out_bf16(rows, s_.hidden), bench_.stream());
    });
    report("moe", "gather rows", {2 * real(values), 2 * real(values), 0}, [&] {
      cuda::gather_rows(bf16_rows(s_.rows, s_.hidden), batch_.row_ids.as<int32_t>(),
                        out_bf16(rows, s_.hidden), bench_.stream());
    });
    norm("final norm", rows, {});
    product("LM head", WeightFormat::kBF16, rows, s_.vocab, s_.hidden, /*bf16=*/false);
    const double logits = 4 * real(rows * s_.vocab);
    if (phase_.decode) {
      const Memory requests =
          bench_.gpu().upload(std::vector<cuda::DrawRequest>(static_cast<size_t>(rows), {.random = 1}));
      report("sampler", "draw", {logits, 0, 0}, [&] {
        cuda::draw_tokens(f32_rows(rows, s_.vocab), requests.as<cuda::DrawRequest>(),
                          bench_.out<cuda::DrawResult>(rows), bench_.stream());
      });
      return;
    }
    const Memory ones = bench_.gpu().upload(std::vector<float>(static_cast<size_t>(rows), 1.0F));
    report("logprob", "log-probability", {logits, 0, 0}, [&] {
      cuda::token_logprobs(f32_rows(rows, s_.vocab), ones.as<float>(), batch_.tokens.as<int32_t>(),
                           bench_.out<float>(rows), bench_.out<float>(rows), bench_.stream());
    });
  }

 private:
  bool quantized() const { return format_ != WeightFormat::kBF16; }

  // Products take BF16 that stands for what was stored: written with it.
  double operand_bytes(int64_t values) const { return quantized_bytes(values) + 2 * real(values); }

  struct Norm {
    bool fuse = false;  // with the quantizer of this format, when it has one
    bool sum = false;   // of two inputs, which is written too
    bool keep = false;  // the normed rows in any case
  };
  void norm(const std::string& name, int64_t rows, const Norm& kind) {
    const double values = real(rows * s_.hidden);
    const bool fused = kind.fuse && quantized();
    const bool writes = keep_ || kind.keep || !fused;
    const Work work{(kind.sum ? 4 : 2) * values,
                    (writes ? 2 * values : 0) + (kind.sum ? 2 * values : 0) +
                        (fused ? operand_bytes(rows * s_.hidden) : 0),
                    0};
    report("rmsnorm", name, work, [&] {
      const MatrixView x = bf16_rows(rows, s_.hidden);
      MatrixView y = out_bf16(rows, s_.hidden);
      if (!writes) y.data = nullptr;
      const BF16* const weight = bench_.bf16(s_.hidden);
      auto* const inv_rms = bench_.out<float>(rows);
      const Codes c = codes(rows, s_.hidden);
      auto* const operand = bench_.out<BF16>(rows * s_.hidden);
      cuda::Residual residual;
      if (kind.sum) residual = {bf16_rows(rows, s_.hidden), out_bf16(rows, s_.hidden)};
      if (!fused) {
        cuda::rms_norm(x, weight, kEps, y, inv_rms, bench_.stream(), residual);
      } else if (format_ == WeightFormat::kMXFP8) {
        cuda::rms_norm_mxfp8(x, weight, kEps, y, inv_rms, c.q, c.scales, bench_.stream(), operand, residual);
      } else {
        cuda::rms_norm_nvfp4(x, weight, kEps, y, inv_rms, {c.q, c.scales, c.outer}, FourOverSix::kNone, 448,
                             bench_.stream(), operand, residual);
      }
    });
  }

  void swiglu() {
    const int64_t rows = s_.sorted;
    const double values = real(rows * s_.width);
    const bool writes = keep_ || !quantized();
    const Work work{4 * values,
                    (writes ? 2 * values : 0) + (quantized() ? operand_bytes(rows * s_.width) : 0), 0};
    report("swiglu", "swiglu, quantized", work, [&] {
      const MatrixView gate = bf16_rows(rows, s_.width);
      const MatrixView up = bf16_rows(rows, s_.width);
      MatrixView y = out_bf16(rows, s_.width);
      if (!writes) y.data = nullptr;
      const Codes c = codes(rows, s_.width);
      auto* const operand = bench_.out<BF16>(rows * s_.width);
      if (!quantized()) {
        cuda::swiglu(gate, up, y, bench_.stream());
      } else if (format_ == WeightFormat::kMXFP8) {
        cuda::swiglu_mxfp8(gate, up, y, c.q, c.scales, bench_.stream(), operand);
      } else {
        cuda::swiglu_nvfp4(gate, up, y, {c.q, c.scales, c.outer}, FourOverSix::kNone, 448, bench_.stream(),
                           operand);
      }
    });
  }

  void quantize(const std::string& name, int64_t rows, int64_t cols) {
    if (!quantized()) {
      absent(name);
      return;
    }
    report("formats", name, {2 * real(rows * cols), operand_bytes(rows * cols), 0},
           [&] { quantize_rows(bf16_rows(rows, cols), codes(rows, cols), bench_.out<BF16>(rows * cols)); });
  }

  void product(const std::string& name, WeightFormat format, int64_t rows, int64_t n, int64_t k, bool bf16) {
    Product launch(bench_, format, rows, n, k, bf16);
    report("gemm", name, launch.work(), [&] { launch(); });
  }
  // Of one input.
  void projections(const std::string& name, const std::vector<int64_t>& widths, int64_t k) {
    int64_t n = 0;
    for (const int64_t width : widths) n += width;
    const Work work{weight_bytes(format_, real(n * k)) + 2 * real(s_.rows * k), 2 * real(s_.rows * n),
                    2 * real(s_.rows) * real(n) * real(k)};
    report("gemm", name, work, [&] {
      std::vector<cuda::GemmForward> products;
      products.reserve(widths.size());
      cuda::GemmForward g = forward_product(format_, s_.rows, n, k, true);
      g.a = bench_.bf16(s_.rows * k);
      g.a_outer = format_ == WeightFormat::kNVFP4 ? bench_.f32(s_.rows) : nullptr;
      g.b_at_rest = true;
      for (const int64_t width : widths) {
        g.n = width;
        g.b = bench_.weight(format_, width, k);
        g.c = {bench_.room(2 * s_.rows * width), width, true, false};
        products.push_back(g);
      }
      cuda::gemm_forward_together(products, bench_.stream());
    });
  }

  void rope() {
    const int64_t half = s_.head_dim / 2;
    const int64_t positions = phase_.length;
    const double values = real(s_.rows * (s_.q_width + 2 * s_.kv_width));
    const std::string name = config_.qk_norm ? "norms of q and k, rotary, k and v into the cache"
                                             : "rotary q and k, k and v into the cache";
    report("rope", name, {2 * values, 2 * values, 0}, [&] {
      const float* const angles = bench_.f32(positions * half);
      cuda::HeadNorms norms;
      if (config_.qk_norm) {
        const BF16* const weight = bench_.bf16(s_.head_dim);
        norms = {weight, weight, kEps, bench_.out<float>(s_.rows * s_.heads),
                 bench_.out<float>(s_.rows * s_.kv_heads)};
      }
      cuda::rope_to_cache(
          {bf16_rows(s_.rows, s_.q_width), bf16_rows(s_.rows, s_.kv_width), bf16_rows(s_.rows, s_.kv_width),
           out_bf16(s_.rows, s_.q_width), out_bf16(phase_.cache_rows(), s_.kv_width),
           out_bf16(phase_.cache_rows(), s_.kv_width), batch_.positions.as<int32_t>(),
           batch_.rows.as<int32_t>(), norms},
          {angles, angles, half}, bench_.stream());
    });
  }

  void attention() {
    Attention launch(bench_, config_, phase_, batch_);
    report("attention", "attention", launch.work(), [&] { launch(); });
  }

  void add(const std::string& name) {
    const double values = real(s_.rows * s_.hidden);
    report("embedding", name, {4 * values, 2 * values, 0}, [&] {
      cuda::add_rows(bf16_rows(s_.rows, s_.hidden), bf16_rows(s_.rows, s_.hidden),
                     out_bf16(s_.rows, s_.hidden), bench_.stream());
    });
  }

  void experts() {
    const Routed routed(bench_, config_, s_);
    const int64_t hidden = s_.hidden;
    product("router", WeightFormat::kBF16, s_.rows, s_.experts, hidden, false);
    const double scores = 4 * real(s_.rows * s_.experts);
    const double ids = 4 * real(s_.sorted);
    report("router", "route", {scores, scores + 2 * ids, 0}, [&] {
      auto* const out = bench_.out<float>(s_.rows * s_.experts);
      cuda::route(routed.rule, bench_.f32(s_.rows * s_.experts), s_.rows, nullptr, false, out,
                  bench_.out<int32_t>(s_.sorted), bench_.out<float>(s_.sorted), bench_.stream());
    });
    report("moe", "sort by expert", {ids, 3 * ids, 0}, [&] {
      cuda::sort_by_expert(routed.ids.as<int32_t>(), s_.sorted, s_.experts, s_.slots,
                           {bench_.out<int32_t>(s_.experts + 1), bench_.out<int32_t>(s_.sorted),
                            bench_.out<int32_t>(s_.sorted), bench_.out<int32_t>(s_.sorted)},
                           routed.scratch.as<int32_t>(), bench_.stream());
    });
    report("gemm", "list of tiles", {4 * real(s_.experts + 1), 12 * real(routed.list_size), 0}, [&] {
      cuda::build_group_tiles(routed.offsets.as<int32_t>(), static_cast<int32_t>(s_.experts),
                              routed.groups.tile_rows, bench_.out<cuda::GroupTile>(routed.list_size),
                              bench_.out<int32_t>(1), bench_.stream());
    });
    grouped("experts' gate and up", routed, s_.width, hidden, true, 2);
    swiglu();
    grouped("experts' down", routed, hidden, s_.width, false, 1);
    const double values = real(s_.rows * hidden);
    report("moe", "combine", {2 * values + 2 * real(s_.sorted * hidden), 2 * values, 0}, [&] {
      cuda::combine_experts(bf16_rows(s_.rows, hidden), bf16_rows(s_.sorted, hidden),
                            routed.weights.as<float>(), routed.slot_rows.as<int32_t>(), s_.slots,
                            out_bf16(s_.rows, hidden), bench_.stream());
    });
  }

  void grouped(const std::string& name, const Routed& routed, int64_t n, int64_t k, bool gather,
               int products) {
    ExpertProduct launch(bench_, format_, s_, routed, n, k, gather, kWeightTables, products);
    report("gemm", name, launch.work(), [&] { launch(); });
  }

  const bool keep_;
};

}  // namespace

int64_t head_rows(const Run& run) {
  if (run.phase.decode) return run.phase.rows;
  return std::min({kLogitsElements / run.config.vocab_size, kMaxHeadRows, run.phase.rows});
}

void forward_operations(const Run& run, Table& table) { Forward(run, table).layer(); }
void head_operations(const Run& run, Table& table) { Forward(run, table).head(head_rows(run)); }

}  // namespace accord::bench
