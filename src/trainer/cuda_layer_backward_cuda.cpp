#include <algorithm>
#include <utility>

#include "kernels/linear/linear_backward_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_backward_cuda.hpp"
#include "kernels/rope/rope_backward_cuda.hpp"
#include "kernels/swiglu/swiglu_backward_cuda.hpp"
#include "trainer/cuda_latent_backward.hpp"
#include "trainer/cuda_layer_backward.hpp"
#include "trainer/cuda_layer_parts.hpp"

namespace accord::trainer {

namespace cuda = kernels::cuda;

namespace {

constexpr int32_t kTileRows = 64;  // of attention's backward

}  // namespace

std::vector<cuda::AttentionBackwardTile> attention_backward_tiles(const model::Batch& batch) {
  std::vector<cuda::AttentionBackwardTile> tiles;
  for (const model::Segment& s : batch.segments) {
    for (int32_t begin = 0; begin < s.num_rows; begin += kTileRows) {
      tiles.push_back({s.row_begin, s.num_rows, begin});
    }
  }
  using Tile = cuda::AttentionBackwardTile;
  std::stable_sort(tiles.begin(), tiles.end(), [](const Tile& a, const Tile& b) {
    return a.num_rows - a.tile_begin > b.num_rows - b.tile_begin;  // the most work first
  });
  return tiles;
}

CudaLayerBackward::CudaLayerBackward(const CudaContext& context, const model::CudaModel& model)
    : c_(context), model_(model), linears_(context), scratch_(context.device, kLayerParts) {
  if (context.config.has_mla()) latent_ = std::make_unique<CudaLatentBackward>(context, model, *this);
}

CudaLayerBackward::~CudaLayerBackward() = default;

StatusOr<std::unique_ptr<CudaLayerBackward>> CudaLayerBackward::create(const CudaContext& context,
                                                                       const model::CudaModel& model) {
  std::unique_ptr<CudaLayerBackward> out(new CudaLayerBackward(context, model));
  out->experts_.resize(static_cast<size_t>(context.config.num_layers));
  for (int64_t layer = 0; layer < context.config.num_layers; ++layer) {
    if (context.config.layer_is_moe[static_cast<size_t>(layer)]) {
      ACCORD_RETURN_IF_ERROR(out->bind_experts(layer));
    }
  }
  return out;
}

int64_t CudaLayerBackward::bytes() const {
  int64_t sum = linears_.bytes() + scratch_.bytes() + (latent_ != nullptr ? latent_->bytes() : 0);
  for (const Experts& experts : experts_) sum += static_cast<int64_t>(experts.tables.capacity());
  return sum;
}

StatusOr<BF16*> CudaLayerBackward::gradient_operand(const float* dx_TH) {
  const int64_t count = rows() * c_.config.hidden_size;
  ACCORD_ASSIGN_OR_RETURN(BF16* const dy, scratch_.get<BF16>(kDy, count));
  cuda::round_to_bf16(dx_TH, count, dy, c_.handle());
  return dy;
}

Status CudaLayerBackward::norm_backward(MatrixView x, const float* inv_rms, const BF16* weight, int64_t norm,
                                        const float* dy, MatrixView dx, bool accumulate) {
  ACCORD_ASSIGN_OR_RETURN(float* const partials,
                          scratch_.get<float>(kNormPartials, cuda::rmsnorm_backward_scratch(x.rows, x.cols)));
  cuda::rmsnorm_backward(x, inv_rms, weight, dy, dx, accumulate, c_.parameters.gradient(norm), partials,
                         c_.handle());
  return absl::OkStatus();
}

Status CudaLayerBackward::run(int64_t layer, const AttentionTiles& tiles, MatrixView x_in,
                              const model::KvLayer& kv, const model::CudaLayerTape& tape, float* dx_TH) {
  const LayerParams& params = c_.params.layers[static_cast<size_t>(layer)];
  const model::LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  const int64_t hidden = c_.config.hidden_size;
  const MatrixView dx = matrix_view(dx_TH, rows(), hidden);
  ACCORD_ASSIGN_OR_RETURN(float* const dnorm, scratch_.get<float>(kDnorm, rows() * hidden));
  if (params.router < 0) {
    const RowMlp mlp{params.mlp[0], weights.mlp[0], c_.config.intermediate_size,
                     tape.gate,     tape.up,        tape.act};
    ACCORD_RETURN_IF_ERROR(row_mlp(mlp, bf16(tape.norm2, hidden), dx_TH, dnorm, false));
  } else {
    ACCORD_RETURN_IF_ERROR(experts(layer, tape, dx_TH, dnorm));
  }
  ACCORD_RETURN_IF_ERROR(norm_backward(bf16(tape.x_mid, hidden), tape.inv_rms2.as<float>(), weights.post_norm,
                                       params.post_norm, dnorm, dx, true));
  ACCORD_RETURN_IF_ERROR(attention(params, weights, tiles, kv, tape, dx_TH, dnorm));
  return norm_backward(x_in, tape.inv_rms1.as<float>(), weights.input_norm, params.input_norm, dnorm, dx,
                       true);
}

Status CudaLayerBackward::row_mlp(const RowMlp& mlp, MatrixView norm, const float* dx_TH, float* dnorm_TH,
                                  bool accumulate) {
  const int64_t values = rows() * mlp.width;
  ACCORD_ASSIGN_OR_RETURN(BF16* const dy, gradient_operand(dx_TH));
  ACCORD_ASSIGN_OR_RETURN(float* const dact, scratch_.get<float>(kDact, values));
  ACCORD_RETURN_IF_ERROR(
      linears_.run({{mlp.params.down, &mlp.weights.down, dy}}, mlp.act.as<BF16>(), rows(), {dact}));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dgate, scratch_.get<BF16>(kDgate, values));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dup, scratch_.get<BF16>(kDup, values));
  cuda::swiglu_backward(bf16(mlp.gate, mlp.width), bf16(mlp.up, mlp.width), dact, dgate, dup, c_.handle());
  return linears_.run({{mlp.params.gate, &mlp.weights.gate, dgate}, {mlp.params.up, &mlp.weights.up, dup}},
                      norm.row<BF16>(0), rows(), {dnorm_TH, false, accumulate});
}

