#include "trainer/latent_attention_backward.hpp"

#include <algorithm>

#include "kernels/attention/attention_backward.hpp"
#include "kernels/rope/rope_backward.hpp"

namespace accord::trainer {

namespace {

MatrixView taped(const Buffer& buffer, Dtype dtype, int64_t rows, int64_t cols) {
  return {buffer.data(), dtype, rows, cols, cols};
}

}  // namespace

float* LatentAttentionBackward::scratch(Buffer& buffer, int64_t count) {
  buffer.ensure(static_cast<size_t>(count) * sizeof(float));
  return buffer.as<float>();
}

void LatentAttentionBackward::gather_heads(const float* in, int64_t stride, int64_t first, int64_t count,
                                           int64_t rows, float* out) {
  const int64_t heads = w_.config.num_heads;
  w_.for_rows(rows, [&](int64_t begin, int64_t n) {
    for (int64_t t = begin; t < begin + n; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(in + (t * heads + h) * stride + first, count, out + (h * rows + t) * count);
      }
    }
  });
}

void LatentAttentionBackward::scatter_heads(const float* in, int64_t stride, int64_t first, int64_t count,
                                            int64_t rows, float* out) {
  const int64_t heads = w_.config.num_heads;
  w_.for_rows(rows, [&](int64_t begin, int64_t n) {
    for (int64_t t = begin; t < begin + n; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(in + (h * rows + t) * count, count, out + (t * heads + h) * stride + first);
      }
    }
  });
}

Status LatentAttentionBackward::run(const LayerParams& params, const model::Batch& batch,
                                    const model::LayerWeights& weights, const model::KvLayer& kv,
                                    const model::LayerTape& tape, const float* dy_TH, float* dnorm_TH) {
  const ModelConfig& c = w_.config;
  const Call call{params, batch, weights, kv, tape, batch.num_rows()};
  const MatrixView attn_view = taped(tape.attn, w_.compute_dtype, call.rows, c.attention_width());
  const float* attn = w_.operand(attn_view, attn_);
  float* dattn = scratch(dattn_, call.rows * c.attention_width());
  linears_.add({{params.o, &weights.o, dy_TH}}, attn, call.rows, dattn);
  ACCORD_RETURN_IF_ERROR(linears_.run());

  int32_t last_position = 0;
  for (int32_t p : batch.positions) last_position = std::max(last_position, p);
  w_.rope.ensure(last_position + 1);
  scratch(dq_, call.rows * c.q_width());
  scratch(dkv_a_, call.rows * (c.mla.kv_lora_rank + c.mla.qk_rope_head_dim));
  scratch(dlatent_, call.rows * c.mla.kv_lora_rank);
  ACCORD_RETURN_IF_ERROR(c.absorbed() ? absorbed(call) : plain(call));
  return projections(call, dnorm_TH);
}

// dq of the queries that attended in raw_dq_, dk_, dv_.
void LatentAttentionBackward::attention(const Call& call, MatrixView q, MatrixView out, const float* dout,
                                        int64_t kv_heads, int64_t head_dim, int64_t v_dim) {
  const ModelConfig& c = w_.config;
  const int64_t q_width = c.num_heads * head_dim;
  const int64_t out_width = c.num_heads * v_dim;
  float* dq = scratch(raw_dq_, call.rows * q_width);
  float* dk = scratch(dk_, call.rows * kv_heads * head_dim);
  float* dv = scratch(dv_, call.rows * kv_heads * v_dim);
  const int64_t tasks = static_cast<int64_t>(call.batch.segments.size()) * kv_heads;
  w_.pool.parallel_for(tasks, [&](int64_t task) {
    const model::Segment& segment = call.batch.segments[static_cast<size_t>(task / kv_heads)];
    const int64_t begin = segment.row_begin;
    const int64_t count = segment.num_rows;
    kernels::AttentionBackward args;
    args.q_NQ = q.slice_rows(begin, count);
    args.k_NC = call.kv.k.slice_rows(begin, count);  // a packed sequence's cache rows are its batch rows
    args.v_NC = call.kv.v.slice_rows(begin, count);
    args.out_NQ = out.slice_rows(begin, count);
    args.lse = call.tape.lse.as<float>() + begin * c.num_heads;
    args.dout_NQ = dout + begin * out_width;
    args.dq_NQ = dq + begin * q_width;
    args.dk_NC = dk + begin * kv_heads * head_dim;
    args.dv_NC = dv + begin * kv_heads * v_dim;
    args.num_heads = c.num_heads;
    args.num_kv_heads = kv_heads;
    args.head_dim = head_dim;
    args.v_head_dim = v_dim;
    args.scale = static_cast<float>(attention_scale(c));
    const auto floats = kernels::attention_backward_scratch(count, std::max(head_dim, v_dim));
    const Workspace::Lease lease(w_, static_cast<size_t>(floats));
    kernels::attention_backward(args, task % kv_heads, lease.data());
  });
}

