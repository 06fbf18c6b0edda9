// One transformer layer, in stages that need all rows of the stage before:
//   project   rows    norm, q k v, head norms, rotary; keys and values into the cache
//   attend    rows    attention, o, residual, norm; then the dense MLP, or the router
//   experts   experts gate, up, silu, down on the rows of one expert, here or at its place of the group
//   combine   rows    weighted sum of a token's experts, residual
#include <algorithm>
#include <cassert>
#include <cstring>
#include <optional>

#include "kernels/embedding/embedding.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/moe/moe.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "kernels/router/router.hpp"
#include "kernels/swiglu/swiglu.hpp"
#include "model/expert_mlps.hpp"
#include "model/impl.hpp"
#include "model/latent_attention.hpp"

namespace accord::model {
namespace {

using kernels::Operand;
using kernels::WorkspacePool;

// [T, heads * d] seen as [T * heads, d].
MatrixView by_head(MatrixView x, int64_t d) {
  assert(x.stride == x.cols);
  return {x.data, x.dtype, x.rows * (x.cols / d), d, d};
}

void scatter_rows(MatrixView x, const int32_t* to_rows, MatrixView y) {
  const auto bytes = static_cast<size_t>(x.cols * size_of(x.dtype));
  for (int64_t r = 0; r < x.rows; ++r) {
    std::memcpy(y.slice_rows(to_rows[r], 1).data, x.slice_rows(r, 1).data, bytes);
  }
}

// Turns activations into an operand once per format.
class SharedOperand {
 public:
  SharedOperand(MatrixView x, kernels::Workspace& scratch) : x_(x), scratch_(scratch) {}
  const Operand& of(const kernels::ActivationFormat& format) {
    if (operand_.rows == nullptr || operand_.format != format) {
      operand_ = kernels::make_operand(x_, format, scratch_);
    }
    return operand_;
  }

 private:
  MatrixView x_;
  kernels::Workspace& scratch_;
  Operand operand_;
};

int64_t macs(const LinearWeight& w) { return w.n * w.k; }

// Views of one layer's intermediates; all cover the whole batch.
struct Activations {
  MatrixView norm1, q_raw, k_raw, v, q, attn, branch, x_mid, norm2;
  MatrixView gate, up, act, down;
  MatrixView shared_gate, shared_up, shared_act;
  float* inv_rms1 = nullptr;
  float* inv_rms_q = nullptr;
  float* inv_rms_k = nullptr;
  float* inv_rms2 = nullptr;
  float* lse = nullptr;
};

}  // namespace

// One call of layer_forward.
class LayerRun {
 public:
  LayerRun(Model::Impl& model, int64_t layer, const Batch& batch, const KvLayer& kv, MatrixView x,
           Routing routing, LayerTape& tape)
      : m_(model),
        c_(model.config),
        w_(model.weights.layers[static_cast<size_t>(layer)]),
        moe_(model.config.layer_is_moe[static_cast<size_t>(layer)]),
        mlps_(model, held_mlps(model, w_, moe_)),
        batch_(batch),
        kv_(kv),
        x_(x),
        routing_(routing),
        tape_(tape),
        rows_(batch.num_rows()),
        eps_(static_cast<float>(model.config.rms_norm_eps)) {
    prepare();
  }

  Status run() {
    if (rows_ > 0) {
      attention_and_router();
    }
    if (moe_) {
      ACCORD_RETURN_IF_ERROR(experts());
      m_.for_rows(rows_, rows_ * c_.hidden_size * c_.num_experts_per_token,
                  [this](int64_t b, int64_t e, ThreadPool*) { combine(b, e); });
    }
    return absl::OkStatus();
  }

 private:
  // The experts that this place holds: all of them without a group.
  static std::span<const MlpWeights> held_mlps(const Model::Impl& m, const LayerWeights& w, bool moe) {
    const std::span<const MlpWeights> all = w.mlp;
    return m.exchange == nullptr || !moe ? all
                                         : all.subspan(static_cast<size_t>(m.exchange->first_held()),
                                                       static_cast<size_t>(m.exchange->num_held()));
  }