Status CudaLayerBackward::head_backward(const float* dy, int64_t heads, const DeviceBuffer& raw,
                                        const DeviceBuffer& inv_rms, const BF16* weight, int64_t norm,
                                        float* turned, BF16* out) {
  const int64_t d = c_.config.head_dim;
  const int64_t width = heads * d;
  const MatrixView operand = matrix_view(out, rows(), width);
  if (!c_.config.qk_norm) {
    cuda::rope_backward(dy, rows(), width, model_.positions(), model_.rope(), operand, c_.handle());
    return absl::OkStatus();
  }
  cuda::rope_backward(dy, rows(), width, model_.positions(), model_.rope(),
                      matrix_view(turned, rows(), width), c_.handle());
  return norm_backward(raw.matrix(Dtype::kBF16, rows() * heads, d), inv_rms.as<float>(), weight, norm, turned,
                       matrix_view(out, rows() * heads, d), false);
}

Status CudaLayerBackward::attention(const LayerParams& params, const model::LayerWeights& weights,
                                    const AttentionTiles& tiles, const model::KvLayer& kv,
                                    const model::CudaLayerTape& tape, const float* dx_TH, float* dnorm_TH) {
  const ModelConfig& config = c_.config;
  const int64_t q_width = config.num_heads * config.head_dim;
  const int64_t c_width = config.num_kv_heads * config.head_dim;
  ACCORD_ASSIGN_OR_RETURN(BF16* const dy, gradient_operand(dx_TH));
  if (latent_ != nullptr) return latent_->run(params, weights, tiles, kv, tape, dy, dnorm_TH);
  ACCORD_ASSIGN_OR_RETURN(BF16* const dattn, scratch_.get<BF16>(kDattn, rows() * q_width));
  ACCORD_RETURN_IF_ERROR(
      linears_.run({{params.o, &weights.o, dy}}, tape.attn.as<BF16>(), rows(), {dattn, /*bf16=*/true}));

  cuda::AttentionBackwardArgs args;
  args.dims = {static_cast<int32_t>(config.num_heads), static_cast<int32_t>(config.num_kv_heads),
               static_cast<int32_t>(config.head_dim), static_cast<int32_t>(config.head_dim),
               static_cast<float>(attention_scale(config))};
  args.q = tape.q.as<BF16>();
  args.q_stride = q_width;
  args.k = kv.k.row<BF16>(0);  // a packed sequence's cache rows are its batch rows
  args.k_stride = kv.k.stride;
  args.v = kv.v.row<BF16>(0);
  args.v_stride = kv.v.stride;
  args.out = tape.attn.as<BF16>();
  args.out_stride = q_width;
  args.dout = dattn;
  args.dout_stride = q_width;
  args.lse = tape.lse.as<float>();
  ACCORD_ASSIGN_OR_RETURN(args.delta, scratch_.get<float>(kDelta, rows() * config.num_heads));
  ACCORD_ASSIGN_OR_RETURN(args.dq, scratch_.get<float>(kDq, rows() * q_width));
  ACCORD_ASSIGN_OR_RETURN(args.dk, scratch_.get<float>(kDk, rows() * c_width));
  ACCORD_ASSIGN_OR_RETURN(args.dv, scratch_.get<float>(kDv, rows() * c_width));
  args.num_rows = rows();
  args.tiles = tiles.tiles;
  args.num_tiles = tiles.count;
  cuda::attention_backward(args, c_.handle());

  ACCORD_ASSIGN_OR_RETURN(BF16* const dq, scratch_.get<BF16>(kDqOperand, rows() * q_width));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dk, scratch_.get<BF16>(kDkOperand, rows() * c_width));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dv, scratch_.get<BF16>(kDvOperand, rows() * c_width));
  ACCORD_RETURN_IF_ERROR(head_backward(args.dq, config.num_heads, tape.q_raw, tape.inv_rms_q, weights.q_norm,
                                       params.q_norm, args.dq, dq));
  ACCORD_RETURN_IF_ERROR(head_backward(args.dk, config.num_kv_heads, tape.k_raw, tape.inv_rms_k,
                                       weights.k_norm, params.k_norm, args.dk, dk));
  cuda::round_to_bf16(args.dv, rows() * c_width, dv, c_.handle());
  return linears_.run({{params.q, &weights.q, dq}, {params.k, &weights.k, dk}, {params.v, &weights.v, dv}},
                      tape.norm1.as<BF16>(), rows(), {dnorm_TH});
}

}  // namespace accord::trainer
