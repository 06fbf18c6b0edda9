#include <algorithm>

#include "kernels/attention/attention_cuda.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/linear/linear_backward_cuda.hpp"
#include "kernels/rope/rope_backward_cuda.hpp"
#include "trainer/cuda_latent_backward.hpp"

namespace accord::trainer {

namespace cuda = kernels::cuda;

namespace {

enum Part : size_t {
  kDattn,        // [T,heads*v] bf16
  kDq,           // [T,heads*qk] bf16
  kDkvA,         // [T,rank+rope] bf16
  kDlatent,      // [T,rank]
  kDelta,        // [T,heads]
  kRawDq,        // of the queries that attended
  kRawDk,        // of the cached keys
  kRawDv,        // of the cached values
  kNarrow,       // bf16 of one of these
  kDexpanded,    // [T,heads*(nope+v)] bf16 (plain)
  kDattnLatent,  // [T,heads*rank] bf16 (absorbed)
  kDqA,          // [T,q_lora]
  kDqAOperand,   // its bf16
  kParts
};

}  // namespace

CudaLatentBackward::CudaLatentBackward(const CudaContext& context, const model::CudaModel& model,
                                       CudaLayerBackward& layer)
    : c_(context), model_(model), layer_(layer), scratch_(context.device, kParts) {}

Status CudaLatentBackward::run(const LayerParams& params, const model::LayerWeights& weights,
                               const CudaLayerBackward::AttentionTiles& tiles, const model::KvLayer& kv,
                               const model::CudaLayerTape& tape, BF16* dy_TH, float* dnorm_TH) {
  const ModelConfig& config = c_.config;
  const int64_t rows = model_.num_rows();
  ACCORD_ASSIGN_OR_RETURN(BF16* const dattn, scratch_.get<BF16>(kDattn, rows * config.attention_width()));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dq, scratch_.get<BF16>(kDq, rows * config.q_width()));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dkv_a, scratch_.get<BF16>(kDkvA, rows * (config.mla.kv_lora_rank +
                                                                               config.mla.qk_rope_head_dim)));
  ACCORD_ASSIGN_OR_RETURN(float* const dlatent,
                          scratch_.get<float>(kDlatent, rows * config.mla.kv_lora_rank));
  const Call call{params, weights, tiles, kv, tape, rows, dattn, dq, dkv_a, dlatent};
  ACCORD_RETURN_IF_ERROR(layer_.linears().run({{params.o, &weights.o, dy_TH}}, tape.attn.as<BF16>(), rows,
                                              {dattn, /*bf16=*/true}));
  ACCORD_RETURN_IF_ERROR(config.absorbed() ? absorbed(call) : plain(call));
  return projections(call, dnorm_TH);
}

StatusOr<CudaLatentBackward::AttentionGradients> CudaLatentBackward::attention(
    const Call& call, const BF16* q, const BF16* out, const BF16* dout, const cuda::AttentionDims& dims) {
  const int64_t q_width = int64_t{dims.num_heads} * dims.head_dim;
  const int64_t out_width = int64_t{dims.num_heads} * dims.v_head_dim;
  cuda::AttentionBackwardArgs args;
  args.dims = dims;
  args.q = q;
  args.q_stride = q_width;
  args.k = call.kv.k.row<BF16>(0);  // a packed sequence's cache rows are its batch rows
  args.k_stride = call.kv.k.stride;
  args.v = call.kv.v.row<BF16>(0);
  args.v_stride = call.kv.v.stride;
  args.out = out;
  args.out_stride = out_width;
  args.dout = dout;
  args.dout_stride = out_width;
  args.lse = call.tape.lse.as<float>();
  ACCORD_ASSIGN_OR_RETURN(args.delta, scratch_.get<float>(kDelta, call.rows * dims.num_heads));
  ACCORD_ASSIGN_OR_RETURN(args.dq, scratch_.get<float>(kRawDq, call.rows * q_width));
  ACCORD_ASSIGN_OR_RETURN(args.dk,
                          scratch_.get<float>(kRawDk, call.rows * dims.num_kv_heads * dims.head_dim));
  ACCORD_ASSIGN_OR_RETURN(args.dv,
                          scratch_.get<float>(kRawDv, call.rows * dims.num_kv_heads * dims.v_head_dim));
  args.num_rows = call.rows;
  args.tiles = call.tiles.tiles;
  args.num_tiles = call.tiles.count;
  cuda::attention_backward(args, c_.handle());
  return AttentionGradients{args.dq, args.dk, args.dv};
}

