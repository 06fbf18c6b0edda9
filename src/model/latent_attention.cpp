#include "model/latent_attention.hpp"

#include <cstring>

#include "kernels/mla/mla.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"

namespace accord::model {
namespace {

using kernels::WorkspacePool;

// Of the norms inside, whatever rms_norm_eps says: DeepSeek's code and transformers leave it at its default.
constexpr float kLatentNormEps = 1e-6F;

int64_t macs(const LinearWeight& w) { return w.n * w.k; }

kernels::LatentHeads heads_of(const ModelConfig& c) {
  return {c.mla.qk_nope_head_dim, c.mla.qk_rope_head_dim, c.mla.v_head_dim, c.mla.kv_lora_rank};
}

void copy_columns(MatrixView from, int64_t row, int64_t column, int64_t count, MatrixView to, int64_t to_row,
                  int64_t to_column) {
  std::memcpy(to.slice_rows(to_row, 1).slice_cols(to_column, count).data,
              from.slice_rows(row, 1).slice_cols(column, count).data,
              static_cast<size_t>(count * size_of(from.dtype)));
}

}  // namespace

KvLayer kv_layer(const ModelConfig& config, Dtype dtype, int64_t rows, void* k, void* v) {
  const KvWidths widths = kv_widths(config);
  const MatrixView keys{k, dtype, rows, widths.k, widths.k};
  return {keys, widths.v > 0 ? MatrixView{v, dtype, rows, widths.v, widths.v}
                             : keys.slice_cols(0, config.mla.kv_lora_rank)};
}

KvLayer kv_layer(const ModelConfig& config, Dtype dtype, int64_t rows, Buffer& k, Buffer& v) {
  const KvWidths widths = kv_widths(config);
  return kv_layer(config, dtype, rows, k.matrix(dtype, rows, widths.k).data,
                  v.matrix(dtype, rows, widths.v).data);
}

LatentAttention::LatentAttention(Model::Impl& model, const LayerWeights& weights, const Batch& batch,
                                 const KvLayer& kv, LayerTape& tape, MatrixView q, MatrixView attn)
    : m_(model),
      c_(model.config),
      w_(weights),
      batch_(batch),
      kv_(kv),
      absorbed_(model.config.absorbed()),
      q_(q),
      attn_(attn) {
  const Dtype d = m_.dtype;
  const MlaConfig& mla = c_.mla;
  const int64_t rows = batch.num_rows();
  const auto floats = [&](Buffer& buffer) { return buffer.matrix(Dtype::kF32, rows, 1).row<float>(0); };
  if (mla.q_lora_rank > 0) {
    q_a_ = tape.mla.q_a.matrix(d, rows, mla.q_lora_rank);
    q_a_norm_ = tape.mla.q_a_norm.matrix(d, rows, mla.q_lora_rank);
    inv_rms_q_a_ = floats(tape.mla.inv_rms_q_a);
  }
  kv_a_ = tape.mla.kv_a.matrix(d, rows, mla.kv_lora_rank + mla.qk_rope_head_dim);
  latent_ = tape.mla.latent.matrix(d, rows, mla.kv_lora_rank);
  inv_rms_kv_a_ = floats(tape.mla.inv_rms_kv_a);
  if (absorbed_) {
    q_latent_ = tape.mla.q_latent.matrix(d, rows, c_.num_heads * (mla.kv_lora_rank + mla.qk_rope_head_dim));
    attn_latent_ = tape.mla.attn_latent.matrix(d, rows, c_.num_heads * mla.kv_lora_rank);
  } else {
    expanded_ = m_.v.matrix(d, rows, c_.num_heads * (mla.qk_nope_head_dim + mla.v_head_dim));
  }
}

int64_t LatentAttention::project_work() const {
  return macs(w_.q) + macs(w_.q_a) + macs(w_.q_b) + macs(w_.kv_a) + macs(w_.kv_b);
}

int64_t LatentAttention::finish_work() const { return absorbed_ ? macs(w_.kv_b) / 2 : 0; }

kernels::AttentionShape LatentAttention::shape() const {
  const auto scale = static_cast<float>(attention_scale(c_));
  if (absorbed_) {
    return {c_.num_heads, 1, c_.mla.kv_lora_rank + c_.mla.qk_rope_head_dim, c_.mla.kv_lora_rank, scale};
  }
  return {c_.num_heads, c_.num_heads, c_.mla.qk_head_dim(), c_.mla.v_head_dim, scale};
}

// heads(begin, end, workspace): all at once, or one by one over the threads when the rows are too few to
// split.
template <class Heads>
void LatentAttention::for_heads(ThreadPool* inner, const Heads& heads) {
  const auto some = [&](int64_t begin, int64_t end) {
    const formats::IeeeMode ieee;
    const WorkspacePool::Lease lease = m_.scratch.acquire();
    heads(begin, end, *lease);
  };
  if (inner == nullptr || macs(w_.kv_b) < kParallelWork) {
    some(0, c_.num_heads);
    return;
  }
  const auto one = [&](int64_t h) { some(h, h + 1); };
  inner->parallel_for(c_.num_heads, std::ref(one));
}

void LatentAttention::project_queries(MatrixView norm1, int64_t begin, int64_t n, ThreadPool* inner) {
  const MlaConfig& mla = c_.mla;
  const MatrixView q = q_.slice_rows(begin, n);
  {
    const WorkspacePool::Lease lease = m_.scratch.acquire();
    const bool low_rank = mla.q_lora_rank > 0;
    const LinearWeight& first = low_rank ? w_.q_a : w_.q;
    kernels::Operand operand = kernels::make_operand(norm1, first.activation_format(), *lease);
    kernels::linear(operand, first, low_rank ? q_a_.slice_rows(begin, n) : q, inner, m_.scratch);
    if (w_.kv_a.activation_format() != first.activation_format()) {
      operand = kernels::make_operand(norm1, w_.kv_a.activation_format(), *lease);
    }
    kernels::linear(operand, w_.kv_a, kv_a_.slice_rows(begin, n), inner, m_.scratch);
    if (low_rank) {
      const MatrixView normed = q_a_norm_.slice_rows(begin, n);
      kernels::rms_norm(q_a_.slice_rows(begin, n), w_.q_a_norm, kLatentNormEps, normed, inv_rms_q_a_ + begin);
      kernels::linear(kernels::make_operand(normed, w_.q_b.activation_format(), *lease), w_.q_b, q, inner,
                      m_.scratch);
    }
  }
  // Rotary in place of the last columns of each head, from a copy.
  const int64_t qk = mla.qk_head_dim();
  const WorkspacePool::Lease lease = m_.scratch.acquire();
  const MatrixView turned = lease->tile.matrix(q.dtype, n, c_.num_heads * mla.qk_rope_head_dim);
  const auto pairs = mla.rope_interleave ? kernels::RopePairs::kNeighbours : kernels::RopePairs::kHalves;
  kernels::apply_rope_heads(q.slice_cols(mla.qk_nope_head_dim, mla.qk_rope_head_dim),
                            {c_.num_heads, qk, mla.qk_rope_head_dim, pairs}, batch_.positions.data() + begin,
                            m_.rope, turned, nullptr);
  for (int64_t r = 0; r < n; ++r) {
    for (int64_t h = 0; h < c_.num_heads; ++h) {
      copy_columns(turned, r, h * mla.qk_rope_head_dim, mla.qk_rope_head_dim, q, r,
                   h * qk + mla.qk_nope_head_dim);
    }
  }
}

void LatentAttention::project(MatrixView norm1, int64_t begin, int64_t end, ThreadPool* inner) {
  const MlaConfig& mla = c_.mla;
  const int64_t n = end - begin;
  project_queries(norm1, begin, n, inner);
  const MatrixView kv_a = kv_a_.slice_rows(begin, n);
  const MatrixView latent = latent_.slice_rows(begin, n);
  kernels::rms_norm(kv_a.slice_cols(0, mla.kv_lora_rank), w_.kv_a_norm, kLatentNormEps, latent,
                    inv_rms_kv_a_ + begin);
  const int32_t* positions = batch_.positions.data() + begin;
  const int32_t* kv_rows = batch_.kv_rows.data() + begin;
  const auto pairs = mla.rope_interleave ? kernels::RopePairs::kNeighbours : kernels::RopePairs::kHalves;
  // The rotary key, once (absorbed), or once per head.
  const int64_t first = absorbed_ ? mla.kv_lora_rank : mla.qk_nope_head_dim;
  kernels::apply_rope_heads(kv_a.slice_cols(mla.kv_lora_rank, mla.qk_rope_head_dim),
                            {absorbed_ ? 1 : c_.num_heads, 0, absorbed_ ? 0 : mla.qk_head_dim(), pairs},
                            positions, m_.rope, kv_.k.slice_cols(first, mla.qk_rope_head_dim), kv_rows);
  if (!absorbed_) {
    expand_keys(begin, n, inner);
    return;
  }
  for (int64_t r = 0; r < n; ++r) {
    copy_columns(latent, r, 0, mla.kv_lora_rank, kv_.k, kv_rows[r], 0);
  }
  const MatrixView q = q_.slice_rows(begin, n);
  const MatrixView q_latent = q_latent_.slice_rows(begin, n);
  const int64_t qk = mla.qk_head_dim();
  const int64_t wide = mla.kv_lora_rank + mla.qk_rope_head_dim;
  for_heads(inner, [&](int64_t head_begin, int64_t head_end, kernels::Workspace& scratch) {
    kernels::absorb_queries(q, static_cast<const BF16*>(w_.kv_b.data), heads_of(c_), head_begin, head_end,
                            q_latent, scratch);
    for (int64_t r = 0; r < n; ++r) {
      for (int64_t h = head_begin; h < head_end; ++h) {
        copy_columns(q, r, h * qk + mla.qk_nope_head_dim, mla.qk_rope_head_dim, q_latent, r,
                     h * wide + mla.kv_lora_rank);
      }
    }
  });
}

void LatentAttention::expand_keys(int64_t begin, int64_t n, ThreadPool* inner) {
  const MlaConfig& mla = c_.mla;
  const MatrixView expanded = expanded_.slice_rows(begin, n);
  const WorkspacePool::Lease lease = m_.scratch.acquire();
  kernels::linear(kernels::make_operand(latent_.slice_rows(begin, n), w_.kv_b.activation_format(), *lease),
                  w_.kv_b, expanded, inner, m_.scratch);
  const int64_t both = mla.qk_nope_head_dim + mla.v_head_dim;
  for (int64_t r = 0; r < n; ++r) {
    const int64_t row = batch_.kv_rows[static_cast<size_t>(begin + r)];
    for (int64_t h = 0; h < c_.num_heads; ++h) {
      copy_columns(expanded, r, h * both, mla.qk_nope_head_dim, kv_.k, row, h * mla.qk_head_dim());
      copy_columns(expanded, r, h * both + mla.qk_nope_head_dim, mla.v_head_dim, kv_.v, row,
                   h * mla.v_head_dim);
    }
  }
}

void LatentAttention::finish(int64_t begin, int64_t end, ThreadPool* inner) {
  if (!absorbed_) {
    return;
  }
  const MatrixView latent = attn_latent_.slice_rows(begin, end - begin);
  const MatrixView out = attn_.slice_rows(begin, end - begin);
  for_heads(inner, [&](int64_t head_begin, int64_t head_end, kernels::Workspace& scratch) {
    kernels::expand_outputs(latent, static_cast<const BF16*>(w_.kv_b.data), heads_of(c_), head_begin,
                            head_end, out, scratch);
  });
}

}  // namespace accord::model