Status LatentAttentionBackward::plain(const Call& call) {
  const ModelConfig& c = w_.config;
  const MlaConfig& mla = c.mla;
  const int64_t heads = c.num_heads;
  const int64_t nope = mla.qk_nope_head_dim, qk = mla.qk_head_dim(), v = mla.v_head_dim;
  const int64_t expanded_width = heads * (nope + v);
  const int64_t kv_a_width = mla.kv_lora_rank + mla.qk_rope_head_dim;
  attention(call, taped(call.tape.q, w_.compute_dtype, call.rows, c.q_width()),
            taped(call.tape.attn, w_.compute_dtype, call.rows, c.attention_width()), dattn_.as<float>(),
            heads, qk, v);
  const float* raw_dq = raw_dq_.as<float>();
  const float* dk = dk_.as<float>();
  const float* dv = dv_.as<float>();
  float* dq = dq_.as<float>();
  float* dexpanded = scratch(dexpanded_, call.rows * expanded_width);
  const auto pairs = mla.rope_interleave ? kernels::RopePairs::kNeighbours : kernels::RopePairs::kHalves;
  w_.for_rows(call.rows, [&](int64_t begin, int64_t count) {
    for (int64_t t = begin; t < begin + count; ++t) {
      for (int64_t h = 0; h < heads; ++h) {
        std::copy_n(raw_dq + (t * heads + h) * qk, nope, dq + (t * heads + h) * qk);
        float* to = dexpanded + (t * heads + h) * (nope + v);
        std::copy_n(dk + (t * heads + h) * qk, nope, to);
        std::copy_n(dv + (t * heads + h) * v, v, to + nope);
      }
    }
    const int32_t* positions = call.batch.positions.data() + begin;
    const int64_t width = c.q_width();
    kernels::rope_heads_backward(
        {{heads, qk, qk, pairs}, raw_dq + begin * width, width, nope, dq + begin * width, width, nope}, count,
        positions, w_.rope);
    kernels::rope_heads_backward({{heads, 0, qk, pairs},
                                  dk + begin * width,
                                  width,
                                  nope,
                                  dkv_a_.as<float>() + begin * kv_a_width,
                                  kv_a_width,
                                  mla.kv_lora_rank},
                                 count, positions, w_.rope);
  });
  w_.round_gradient(dexpanded, call.rows * expanded_width);
  const MatrixView latent_view = taped(call.tape.mla.latent, w_.compute_dtype, call.rows, mla.kv_lora_rank);
  const float* latent = w_.operand(latent_view, latent_);
  linears_.add({{call.params.mla.kv_b, &call.weights.kv_b, dexpanded}}, latent, call.rows,
               dlatent_.as<float>());
  return linears_.run();
}