Status CudaLatentBackward::plain(const Call& call) {
  const ModelConfig& config = c_.config;
  const MlaConfig& mla = config.mla;
  const int64_t heads = config.num_heads;
  const int64_t nope = mla.qk_nope_head_dim, qk = mla.qk_head_dim(), v = mla.v_head_dim;
  const int64_t width = config.q_width();
  const int64_t values = heads * v;
  const int64_t rank = mla.kv_lora_rank;
  const auto count = static_cast<int32_t>(heads);
  ACCORD_ASSIGN_OR_RETURN(const AttentionGradients d,
                          attention(call, call.tape.q.as<BF16>(), call.tape.attn.as<BF16>(), call.dattn,
                                    {count, count, static_cast<int32_t>(qk), static_cast<int32_t>(v),
                                     static_cast<float>(attention_scale(config))}));
  // All columns of dq, then those that turned.
  cuda::round_to_bf16(d.dq, call.rows * width, call.dq, c_.handle());
  cuda::rope_heads_backward(
      {{heads, qk, qk, mla.rope_interleave}, d.dq, width, nope, matrix_view(call.dq, call.rows, width), nope},
      call.rows, model_.positions(), model_.rope(), c_.handle());
  const int64_t kv_a_width = rank + mla.qk_rope_head_dim;
  cuda::rope_heads_backward({{heads, 0, qk, mla.rope_interleave},
                             d.dk,
                             width,
                             nope,
                             matrix_view(call.dkv_a, call.rows, kv_a_width),
                             rank},
                            call.rows, model_.positions(), model_.rope(), c_.handle());
  ACCORD_ASSIGN_OR_RETURN(BF16* const dexpanded,
                          scratch_.get<BF16>(kDexpanded, call.rows * heads * (nope + v)));
  const MatrixView expanded = matrix_view(dexpanded, call.rows, heads * (nope + v));
  ACCORD_ASSIGN_OR_RETURN(BF16* const narrow,
                          scratch_.get<BF16>(kNarrow, call.rows * std::max(width, values)));
  cuda::round_to_bf16(d.dk, call.rows * width, narrow, c_.handle());
  cuda::copy_columns(matrix_view(narrow, call.rows, width), {heads, nope, 0, qk, 0, nope + v}, nullptr,
                     expanded, c_.handle());
  cuda::round_to_bf16(d.dv, call.rows * values, narrow, c_.handle());
  cuda::copy_columns(matrix_view(narrow, call.rows, values), {heads, v, 0, v, nope, nope + v}, nullptr,
                     expanded, c_.handle());
  return layer_.linears().run({{call.params.mla.kv_b, &call.weights.kv_b, dexpanded}},
                              call.tape.mla.latent.as<BF16>(), call.rows, {call.dlatent});
}

void CudaLatentBackward::output_products(const Call& call, BF16* dattn_latent) {
  const ModelConfig& config = c_.config;
  const int64_t nope = config.mla.qk_nope_head_dim, v = config.mla.v_head_dim, rank = config.mla.kv_lora_rank;
  const auto heads = static_cast<int32_t>(config.num_heads);
  cuda::GemmBackward g;
  g.m = call.rows;
  g.n = rank;
  g.l = v;
  g.a = call.dattn;
  g.lda = heads * v;
  g.b = static_cast<const BF16*>(call.weights.kv_b.data) + nope * rank;
  g.ldb = rank;
  g.c = {dattn_latent, heads * rank, /*bf16=*/true, false};
  g.batch = {heads, v, (nope + v) * rank, rank};
  cuda::gemm_dgrad(g, c_.handle());
  g.m = v;
  g.l = call.rows;
  g.b = call.tape.mla.attn_latent.as<BF16>();
  g.ldb = heads * rank;
  g.c = {c_.parameters.gradient(call.params.mla.kv_b) + nope * rank, rank, false, /*accumulate=*/true};
  g.batch = {heads, v, rank, (nope + v) * rank};
  cuda::gemm_wgrad(g, c_.handle());
}

void CudaLatentBackward::query_products(const Call& call, const BF16* dq_latent) {
  const ModelConfig& config = c_.config;
  const MlaConfig& mla = config.mla;
  const int64_t nope = mla.qk_nope_head_dim, v = mla.v_head_dim, rank = mla.kv_lora_rank;
  const int64_t wide = rank + mla.qk_rope_head_dim;
  const auto heads = static_cast<int32_t>(config.num_heads);
  cuda::GemmForward f;
  f.m = call.rows;
  f.n = nope;
  f.k = rank;
  f.a = dq_latent;
  f.lda = heads * wide;
  f.b.data = call.weights.kv_b.data;
  f.c = {call.dq, config.q_width(), /*bf16=*/true, false};
  f.batch = {heads, wide, (nope + v) * rank, mla.qk_head_dim()};
  cuda::gemm_forward(f, c_.handle());
  cuda::GemmBackward g;
  g.m = nope;
  g.n = rank;
  g.l = call.rows;
  g.a = call.tape.q.as<BF16>();
  g.lda = config.q_width();
  g.b = dq_latent;
  g.ldb = heads * wide;
  g.c = {c_.parameters.gradient(call.params.mla.kv_b), rank, false, /*accumulate=*/true};
  g.batch = {heads, mla.qk_head_dim(), wide, (nope + v) * rank};
  cuda::gemm_wgrad(g, c_.handle());
}