  // Everything up to the router, and dense layers to the end.
  void attention_and_router() {
    const int64_t projections = latent_ ? latent_->project_work() : macs(w_.q) + macs(w_.k) + macs(w_.v);
    m_.for_rows(rows_, rows_ * projections,
                [this](int64_t b, int64_t e, ThreadPool* inner) { project(b, e, inner); });
    int64_t work = rows_ * macs(w_.o) + attention_work();
    work += rows_ * (moe_ ? macs(w_.router) + 3 * macs(w_.shared.up) : 3 * macs(w_.mlp[0].up));
    work += latent_ ? rows_ * latent_->finish_work() : 0;
    m_.for_rows(rows_, work, [this](int64_t b, int64_t e, ThreadPool* inner) {
      attend(b, e, inner);
      if (moe_) {
        route(b, e, inner);
        shared_experts(b, e, inner);
      } else {
        dense_mlp(b, e, inner);
      }
    });
  }

  void prepare() {
    const Dtype d = m_.dtype;
    const auto floats = [](Buffer& buffer, int64_t count) {
      buffer.ensure(static_cast<size_t>(count) * sizeof(float));
      return buffer.as<float>();
    };
    a_.norm1 = tape_.norm1.matrix(d, rows_, c_.hidden_size);
    a_.inv_rms1 = floats(tape_.inv_rms1, rows_);
    a_.q = tape_.q.matrix(d, rows_, c_.q_width());
    a_.attn = tape_.attn.matrix(d, rows_, c_.attention_width());
    a_.lse = floats(tape_.lse, rows_ * c_.num_heads);
    a_.x_mid = tape_.x_mid.matrix(d, rows_, c_.hidden_size);
    a_.norm2 = tape_.norm2.matrix(d, rows_, c_.hidden_size);
    a_.inv_rms2 = floats(tape_.inv_rms2, rows_);
    a_.branch = m_.branch.matrix(d, rows_, c_.hidden_size);
    if (c_.has_mla()) {
      latent_.emplace(m_, w_, batch_, kv_, tape_, a_.q, a_.attn);
    } else {
      const int64_t kv_width = c_.num_kv_heads * c_.head_dim;
      a_.q_raw = tape_.q_raw.matrix(d, rows_, c_.q_width());
      a_.k_raw = tape_.k_raw.matrix(d, rows_, kv_width);
      a_.v = m_.v.matrix(d, rows_, kv_width);
      if (c_.qk_norm) {
        a_.inv_rms_q = floats(tape_.inv_rms_q, rows_ * c_.num_heads);
        a_.inv_rms_k = floats(tape_.inv_rms_k, rows_ * c_.num_kv_heads);
        m_.k_normed.matrix(d, rows_, kv_width);
      }
    }
    const int64_t width = moe_ ? c_.moe_intermediate_size : c_.intermediate_size;
    const int64_t mlp_rows = moe_ ? rows_ * c_.num_experts_per_token : rows_;
    if (!moe_ || m_.exchange == nullptr) {
      a_.gate = tape_.gate.matrix(d, mlp_rows, width);
      a_.up = tape_.up.matrix(d, mlp_rows, width);
      a_.act = tape_.act.matrix(d, mlp_rows, width);
    }
    if (moe_) {
      prepare_moe(mlp_rows);
    }
  }

  void prepare_moe(int64_t mlp_rows) {
    const auto r = static_cast<size_t>(mlp_rows);
    a_.down = tape_.down.matrix(m_.dtype, mlp_rows, c_.hidden_size);
    tape_.router_probs.matrix(Dtype::kF32, rows_, c_.num_experts);
    tape_.topk_weights.matrix(Dtype::kF32, rows_, c_.num_experts_per_token);
    tape_.topk_ids.resize(r);
    tape_.expert_offsets.resize(static_cast<size_t>(c_.num_experts) + 1);
    tape_.sorted_tokens.resize(r);
    tape_.sorted_slots.resize(r);
    m_.slot_rows.resize(r);
    if (c_.num_shared_experts > 0) {
      a_.shared_gate = tape_.shared_gate.matrix(m_.dtype, rows_, c_.shared_width());
      a_.shared_up = tape_.shared_up.matrix(m_.dtype, rows_, c_.shared_width());
      a_.shared_act = tape_.shared_act.matrix(m_.dtype, rows_, c_.shared_width());
    }
    if (m_.exchange == nullptr) {
      mlps_.set_inputs(a_.norm2);
    }
  }

