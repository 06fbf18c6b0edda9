// One transformer layer on the device; the stages are layer.cpp's.
#include <algorithm>
#include <functional>
#include <initializer_list>
#include <span>

#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/router/router.hpp"
#include "kernels/router/router_cuda.hpp"
#include "model/cuda_impl.hpp"

namespace accord::model {
namespace {

namespace cuda = kernels::cuda;
using kernels::ActivationFormat;

// [T, heads * d] seen as [T * heads, d].
MatrixView by_head(MatrixView x, int64_t d) { return {x.data, x.dtype, x.rows * (x.cols / d), d, d}; }

class LayerRun {
 public:
  LayerRun(CudaModel::Impl& model, int64_t layer, const KvLayer& kv, MatrixView x, CudaRouting routing,
           CudaLayerTape& tape, bool keep, bool next_follows)
      : m_(model),
        layer_(layer),
        c_(model.config),
        w_(model.weights.layers[static_cast<size_t>(layer)]),
        moe_(model.config.layer_is_moe[static_cast<size_t>(layer)]),
        experts_(model.experts[static_cast<size_t>(layer)]),
        kv_(kv),
        x_(x),
        routing_(routing),
        t_(tape),
        keep_(keep),
        next_follows_(next_follows),
        rows_(model.batch.rows),
        eps_(static_cast<float>(model.config.rms_norm_eps)),
        stream_(model.handle()) {}

  void run() {
    attention();
    m_.sum_due_in = -1;
    if (moe_) {
      experts();
    } else {
      const LinearWeight& first = w_.mlp[0].gate;
      const bool shared_format = first.activation_format() == w_.mlp[0].up.activation_format();
      const auto norm = [&](int64_t begin, int64_t count) {
        return norm2(begin, count, first.activation_format(), !shared_format);
      };
      mlp(norm, w_.mlp[0], {t_.gate, t_.up, t_.act}, c_.intermediate_size);
      end_with(bf16(t_.x_mid, c_.hidden_size));
    }
  }

 private:
  struct MlpRows {
    DeviceBuffer &gate, &up, &act;
  };

  MatrixView bf16(const DeviceBuffer& buffer, int64_t cols) const {
    return buffer.matrix(Dtype::kBF16, rows_, cols);
  }

  // x = x_mid + branch, or so the next layer's norm.
  void end_with(MatrixView x_mid) {
    if (next_follows_) {
      m_.sum_due_in = layer_ + 1;
    } else {
      cuda::add_rows(x_mid, bf16(m_.branch, c_.hidden_size), x_, stream_);
    }
  }

  // The operand of rows [begin, begin + count) of norm(x), and of the layer before's sum, where it is due.
  CudaOperand norm1(int64_t begin, int64_t count, const ActivationFormat& format, bool keep) {
    const auto rows = [&](const DeviceBuffer& buffer) {
      return bf16(buffer, c_.hidden_size).slice_rows(begin, count);
    };
    const MatrixView x = x_.slice_rows(begin, count);
    const bool due = m_.sum_due_in == layer_;
    cuda::Residual residual;
    if (due) residual = {rows(m_.branch), x};
    return m_.linears.norm_operand(due ? rows(t_.x_mid) : x, w_.input_norm, eps_, rows(t_.norm1),
                                   t_.inv_rms1.as<float>() + begin, format, keep, residual);
  }

  // The operand for another format than the one at hand is made from the BF16 rows.
  void linears(CudaOperand& operand, MatrixView values, std::initializer_list<CudaLinears::Output> outputs) {
    const auto fits = [&](const CudaLinears::Output& out) {
      return out.weight->activation_format() == operand.format;
    };
    if (std::all_of(outputs.begin(), outputs.end(), fits)) return m_.linears.linears(operand, outputs);
    for (const CudaLinears::Output& out : outputs) {
      if (!fits(out)) operand = m_.linears.operand(values, out.weight->activation_format());
      m_.linears.linear(operand, *out.weight, out.y);
    }
  }

