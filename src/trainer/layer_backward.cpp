#include "trainer/layer_backward.hpp"

#include <algorithm>
#include <cmath>

#include "kernels/attention/attention_backward.hpp"
#include "kernels/linear/linear_backward.hpp"
#include "kernels/rope/rope_backward.hpp"
#include "kernels/swiglu/swiglu_backward.hpp"

namespace accord::trainer {

namespace {

MatrixView taped(const Buffer& buffer, Dtype dtype, int64_t rows, int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

}  // namespace

float* LayerBackward::scratch(Buffer& buffer, int64_t count) {
  buffer.ensure(static_cast<size_t>(count) * sizeof(float));
  return buffer.as<float>();
}

const float* LayerBackward::gradient_operand(const float* dx, int64_t count) {
  if (w_.compute_dtype == Dtype::kF32) return dx;
  float* dy = scratch(dy_, count);
  w_.round_into(dx, count, dy);
  return dy;
}

Status LayerBackward::run(int64_t layer, const model::Batch& batch, const model::LayerWeights& weights,
                          MatrixView x_in, const model::KvLayer& kv, const model::LayerTape& tape,
                          float* dx_TH, model::ExpertExchange* exchange) {
  const LayerParams& params = w_.layers[static_cast<size_t>(layer)];
  const int64_t rows = batch.num_rows();
  const int64_t hidden = w_.config.hidden_size;
  if (params.router < 0) {
    if (rows == 0) return absl::OkStatus();
    const RowMlp mlp{params.mlp[0], weights.mlp[0], w_.config.intermediate_size,
                     tape.gate,     tape.up,        tape.act};
    ACCORD_RETURN_IF_ERROR(row_mlp(mlp, tape, rows, dx_TH, scratch(dnorm_, rows * hidden)));
  } else {
    const Status status = experts(params, weights, tape, rows, dx_TH, exchange);
    if (!status.ok()) return annotate(status, fmt::format("backward of the experts of layer {}", layer));
  }
  if (rows == 0) return absl::OkStatus();
  w_.norm_backward(taped(tape.x_mid, w_.compute_dtype, rows, hidden), tape.inv_rms2.as<float>(),
                   weights.post_norm, params.post_norm, dnorm_.as<float>(), dx_TH, true);
  ACCORD_RETURN_IF_ERROR(attention(params, batch, weights, kv, tape, dx_TH));
  w_.norm_backward(x_in, tape.inv_rms1.as<float>(), weights.input_norm, params.input_norm, dnorm_.as<float>(),
                   dx_TH, true);
  return absl::OkStatus();
}

Status LayerBackward::row_mlp(const RowMlp& mlp, const model::LayerTape& tape, int64_t rows,
                              const float* dx_TH, float* dnorm_TH) {
  const int64_t hidden = w_.config.hidden_size;
  const int64_t width = mlp.width;
  const float* dy = gradient_operand(dx_TH, rows * hidden);
  const float* act = w_.operand(taped(mlp.act, w_.compute_dtype, rows, width), act_);
  float* dact = scratch(dact_, rows * width);
  linears_.add({{mlp.params.down, &mlp.weights.down, dy}}, act, rows, dact);
  ACCORD_RETURN_IF_ERROR(linears_.run());

  float* dgate = scratch(dgate_, rows * width);
  const MatrixView gate = taped(mlp.gate, w_.compute_dtype, rows, width);
  const MatrixView up = taped(mlp.up, w_.compute_dtype, rows, width);
  w_.for_rows(rows, [&](int64_t begin, int64_t count) {
    const int64_t at = begin * width;
    kernels::swiglu_backward(gate.slice_rows(begin, count), up.slice_rows(begin, count), dact + at,
                             dgate + at, dact + at);
  });
  w_.round_gradient(dgate, rows * width);
  w_.round_gradient(dact, rows * width);
  const float* norm = w_.operand(taped(tape.norm2, w_.compute_dtype, rows, hidden), norm_);
  linears_.add({{mlp.params.gate, &mlp.weights.gate, dgate}, {mlp.params.up, &mlp.weights.up, dact}}, norm,
               rows, dnorm_TH);
  return linears_.run();
}

Status LayerBackward::attention(const LayerParams& params, const model::Batch& batch,
                                const model::LayerWeights& weights, const model::KvLayer& kv,
                                const model::LayerTape& tape, const float* dx_TH) {
  const ModelConfig& c = w_.config;
  const Dtype dtype = w_.compute_dtype;
  const int64_t rows = batch.num_rows();
  const int64_t hidden = c.hidden_size;
  const int64_t q_width = c.num_heads * c.head_dim;
  const int64_t c_width = c.num_kv_heads * c.head_dim;

  const float* dy = gradient_operand(dx_TH, rows * hidden);
  if (c.has_mla()) {
    return latent_.run(params, batch, weights, kv, tape, dy, scratch(dnorm_, rows * hidden));
  }
  const float* attn = w_.operand(taped(tape.attn, dtype, rows, q_width), attn_);
  float* dattn = scratch(dattn_, rows * q_width);
  linears_.add({{params.o, &weights.o, dy}}, attn, rows, dattn);
  ACCORD_RETURN_IF_ERROR(linears_.run());

  float* dq = scratch(dq_, rows * q_width);
  float* dk = scratch(dk_, rows * c_width);
  float* dv = scratch(dv_, rows * c_width);
  const MatrixView q = taped(tape.q, dtype, rows, q_width);
  const MatrixView out = taped(tape.attn, dtype, rows, q_width);
  w_.pool.parallel_for(static_cast<int64_t>(batch.segments.size()) * c.num_kv_heads, [&](int64_t task) {
    const model::Segment& segment = batch.segments[static_cast<size_t>(task / c.num_kv_heads)];
    const int64_t begin = segment.row_begin;
    const int64_t count = segment.num_rows;
    kernels::AttentionBackward args;
    args.q_NQ = q.slice_rows(begin, count);
    args.k_NC = kv.k.slice_rows(begin, count);  // a packed sequence's cache rows are its batch rows
    args.v_NC = kv.v.slice_rows(begin, count);
    args.out_NQ = out.slice_rows(begin, count);
    args.lse = tape.lse.as<float>() + begin * c.num_heads;
    args.dout_NQ = dattn + begin * q_width;
    args.dq_NQ = dq + begin * q_width;
    args.dk_NC = dk + begin * c_width;
    args.dv_NC = dv + begin * c_width;
    args.num_heads = c.num_heads;
    args.num_kv_heads = c.num_kv_heads;
    args.head_dim = c.head_dim;
    args.scale = 1.0F / std::sqrt(static_cast<float>(c.head_dim));
    const Workspace::Lease lease(w_,
                                 static_cast<size_t>(kernels::attention_backward_scratch(count, c.head_dim)));
    kernels::attention_backward(args, task % c.num_kv_heads, lease.data());
  });

  int32_t last_position = 0;
  for (int32_t p : batch.positions) last_position = std::max(last_position, p);
  w_.rope.ensure(last_position + 1);
  w_.for_rows(rows, [&](int64_t begin, int64_t count) {
    kernels::rope_backward(dq + begin * q_width, count, q_width, batch.positions.data() + begin, w_.rope);
    kernels::rope_backward(dk + begin * c_width, count, c_width, batch.positions.data() + begin, w_.rope);
  });
  if (c.qk_norm) {
    w_.norm_backward(taped(tape.q_raw, dtype, rows * c.num_heads, c.head_dim), tape.inv_rms_q.as<float>(),
                     weights.q_norm, params.q_norm, dq, dq, false);
    w_.norm_backward(taped(tape.k_raw, dtype, rows * c.num_kv_heads, c.head_dim), tape.inv_rms_k.as<float>(),
                     weights.k_norm, params.k_norm, dk, dk, false);
  }
  w_.round_gradient(dq, rows * q_width);
  w_.round_gradient(dk, rows * c_width);
  w_.round_gradient(dv, rows * c_width);

  const float* norm = w_.operand(taped(tape.norm1, dtype, rows, hidden), norm_);
  linears_.add({{params.q, &weights.q, dq}, {params.k, &weights.k, dk}, {params.v, &weights.v, dv}}, norm,
               rows, scratch(dnorm_, rows * hidden));
  return linears_.run();
}

}  // namespace accord::trainer