  int64_t attention_work() const {
    int64_t pairs = 0;
    for (const Segment& s : batch_.segments) {
      pairs += int64_t{s.num_rows} * (s.first_position + (s.num_rows + 1) / 2);
    }
    const kernels::AttentionShape shape = attention_shape();
    return pairs * c_.num_heads * (shape.head_dim + shape.v_head_dim);
  }

  kernels::AttentionShape attention_shape() const {
    if (latent_) {
      return latent_->shape();
    }
    return {c_.num_heads, c_.num_kv_heads, c_.head_dim, c_.head_dim};
  }

  static void linear(SharedOperand& x, const LinearWeight& w, MatrixView y, ThreadPool* inner,
                     WorkspacePool& scratch) {
    kernels::linear(x.of(w.activation_format()), w, y, inner, scratch);
  }

  void project(int64_t begin, int64_t end, ThreadPool* inner) {
    const int64_t n = end - begin;
    const MatrixView norm1 = a_.norm1.slice_rows(begin, n);
    if (latent_) {
      kernels::rms_norm(x_.slice_rows(begin, n), w_.input_norm, eps_, norm1, a_.inv_rms1 + begin);
      latent_->project(norm1, begin, end, inner);
      return;
    }
    const MatrixView q_raw = a_.q_raw.slice_rows(begin, n);
    const MatrixView k_raw = a_.k_raw.slice_rows(begin, n);
    const MatrixView v = a_.v.slice_rows(begin, n);
    const MatrixView q = a_.q.slice_rows(begin, n);
    kernels::rms_norm(x_.slice_rows(begin, n), w_.input_norm, eps_, norm1, a_.inv_rms1 + begin);
    {
      const WorkspacePool::Lease lease = m_.scratch.acquire();
      SharedOperand operand(norm1, *lease);
      linear(operand, w_.q, q_raw, inner, m_.scratch);
      linear(operand, w_.k, k_raw, inner, m_.scratch);
      linear(operand, w_.v, v, inner, m_.scratch);
    }
    MatrixView q_in = q_raw;
    MatrixView k_in = k_raw;
    if (c_.qk_norm) {
      const int64_t d = c_.head_dim;
      q_in = q;
      k_in = MatrixView{m_.k_normed.data(), m_.dtype, rows_, k_raw.cols, k_raw.cols}.slice_rows(begin, n);
      kernels::rms_norm(by_head(q_raw, d), w_.q_norm, eps_, by_head(q_in, d),
                        a_.inv_rms_q + begin * c_.num_heads);
      kernels::rms_norm(by_head(k_raw, d), w_.k_norm, eps_, by_head(k_in, d),
                        a_.inv_rms_k + begin * c_.num_kv_heads);
    }
    const int32_t* positions = batch_.positions.data() + begin;
    const int32_t* kv_rows = batch_.kv_rows.data() + begin;
    kernels::apply_rope(q_in, positions, m_.rope, q, nullptr);
    kernels::apply_rope(k_in, positions, m_.rope, kv_.k, kv_rows);
    scatter_rows(v, kv_rows, kv_.v);
  }

  void attend(int64_t begin, int64_t end, ThreadPool* inner) {
    const kernels::AttentionShape shape = attention_shape();
    const int64_t heads = shape.num_kv_heads;
    const MatrixView query = latent_ ? latent_->query() : a_.q;
    const MatrixView attended = latent_ ? latent_->attended() : a_.attn;
    const auto one = [&](int64_t i) {
      const formats::IeeeMode ieee;
      const Segment& s = batch_.segments[static_cast<size_t>(i / heads)];
      const int64_t from = std::max<int64_t>(begin, s.row_begin);
      const int64_t to = std::min<int64_t>(end, int64_t{s.row_begin} + s.num_rows);
      if (from < to) {
        const WorkspacePool::Lease lease = m_.scratch.acquire();
        kernels::attention(query, kv_, s, from, to, i % heads, shape, attended, a_.lse, *lease);
      }
    };
    const int64_t tasks = static_cast<int64_t>(batch_.segments.size()) * heads;
    if (inner != nullptr && attention_work() >= kParallelWork) {
      inner->parallel_for(tasks, std::ref(one));
    } else {
      for (int64_t i = 0; i < tasks; ++i) one(i);
    }
    if (latent_) {
      latent_->finish(begin, end, inner);
    }
    const int64_t n = end - begin;
    const MatrixView branch = a_.branch.slice_rows(begin, n);
    const MatrixView x_mid = a_.x_mid.slice_rows(begin, n);
    {
      const WorkspacePool::Lease lease = m_.scratch.acquire();
      SharedOperand operand(a_.attn.slice_rows(begin, n), *lease);
      linear(operand, w_.o, branch, inner, m_.scratch);
    }
    kernels::add_rows(x_.slice_rows(begin, n), branch, x_mid);
    kernels::rms_norm(x_mid, w_.post_norm, eps_, a_.norm2.slice_rows(begin, n), a_.inv_rms2 + begin);
  }