  static bool one_format(std::initializer_list<const LinearWeight*> weights) {
    const ActivationFormat format = (*weights.begin())->activation_format();
    return std::all_of(weights.begin(), weights.end(),
                       [&](const LinearWeight* w) { return w->activation_format() == format; });
  }

  void attention() {
    MatrixView query = bf16(t_.q, c_.q_width());
    MatrixView attended = bf16(t_.attn, c_.attention_width());
    if (c_.has_mla()) {
      norm1(0, rows_, {}, true);
      const CudaLatent latent = project_latent(m_, w_, kv_, t_);
      query = latent.query;
      attended = latent.attended;
    } else {
      project(query);
    }
    m_.attend(query, kv_, attended, t_.lse.as<float>());
    if (c_.has_mla()) finish_latent(m_, w_, t_);
    const MatrixView attn = bf16(t_.attn, c_.attention_width());
    const MatrixView branch = bf16(m_.branch, c_.hidden_size);
    for_tiles(w_.o, [&](int64_t begin, int64_t count) {
      m_.linears.linear(m_.linears.operand(attn.slice_rows(begin, count), w_.o.activation_format()), w_.o,
                        branch.slice_rows(begin, count));
    });
  }

  void project(MatrixView q) {
    const int64_t kv_width = c_.num_kv_heads * c_.head_dim;
    MatrixView q_in = bf16(t_.q_raw, c_.q_width());
    MatrixView k_in = bf16(t_.k_raw, kv_width);
    const MatrixView v = bf16(m_.v, kv_width);
    const bool keep = keep_ || !one_format({&w_.q, &w_.k, &w_.v});
    for_tiles(w_.k, [&](int64_t begin, int64_t count) {
      const MatrixView norm = bf16(t_.norm1, c_.hidden_size).slice_rows(begin, count);
      CudaOperand operand = norm1(begin, count, w_.q.activation_format(), keep);
      linears(operand, norm,
              {{&w_.q, q_in.slice_rows(begin, count)},
               {&w_.k, k_in.slice_rows(begin, count)},
               {&w_.v, v.slice_rows(begin, count)}});
    });
    cuda::HeadNorms norms;
    if (c_.qk_norm && cuda::normalizes_heads(c_.head_dim)) {
      norms = {w_.q_norm, w_.k_norm, eps_, t_.inv_rms_q.as<float>(), t_.inv_rms_k.as<float>()};
    } else if (c_.qk_norm) {
      const MatrixView k_normed = bf16(m_.k_normed, kv_width);
      cuda::rms_norm(by_head(q_in, c_.head_dim), w_.q_norm, eps_, by_head(q, c_.head_dim),
                     t_.inv_rms_q.as<float>(), stream_);
      cuda::rms_norm(by_head(k_in, c_.head_dim), w_.k_norm, eps_, by_head(k_normed, c_.head_dim),
                     t_.inv_rms_k.as<float>(), stream_);
      q_in = q;
      k_in = k_normed;
    }
    const CudaBatch& batch = m_.batch;
    cuda::rope_to_cache({q_in, k_in, v, q, kv_.k, kv_.v, batch.positions, batch.kv_rows, norms},
                        m_.rope_view(), stream_);
  }

  // `narrowest`: of the products of a tile. Operands of BF16 weights are the rows themselves.
  void for_tiles(const LinearWeight& narrowest, const std::function<void(int64_t, int64_t)>& body) const {
    if (narrowest.format == WeightFormat::kBF16) {
      body(0, rows_);
    } else {
      CudaLinears::for_tiles(rows_, narrowest.n, body);
    }
  }