// da = do W_UV per head, and W_UV's gradient.
Status LatentAttentionBackward::output_products(const Call& call, const float* kv_b, float* dattn_latent) {
  const ModelConfig& c = w_.config;
  const int64_t nope = c.mla.qk_nope_head_dim, v = c.mla.v_head_dim, rank = c.mla.kv_lora_rank;
  const int64_t rows = call.rows;
  float* gradient = w_.parameters.gradient(call.params.mla.kv_b).data();
  w_.round_gradient(dattn_.as<float>(), rows * c.attention_width());
  float* dy = scratch(heads_dy_, rows * c.attention_width());
  gather_heads(dattn_.as<float>(), v, 0, v, rows, dy);
  const MatrixView view = taped(call.tape.mla.attn_latent, w_.compute_dtype, rows, c.num_heads * rank);
  float* x = scratch(heads_x_, rows * c.num_heads * rank);
  gather_heads(w_.operand(view, wide_), rank, 0, rank, rows, x);
  float* dx = scratch(heads_dx_, rows * c.num_heads * rank);
  for (int64_t h = 0; h < c.num_heads; ++h) {
    const int64_t at = (h * (nope + v) + nope) * rank;
    products_.add_rows({{dy + h * rows * v, kv_b + at, v}}, rows, rank, dx + h * rows * rank);
    products_.add_gradient(dy + h * rows * v, x + h * rows * rank, rows, v, rank, gradient + at);
  }
  ACCORD_RETURN_IF_ERROR(products_.run(w_.pool));
  scatter_heads(dx, rank, 0, rank, rows, dattn_latent);
  return absl::OkStatus();
}

// The part of dq that does not turn, and W_UK's gradient.
Status LatentAttentionBackward::query_products(const Call& call, const float* kv_b, const float* dq_latent) {
  const ModelConfig& c = w_.config;
  const int64_t nope = c.mla.qk_nope_head_dim, v = c.mla.v_head_dim, rank = c.mla.kv_lora_rank;
  const int64_t rows = call.rows;
  float* gradient = w_.parameters.gradient(call.params.mla.kv_b).data();
  float* transposed = scratch(transposed_, c.num_heads * rank * nope);
  w_.pool.parallel_for(c.num_heads, [&](int64_t h) {
    for (int64_t d = 0; d < nope; ++d) {
      const float* row = kv_b + (h * (nope + v) + d) * rank;
      for (int64_t j = 0; j < rank; ++j) transposed[(h * rank + j) * nope + d] = row[j];
    }
  });
  float* dy = scratch(heads_x_, rows * c.num_heads * rank);
  gather_heads(dq_latent, rank + c.mla.qk_rope_head_dim, 0, rank, rows, dy);
  w_.round_gradient(dy, rows * c.num_heads * rank);
  float* q = scratch(heads_dy_, rows * c.num_heads * nope);
  const MatrixView view = taped(call.tape.q, w_.compute_dtype, rows, c.q_width());
  gather_heads(w_.operand(view, wide_), c.mla.qk_head_dim(), 0, nope, rows, q);
  float* dq = scratch(heads_dx_, rows * c.num_heads * nope);
  for (int64_t h = 0; h < c.num_heads; ++h) {
    products_.add_rows({{dy + h * rows * rank, transposed + h * rank * nope, rank}}, rows, nope,
                       dq + h * rows * nope);
    products_.add_gradient(q + h * rows * nope, dy + h * rows * rank, rows, nope, rank,
                           gradient + h * (nope + v) * rank);
  }
  ACCORD_RETURN_IF_ERROR(products_.run(w_.pool));
  scatter_heads(dq, c.mla.qk_head_dim(), 0, nope, rows, dq_.as<float>());
  return absl::OkStatus();
}