  void dense_mlp(int64_t begin, int64_t end, ThreadPool* inner) {
    const int64_t n = end - begin;
    mlp_branch(w_.mlp[0], {a_.gate, a_.up, a_.act}, begin, end, inner);
    kernels::add_rows(a_.x_mid.slice_rows(begin, n), a_.branch.slice_rows(begin, n), x_.slice_rows(begin, n));
  }

  void shared_experts(int64_t begin, int64_t end, ThreadPool* inner) {
    if (c_.num_shared_experts > 0) {
      mlp_branch(w_.shared, {a_.shared_gate, a_.shared_up, a_.shared_act}, begin, end, inner);
    }
  }

  // x = x_mid + (experts + shared experts), each sum rounded, as transformers adds them.
  void combine(int64_t begin, int64_t end) {
    const float* weights = tape_.topk_weights.as<float>();
    const int64_t k = c_.num_experts_per_token;
    const bool shared = c_.num_shared_experts > 0;
    kernels::combine_experts(shared ? a_.branch : a_.x_mid, a_.down, weights, m_.slot_rows.data(), k, begin,
                             end, shared ? a_.branch : x_);
    if (shared) {
      const int64_t n = end - begin;
      kernels::add_rows(a_.x_mid.slice_rows(begin, n), a_.branch.slice_rows(begin, n),
                        x_.slice_rows(begin, n));
    }
  }

  // branch = an MLP of norm2 that every row passes.
  struct MlpRows {
    MatrixView gate, up, act;
  };
  void mlp_branch(const MlpWeights& mlp, const MlpRows& rows, int64_t begin, int64_t end, ThreadPool* inner) {
    const int64_t n = end - begin;
    const MatrixView gate = rows.gate.slice_rows(begin, n);
    const MatrixView up = rows.up.slice_rows(begin, n);
    const MatrixView act = rows.act.slice_rows(begin, n);
    const MatrixView branch = a_.branch.slice_rows(begin, n);
    const WorkspacePool::Lease lease = m_.scratch.acquire();
    SharedOperand operand(a_.norm2.slice_rows(begin, n), *lease);
    linear(operand, mlp.gate, gate, inner, m_.scratch);
    linear(operand, mlp.up, up, inner, m_.scratch);
    kernels::swiglu(gate, up, act);
    SharedOperand act_operand(act, *lease);
    linear(act_operand, mlp.down, branch, inner, m_.scratch);
  }

  void route(int64_t begin, int64_t end, ThreadPool* inner) {
    const int64_t n = end - begin;
    const int64_t experts = c_.num_experts;
    const int64_t k = c_.num_experts_per_token;
    const MatrixView norm2 = a_.norm2.slice_rows(begin, n);
    float* probs = tape_.router_probs.as<float>() + begin * experts;
    const WorkspacePool::Lease lease = m_.scratch.acquire();
    kernels::linear(kernels::make_operand(norm2, w_.router.activation_format(), *lease), w_.router,
                    matrix_view(probs, n, experts), inner, m_.scratch);
    const kernels::RouterRule rule = kernels::router_rule(c_);
    lease->tile.ensure(static_cast<size_t>(rule.experts + rule.groups) * sizeof(float));
    for (int64_t t = 0; t < n; ++t) {
      float* row = probs + t * experts;
      int32_t* ids = tape_.topk_ids.data() + (begin + t) * k;
      kernels::router_scores(rule, row, row);
      if (routing_.replay.empty()) {
        kernels::router_choose(rule, row, w_.router_bias, ids, lease->tile.as<float>());
      } else {
        std::copy_n(routing_.replay.data() + (begin + t) * k, k, ids);
      }
      kernels::router_weights(rule, row, ids, tape_.topk_weights.as<float>() + (begin + t) * k);
    }
    if (m_.exchange == nullptr) {
      mlps_.make_operands(begin, end, *lease);
    }
  }

