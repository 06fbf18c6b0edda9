// Latent attention on the device; the steps are latent_attention.hpp's.
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "model/cuda_impl.hpp"

namespace accord::model {
namespace {

namespace cuda = kernels::cuda;

// Of the norms inside, whatever rms_norm_eps says: DeepSeek's code and transformers leave it at its default.
constexpr float kLatentNormEps = 1e-6F;

MatrixView bf16(const CudaModel::Impl& m, const DeviceBuffer& buffer, int64_t cols) {
  return buffer.matrix(Dtype::kBF16, m.batch.rows, cols);
}

// Queries with their last columns turned.
void project_queries(CudaModel::Impl& m, const LayerWeights& w, const CudaLayerTape& t, MatrixView q) {
  const ModelConfig& c = m.config;
  const MlaConfig& mla = c.mla;
  const MatrixView norm1 = bf16(m, t.norm1, c.hidden_size);
  const bool low_rank = mla.q_lora_rank > 0;
  const LinearWeight& first = low_rank ? w.q_a : w.q;
  CudaOperand operand = m.linears.operand(norm1, first.activation_format());
  m.linears.linear(operand, first, low_rank ? bf16(m, t.mla.q_a, mla.q_lora_rank) : q);
  if (operand.format != w.kv_a.activation_format()) {
    operand = m.linears.operand(norm1, w.kv_a.activation_format());
  }
  m.linears.linear(operand, w.kv_a, bf16(m, t.mla.kv_a, mla.kv_lora_rank + mla.qk_rope_head_dim));
  if (low_rank) {
    const MatrixView normed = bf16(m, t.mla.q_a_norm, mla.q_lora_rank);
    cuda::rms_norm(bf16(m, t.mla.q_a, mla.q_lora_rank), w.q_a_norm, kLatentNormEps, normed,
                   t.mla.inv_rms_q_a.as<float>(), m.handle());
    m.linears.linear(m.linears.operand(normed, w.q_b.activation_format()), w.q_b, q);
  }
  const int64_t qk = mla.qk_head_dim();
  const int64_t rope = mla.qk_rope_head_dim;
  const MatrixView turned = bf16(m, m.turned, c.num_heads * rope);
  cuda::apply_rope_heads(q.slice_cols(mla.qk_nope_head_dim, rope),
                         {c.num_heads, qk, rope, mla.rope_interleave}, m.batch.positions, m.rope_view(),
                         turned, nullptr, m.handle());
  cuda::copy_columns(turned, {c.num_heads, rope, 0, rope, mla.qk_nope_head_dim, qk}, nullptr, q, m.handle());
}

// Keys and values per head, from the latent into the cache.
void expand_keys(CudaModel::Impl& m, const LayerWeights& w, MatrixView latent, const KvLayer& kv) {
  const MlaConfig& mla = m.config.mla;
  const int64_t heads = m.config.num_heads;
  const int64_t both = mla.qk_nope_head_dim + mla.v_head_dim;
  const MatrixView expanded = bf16(m, m.v, heads * both);
  m.linears.linear(m.linears.operand(latent, w.kv_b.activation_format()), w.kv_b, expanded);
  cuda::copy_columns(expanded, {heads, mla.qk_nope_head_dim, 0, both, 0, mla.qk_head_dim()}, m.batch.kv_rows,
                     kv.k, m.handle());
  cuda::copy_columns(expanded, {heads, mla.v_head_dim, mla.qk_nope_head_dim, both, 0, mla.v_head_dim},
                     m.batch.kv_rows, kv.v, m.handle());
}

// q' = W_UK^T q per head, beside the turned columns.
MatrixView absorb_queries(CudaModel::Impl& m, const LayerWeights& w, const CudaLayerTape& t, MatrixView q) {
  const ModelConfig& c = m.config;
  const MlaConfig& mla = c.mla;
  const int64_t wide = mla.kv_lora_rank + mla.qk_rope_head_dim;
  const MatrixView q_latent = bf16(m, t.mla.q_latent, c.num_heads * wide);
  cuda::GemmBackward g;
  g.m = m.batch.rows;
  g.n = mla.kv_lora_rank;
  g.l = mla.qk_nope_head_dim;
  g.a = static_cast<const BF16*>(q.data);
  g.lda = q.stride;
  g.b = static_cast<const BF16*>(w.kv_b.data);
  g.ldb = mla.kv_lora_rank;
  g.c = {q_latent.data, q_latent.stride, /*bf16=*/true, false};
  g.batch = {static_cast<int32_t>(c.num_heads), mla.qk_head_dim(),
             (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank, wide};
  cuda::gemm_dgrad(g, m.handle());
  cuda::copy_columns(
      q, {c.num_heads, mla.qk_rope_head_dim, mla.qk_nope_head_dim, mla.qk_head_dim(), mla.kv_lora_rank, wide},
      nullptr, q_latent, m.handle());
  return q_latent;
}

}  // namespace

CudaLatent project_latent(CudaModel::Impl& m, const LayerWeights& w, const KvLayer& kv,
                          const CudaLayerTape& t) {
  const ModelConfig& c = m.config;
  const MlaConfig& mla = c.mla;
  const MatrixView q = bf16(m, t.q, c.q_width());
  project_queries(m, w, t, q);
  const MatrixView kv_a = bf16(m, t.mla.kv_a, mla.kv_lora_rank + mla.qk_rope_head_dim);
  const MatrixView latent = bf16(m, t.mla.latent, mla.kv_lora_rank);
  cuda::rms_norm(kv_a.slice_cols(0, mla.kv_lora_rank), w.kv_a_norm, kLatentNormEps, latent,
                 t.mla.inv_rms_kv_a.as<float>(), m.handle());
  // The rotary key, once (absorbed), or once per head.
  const bool absorbed = c.absorbed();
  const int64_t first = absorbed ? mla.kv_lora_rank : mla.qk_nope_head_dim;
  cuda::apply_rope_heads(
      kv_a.slice_cols(mla.kv_lora_rank, mla.qk_rope_head_dim),
      {absorbed ? 1 : c.num_heads, 0, absorbed ? 0 : mla.qk_head_dim(), mla.rope_interleave},
      m.batch.positions, m.rope_view(), kv.k.slice_cols(first, mla.qk_rope_head_dim), m.batch.kv_rows,
      m.handle());
  if (!absorbed) {
    expand_keys(m, w, latent, kv);
    return {q, bf16(m, t.attn, c.attention_width())};
  }
  cuda::copy_columns(latent, {1, mla.kv_lora_rank, 0, 0, 0, 0}, m.batch.kv_rows, kv.k, m.handle());
  return {absorb_queries(m, w, t, q), bf16(m, t.mla.attn_latent, c.num_heads * mla.kv_lora_rank)};
}

void finish_latent(CudaModel::Impl& m, const LayerWeights& w, const CudaLayerTape& t) {
  const ModelConfig& c = m.config;
  if (!c.absorbed()) return;
  const MlaConfig& mla = c.mla;
  const MatrixView latent = bf16(m, t.mla.attn_latent, c.num_heads * mla.kv_lora_rank);
  const MatrixView out = bf16(m, t.attn, c.attention_width());
  cuda::GemmForward g;
  g.m = m.batch.rows;
  g.n = mla.v_head_dim;
  g.k = mla.kv_lora_rank;
  g.a = static_cast<const BF16*>(latent.data);
  g.lda = latent.stride;
  g.b.data = static_cast<const BF16*>(w.kv_b.data) + mla.qk_nope_head_dim * mla.kv_lora_rank;
  g.c = {out.data, out.stride, /*bf16=*/true, false};
  g.batch = {static_cast<int32_t>(c.num_heads), mla.kv_lora_rank,
             (mla.qk_nope_head_dim + mla.v_head_dim) * mla.kv_lora_rank, mla.v_head_dim};
  cuda::gemm_forward(g, m.handle());
}

}  // namespace accord::model