Status CudaLatentBackward::absorbed(const Call& call) {
  const ModelConfig& config = c_.config;
  const MlaConfig& mla = config.mla;
  const int64_t heads = config.num_heads;
  const int64_t rank = mla.kv_lora_rank;
  const int64_t wide = rank + mla.qk_rope_head_dim;
  ACCORD_ASSIGN_OR_RETURN(BF16* const dattn_latent,
                          scratch_.get<BF16>(kDattnLatent, call.rows * heads * rank));
  output_products(call, dattn_latent);
  ACCORD_ASSIGN_OR_RETURN(
      const AttentionGradients d,
      attention(call, call.tape.mla.q_latent.as<BF16>(), call.tape.mla.attn_latent.as<BF16>(), dattn_latent,
                {static_cast<int32_t>(heads), 1, static_cast<int32_t>(wide), static_cast<int32_t>(rank),
                 static_cast<float>(attention_scale(config))}));
  ACCORD_ASSIGN_OR_RETURN(BF16* const narrow, scratch_.get<BF16>(kNarrow, call.rows * heads * wide));
  cuda::round_to_bf16(d.dq, call.rows * heads * wide, narrow, c_.handle());
  query_products(call, narrow);
  cuda::rope_heads_backward({{heads, mla.qk_head_dim(), wide, mla.rope_interleave},
                             d.dq,
                             heads * wide,
                             rank,
                             matrix_view(call.dq, call.rows, config.q_width()),
                             mla.qk_nope_head_dim},
                            call.rows, model_.positions(), model_.rope(), c_.handle());
  cuda::rope_heads_backward({{1, wide, wide, mla.rope_interleave},
                             d.dk,
                             wide,
                             rank,
                             matrix_view(call.dkv_a, call.rows, wide),
                             rank},
                            call.rows, model_.positions(), model_.rope(), c_.handle());
  // The latent is key and value.
  cuda::add_rows(matrix_view(d.dk, call.rows, wide).slice_cols(0, rank), matrix_view(d.dv, call.rows, rank),
                 matrix_view(call.dlatent, call.rows, rank), c_.handle());
  return absl::OkStatus();
}

// From dq, dlatent and the rotary columns of dkv_a to the input.
Status CudaLatentBackward::projections(const Call& call, float* dnorm_TH) {
  const MlaConfig& mla = c_.config.mla;
  const MlaParams& params = call.params.mla;
  const model::CudaMlaTape& tape = call.tape.mla;
  const int64_t rank = mla.kv_lora_rank;
  const int64_t width = rank + mla.qk_rope_head_dim;
  ACCORD_RETURN_IF_ERROR(layer_.norm_backward(
      tape.kv_a.matrix(Dtype::kBF16, call.rows, width).slice_cols(0, rank), tape.inv_rms_kv_a.as<float>(),
      call.weights.kv_a_norm, params.kv_a_norm, call.dlatent,
      matrix_view(call.dkv_a, call.rows, width).slice_cols(0, rank), false));
  const BF16* const norm = call.tape.norm1.as<BF16>();
  CudaLinearBackward& linears = layer_.linears();
  if (mla.q_lora_rank == 0) {
    return linears.run(
        {{call.params.q, &call.weights.q, call.dq}, {params.kv_a, &call.weights.kv_a, call.dkv_a}}, norm,
        call.rows, {dnorm_TH});
  }
  ACCORD_ASSIGN_OR_RETURN(float* const dq_a, scratch_.get<float>(kDqA, call.rows * mla.q_lora_rank));
  ACCORD_ASSIGN_OR_RETURN(BF16* const operand, scratch_.get<BF16>(kDqAOperand, call.rows * mla.q_lora_rank));
  ACCORD_RETURN_IF_ERROR(
      linears.run({{params.q_b, &call.weights.q_b, call.dq}}, tape.q_a_norm.as<BF16>(), call.rows, {dq_a}));
  ACCORD_RETURN_IF_ERROR(layer_.norm_backward(
      tape.q_a.matrix(Dtype::kBF16, call.rows, mla.q_lora_rank), tape.inv_rms_q_a.as<float>(),
      call.weights.q_a_norm, params.q_a_norm, dq_a, matrix_view(operand, call.rows, mla.q_lora_rank), false));
  return linears.run(
      {{params.q_a, &call.weights.q_a, operand}, {params.kv_a, &call.weights.kv_a, call.dkv_a}}, norm,
      call.rows, {dnorm_TH});
}

}  // namespace accord::trainer