  Status experts() {
    if (routing_.record != nullptr) {
      routing_.record->assign(tape_.topk_ids.begin(), tape_.topk_ids.end());
    }
    kernels::sort_by_expert(tape_.topk_ids, c_.num_experts, c_.num_experts_per_token,
                            {tape_.expert_offsets.data(), tape_.sorted_tokens.data(),
                             tape_.sorted_slots.data(), m_.slot_rows.data()});
    if (m_.exchange != nullptr) {
      return exchanged_experts();
    }
    mlps_.run({tape_.sorted_tokens, tape_.expert_offsets, a_.gate, a_.up, a_.act, a_.down});
    return absl::OkStatus();
  }

  // norm2 rows to their experts' places, and the outputs back.
  Status exchanged_experts() {
    ExpertExchange& exchange = *m_.exchange;
    ExchangePlan& plan = tape_.exchange;
    ACCORD_RETURN_IF_ERROR(exchange.plan(tape_.expert_offsets, plan));
    const int64_t hidden = c_.hidden_size;
    const int64_t row_bytes = hidden * size_of(m_.dtype);
    const auto homes = static_cast<int64_t>(tape_.sorted_tokens.size());
    const int64_t count = plan.num_arrived();

    const MatrixView leaving = m_.leaving.matrix(m_.dtype, homes, hidden);
    m_.for_rows(homes, homes * hidden, [&](int64_t begin, int64_t end, ThreadPool*) {
      for (int64_t r = begin; r < end; ++r) {
        std::memcpy(leaving.slice_rows(r, 1).data,
                    a_.norm2.slice_rows(tape_.sorted_tokens[static_cast<size_t>(r)], 1).data,
                    static_cast<size_t>(row_bytes));
      }
    });
    const MatrixView arrived = tape_.arrived.matrix(m_.dtype, count, hidden);
    ACCORD_RETURN_IF_ERROR(exchange.to_owners(plan, leaving.data, row_bytes, arrived.data));

    mlps_.set_inputs(arrived);
    m_.for_rows(count, count * hidden, [&](int64_t begin, int64_t end, ThreadPool*) {
      const WorkspacePool::Lease lease = m_.scratch.acquire();
      mlps_.make_operands(begin, end, *lease);
    });
    const int64_t width = c_.moe_intermediate_size;
    const MatrixView down = m_.owner_down.matrix(m_.dtype, count, hidden);
    mlps_.run({plan.order, plan.expert_offsets, tape_.gate.matrix(m_.dtype, count, width),
               tape_.up.matrix(m_.dtype, count, width), tape_.act.matrix(m_.dtype, count, width), down});

    const MatrixView returning = m_.leaving.matrix(m_.dtype, count, hidden);
    m_.for_rows(count, count * hidden, [&](int64_t begin, int64_t end, ThreadPool*) {
      to_arrival_order(plan, down.data, row_bytes, begin, end, returning.data);
    });
    return exchange.to_homes(plan, returning.data, row_bytes, a_.down.data);
  }

  Model::Impl& m_;
  const ModelConfig& c_;
  const LayerWeights& w_;
  const bool moe_;
  ExpertMlps mlps_;
  const Batch& batch_;
  const KvLayer& kv_;
  MatrixView x_;
  Routing routing_;
  LayerTape& tape_;
  const int64_t rows_;
  const float eps_;
  Activations a_;
  std::optional<LatentAttention> latent_;
};

Status Model::layer_forward(int64_t layer, const Batch& batch, const KvLayer& kv, MatrixView x_TH,
                            Routing routing, LayerTape* tape) {
  Impl& m = *impl_;
  if (batch.num_rows() > 0) {
    m.rope.ensure(int64_t{*std::max_element(batch.positions.begin(), batch.positions.end())} + 1);
  } else if (m.exchange == nullptr) {
    return absl::OkStatus();
  }
  const Status status =
      LayerRun(m, layer, batch, kv, x_TH, routing, tape == nullptr ? m.own_tape : *tape).run();
  return status.ok() ? status : annotate(status, fmt::format("experts of layer {}", layer));
}

}  // namespace accord::model