  // Of rows [begin, begin + count), of x_mid = x + attention's branch, which is written with it.
  CudaOperand norm2(int64_t begin, int64_t count, const ActivationFormat& format, bool keep) {
    const auto rows = [&](const DeviceBuffer& buffer) {
      return bf16(buffer, c_.hidden_size).slice_rows(begin, count);
    };
    return m_.linears.norm_operand(x_.slice_rows(begin, count), w_.post_norm, eps_, rows(t_.norm2),
                                   t_.inv_rms2.as<float>() + begin, format, keep_ || keep,
                                   {rows(m_.branch), rows(t_.x_mid)});
  }

  // branch = an MLP of norm2 that every row passes; `input`: the operand of some rows.
  void mlp(const std::function<CudaOperand(int64_t, int64_t)>& input, const MlpWeights& mlp,
           const MlpRows& rows, int64_t width) {
    const MatrixView norm = bf16(t_.norm2, c_.hidden_size);
    const MatrixView gate = bf16(rows.gate, width);
    const MatrixView up = bf16(rows.up, width);
    const MatrixView act = bf16(rows.act, width);
    const MatrixView branch = bf16(m_.branch, c_.hidden_size);
    for_tiles(mlp.gate, [&](int64_t begin, int64_t count) {
      CudaOperand operand = input(begin, count);
      linears(operand, norm.slice_rows(begin, count),
              {{&mlp.gate, gate.slice_rows(begin, count)}, {&mlp.up, up.slice_rows(begin, count)}});
    });
    for_tiles(mlp.down, [&](int64_t begin, int64_t count) {
      const CudaOperand operand =
          m_.linears.swiglu_operand(gate.slice_rows(begin, count), up.slice_rows(begin, count),
                                    act.slice_rows(begin, count), mlp.down.activation_format(), keep_);
      m_.linears.linear(operand, mlp.down, branch.slice_rows(begin, count));
    });
  }

  void route(MatrixView norm) {
    const int64_t experts = c_.num_experts;
    const MatrixView scores = t_.router_probs.matrix(Dtype::kF32, rows_, experts);
    m_.linears.linear(m_.linears.operand(norm, w_.router.activation_format()), w_.router, scores);
    auto* ids = t_.topk_ids.as<int32_t>();
    const auto bytes = static_cast<size_t>(rows_ * c_.num_experts_per_token) * sizeof(int32_t);
    const bool replayed = routing_.replay != nullptr;
    if (replayed) m_.copy_on_device(ids, routing_.replay, bytes);
    cuda::route(kernels::router_rule(c_), scores.row<float>(0), rows_, w_.router_bias, replayed,
                scores.row<float>(0), ids, t_.topk_weights.as<float>(), stream_);
    if (routing_.record != nullptr) m_.copy_on_device(routing_.record, ids, bytes);
  }