Status LatentAttentionBackward::absorbed(const Call& call) {
  const ModelConfig& c = w_.config;
  const MlaConfig& mla = c.mla;
  const int64_t heads = c.num_heads;
  const int64_t rank = mla.kv_lora_rank;
  const int64_t wide = rank + mla.qk_rope_head_dim;
  const float* kv_b = w_.weight(call.params.mla.kv_b, kv_b_);
  float* dattn_latent = scratch(dattn_latent_, call.rows * heads * rank);
  ACCORD_RETURN_IF_ERROR(output_products(call, kv_b, dattn_latent));
  attention(call, taped(call.tape.mla.q_latent, w_.compute_dtype, call.rows, heads * wide),
            taped(call.tape.mla.attn_latent, w_.compute_dtype, call.rows, heads * rank), dattn_latent, 1,
            wide, rank);
  const float* dq_latent = raw_dq_.as<float>();
  ACCORD_RETURN_IF_ERROR(query_products(call, kv_b, dq_latent));
  const float* dk = dk_.as<float>();
  const float* dv = dv_.as<float>();
  const auto pairs = mla.rope_interleave ? kernels::RopePairs::kNeighbours : kernels::RopePairs::kHalves;
  w_.for_rows(call.rows, [&](int64_t begin, int64_t count) {
    float* dlatent = dlatent_.as<float>();
    for (int64_t t = begin; t < begin + count; ++t) {
      for (int64_t j = 0; j < rank; ++j) dlatent[t * rank + j] = dk[t * wide + j] + dv[t * rank + j];
    }
    const int32_t* positions = call.batch.positions.data() + begin;
    const int64_t q_width = c.q_width();
    kernels::rope_heads_backward({{heads, mla.qk_head_dim(), wide, pairs},
                                  dq_latent + begin * heads * wide,
                                  heads * wide,
                                  rank,
                                  dq_.as<float>() + begin * q_width,
                                  q_width,
                                  mla.qk_nope_head_dim},
                                 count, positions, w_.rope);
    kernels::rope_heads_backward({{1, wide, wide, pairs},
                                  dk + begin * wide,
                                  wide,
                                  rank,
                                  dkv_a_.as<float>() + begin * wide,
                                  wide,
                                  rank},
                                 count, positions, w_.rope);
  });
  return absl::OkStatus();
}

// From dq_, dlatent_ and the rotary columns of dkv_a_ to the input.
Status LatentAttentionBackward::projections(const Call& call, float* dnorm_TH) {
  const ModelConfig& c = w_.config;
  const MlaConfig& mla = c.mla;
  const MlaParams& params = call.params.mla;
  const int64_t rank = mla.kv_lora_rank;
  const int64_t width = rank + mla.qk_rope_head_dim;
  const MatrixView kv_a = taped(call.tape.mla.kv_a, w_.compute_dtype, call.rows, width);
  float* dlatent = dlatent_.as<float>();
  w_.norm_backward(kv_a.slice_cols(0, rank), call.tape.mla.inv_rms_kv_a.as<float>(), call.weights.kv_a_norm,
                   params.kv_a_norm, dlatent, dlatent, false);
  float* dkv_a = dkv_a_.as<float>();
  w_.for_rows(call.rows, [&](int64_t begin, int64_t count) {
    for (int64_t t = begin; t < begin + count; ++t) std::copy_n(dlatent + t * rank, rank, dkv_a + t * width);
  });
  w_.round_gradient(dkv_a, call.rows * width);
  float* dq = dq_.as<float>();
  w_.round_gradient(dq, call.rows * c.q_width());
  const MatrixView norm_view = taped(call.tape.norm1, w_.compute_dtype, call.rows, c.hidden_size);
  const float* norm = w_.operand(norm_view, norm_);
  if (mla.q_lora_rank == 0) {
    linears_.add({{call.params.q, &call.weights.q, dq}, {params.kv_a, &call.weights.kv_a, dkv_a}}, norm,
                 call.rows, dnorm_TH);
    return linears_.run();
  }
  const auto low_rank = [&](const Buffer& buffer) {
    return taped(buffer, w_.compute_dtype, call.rows, mla.q_lora_rank);
  };
  float* dq_a = scratch(dq_a_, call.rows * mla.q_lora_rank);
  linears_.add({{params.q_b, &call.weights.q_b, dq}}, w_.operand(low_rank(call.tape.mla.q_a_norm), q_a_),
               call.rows, dq_a);
  ACCORD_RETURN_IF_ERROR(linears_.run());
  w_.norm_backward(low_rank(call.tape.mla.q_a), call.tape.mla.inv_rms_q_a.as<float>(), call.weights.q_a_norm,
                   params.q_a_norm, dq_a, dq_a, false);
  w_.round_gradient(dq_a, call.rows * mla.q_lora_rank);
  linears_.add({{params.q_a, &call.weights.q_a, dq_a}, {params.kv_a, &call.weights.kv_a, dkv_a}}, norm,
               call.rows, dnorm_TH);
  return linears_.run();
}

}  // namespace accord::trainer