  void experts() {
    const int64_t hidden = c_.hidden_size;
    const int64_t width = c_.moe_intermediate_size;
    const int64_t k = c_.num_experts_per_token;
    const int64_t sorted = rows_ * k;
    const std::span<const MlpWeights> weights(w_.mlp);
    const MlpWeights& any = weights[0];
    const MatrixView norm = bf16(t_.norm2, hidden);
    // The experts' operand, and the rows themselves for the router.
    CudaOperand operand = norm2(0, rows_, any.gate.activation_format(), true);
    route(norm);
    if (w_.router.activation_format().format != WeightFormat::kBF16) {  // it has taken the operand's place
      operand = m_.linears.operand(norm, any.gate.activation_format());
    }
    auto* const offsets = t_.expert_offsets.as<int32_t>();
    const kernels::ExpertOrder order{offsets, t_.sorted_tokens.as<int32_t>(), t_.sorted_slots.as<int32_t>(),
                                     t_.slot_rows.as<int32_t>()};
    cuda::sort_by_expert(t_.topk_ids.as<int32_t>(), sorted, c_.num_experts, k, order,
                         m_.sort_scratch.as<int32_t>(), stream_);

    cuda::GemmGroups groups;
    groups.tiles = t_.group_tiles.as<cuda::GroupTile>();
    groups.num_tiles = t_.num_group_tiles.as<int32_t>();
    groups.tile_rows = cuda::group_tile_rows(sorted, c_.num_experts);
    groups.max_tiles = cuda::group_tiles_bound(sorted, c_.num_experts, groups.tile_rows);
    cuda::build_group_tiles(offsets, static_cast<int32_t>(c_.num_experts), groups.tile_rows,
                            t_.group_tiles.as<cuda::GroupTile>(), t_.num_group_tiles.as<int32_t>(), stream_);
    m_.linears.begin_experts(weights, {offsets, c_.num_experts, sorted});

    const auto matrix = [&](const DeviceBuffer& b, int64_t cols) {
      return b.matrix(Dtype::kBF16, sorted, cols);
    };
    const MatrixView gate = matrix(t_.gate, width);
    const MatrixView up = matrix(t_.up, width);
    const auto product = [&](LinearWeight MlpWeights::*part, const cuda::GemmWeight* table, MatrixView y) {
      cuda::GemmGroups of_part = groups;
      of_part.experts = table;
      return CudaLinears::ExpertOutput{part, of_part, experts_.has_fragments(any.*part), y};
    };
    const auto multiply = [&](std::initializer_list<CudaLinears::ExpertOutput> outputs) {
      m_.linears.grouped(operand, weights, outputs);
      groups.at_rest = true;  // the list was made right before the first product
    };
    groups.gather = order.sorted_tokens;
    if (any.gate.activation_format() == any.up.activation_format()) {
      CudaLinears::ExpertOutput second = product(&MlpWeights::up, experts_.up, up);
      second.groups.at_rest = true;  // behind the first, if they run in turn
      multiply({product(&MlpWeights::gate, experts_.gate, gate), second});
    } else {
      multiply({product(&MlpWeights::gate, experts_.gate, gate)});
      operand = m_.linears.operand(norm, any.up.activation_format());
      multiply({product(&MlpWeights::up, experts_.up, up)});
    }
    groups.gather = nullptr;
    operand = m_.linears.swiglu_operand(gate, up, matrix(t_.act, width), any.down.activation_format(), keep_);
    const MatrixView down = matrix(t_.down, hidden);
    multiply({product(&MlpWeights::down, experts_.down, down)});

    // x = x_mid + (experts + shared experts), each sum rounded, as transformers adds them.
    const MatrixView x_mid = bf16(t_.x_mid, hidden);
    const MatrixView branch = bf16(m_.branch, hidden);
    const bool shared = c_.num_shared_experts > 0;
    if (shared) {
      const auto input = [&](int64_t begin, int64_t count) {
        return m_.linears.operand(norm.slice_rows(begin, count), w_.shared.gate.activation_format());
      };
      mlp(input, w_.shared, {t_.shared_gate, t_.shared_up, t_.shared_act}, c_.shared_width());
    }
    cuda::combine_experts(shared ? branch : x_mid, down, t_.topk_weights.as<float>(), order.slot_rows, k,
                          shared ? branch : x_, stream_);
    if (shared) end_with(x_mid);
  }

  CudaModel::Impl& m_;
  const int64_t layer_;
  const ModelConfig& c_;
  const LayerWeights& w_;
  const bool moe_;
  const CudaExperts& experts_;
  const KvLayer& kv_;
  const MatrixView x_;
  const CudaRouting routing_;
  CudaLayerTape& t_;
  const bool keep_;
  const bool next_follows_;
  const int64_t rows_;
  const float eps_;
  const StreamHandle stream_;
};

}  // namespace

void run_layer(CudaModel::Impl& model, int64_t layer, const KvLayer& kv, MatrixView x, CudaRouting routing,
               CudaLayerTape& tape, bool keep, bool next_follows) {
  LayerRun(model, layer, kv, x, routing, tape, keep, next_follows).run();
}

}  // namespace accord::model
