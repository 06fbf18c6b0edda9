// The mixture of experts of a layer's backward on CUDA.
#include <algorithm>

#include "kernels/moe/moe_backward_cuda.hpp"
#include "kernels/router/router.hpp"
#include "kernels/swiglu/swiglu_backward_cuda.hpp"
#include "trainer/cuda_layer_backward.hpp"
#include "trainer/cuda_layer_parts.hpp"

namespace accord::trainer {

namespace cuda = kernels::cuda;

Status CudaLayerBackward::bind_experts(int64_t layer) {
  Experts& out = experts_[static_cast<size_t>(layer)];
  const LayerParams& params = c_.params.layers[static_cast<size_t>(layer)];
  const model::LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  struct Source {
    ExpertProjection* projection;
    int64_t MlpParams::*parameter;
    model::LinearWeight model::MlpWeights::*weight;
  };
  std::vector<void*> tables;
  for (const Source& source : {Source{&out.gate, &MlpParams::gate, &model::MlpWeights::gate},
                               Source{&out.up, &MlpParams::up, &model::MlpWeights::up},
                               Source{&out.down, &MlpParams::down, &model::MlpWeights::down}}) {
    for (size_t e = 0; e < params.mlp.size(); ++e) {
      const int64_t parameter = params.mlp[e].*source.parameter;
      if (c_.backward.e5m2(parameter) != c_.backward.e5m2(params.mlp[0].*source.parameter)) {
        return recipe_error(
            "{}: e5m2_gradients differs from expert 0's; on CUDA the experts of a layer are multiplied "
            "together (change the matchers, or use device: cpu)",
            c_.parameters.spec(parameter).name);
      }
      source.projection->parameters.push_back(parameter);
      source.projection->weights.push_back(weights.mlp[e].*source.weight);
      tables.push_back(c_.parameters.gradient(parameter));
    }
  }
  ACCORD_RETURN_IF_ERROR(out.tables.ensure(c_.device, tables.size() * sizeof(void*)));
  ACCORD_RETURN_IF_ERROR(c_.stream.copy(out.tables.data(), tables.data(), tables.size() * sizeof(void*)));
  ACCORD_RETURN_IF_ERROR(c_.stream.synchronize());
  out.gate.gradients = out.tables.as<void*>();
  out.up.gradients = out.gate.gradients + params.mlp.size();
  out.down.gradients = out.up.gradients + params.mlp.size();
  return absl::OkStatus();
}

Status CudaLayerBackward::experts(int64_t layer, const model::CudaLayerTape& tape, const float* dx_TH,
                                  float* dnorm_TH) {
  const ModelConfig& config = c_.config;
  const LayerParams& params = c_.params.layers[static_cast<size_t>(layer)];
  const model::LayerWeights& weights = model_.weights().layers[static_cast<size_t>(layer)];
  const int64_t hidden = config.hidden_size;
  const int64_t slots = config.num_experts_per_token;
  const int64_t sorted = rows() * slots;
  const MatrixView norm = bf16(tape.norm2, hidden);

  ACCORD_ASSIGN_OR_RETURN(BF16* const ddown, scratch_.get<BF16>(kDdown, sorted * hidden));
  ACCORD_ASSIGN_OR_RETURN(float* const dweights, scratch_.get<float>(kDweights, sorted));
  cuda::moe_combine_backward(dx_TH, hidden, tape.down.matrix(Dtype::kBF16, sorted, hidden),
                             tape.sorted_tokens.as<int32_t>(), tape.sorted_slots.as<int32_t>(),
                             tape.topk_weights.as<float>(), slots, ddown, dweights, c_.handle());

  ACCORD_ASSIGN_OR_RETURN(BF16* const dlogits, scratch_.get<BF16>(kDlogits, rows() * config.num_experts));
  cuda::router_backward(kernels::router_rule(config), tape.router_probs.as<float>(),
                        tape.topk_ids.as<int32_t>(), dweights, rows(), dlogits, c_.handle());
  ACCORD_RETURN_IF_ERROR(
      linears_.run({{params.router, &weights.router, dlogits}}, norm.row<BF16>(0), rows(), {dnorm_TH}));

  ACCORD_ASSIGN_OR_RETURN(float* const din, scratch_.get<float>(kDexpertIn, sorted * hidden));
  ACCORD_RETURN_IF_ERROR(expert_mlps(layer, tape, ddown, din));
  cuda::moe_dispatch_backward(din, hidden, tape.slot_rows.as<int32_t>(), slots, rows(), dnorm_TH,
                              c_.handle());
  if (params.shared.gate < 0) return absl::OkStatus();
  const RowMlp shared{params.shared,    weights.shared, config.shared_width(),
                      tape.shared_gate, tape.shared_up, tape.shared_act};
  return row_mlp(shared, norm, dx_TH, dnorm_TH, true);
}

Status CudaLayerBackward::expert_mlps(int64_t layer, const model::CudaLayerTape& tape, BF16* ddown_RH,
                                      float* din_RH) {
  const ModelConfig& config = c_.config;
  const Experts& experts = experts_[static_cast<size_t>(layer)];
  const model::CudaModel::ExpertWeights tables = model_.expert_weights(layer);
  const int64_t width = config.moe_intermediate_size;

  CudaLinearBackward::ExpertRows sorted;
  sorted.rows = rows() * config.num_experts_per_token;
  sorted.num_experts = static_cast<int32_t>(config.num_experts);
  sorted.offsets = tape.expert_offsets.as<int32_t>();
  sorted.groups.tiles = tape.group_tiles.as<cuda::GroupTile>();
  sorted.groups.num_tiles = tape.num_group_tiles.as<int32_t>();
  sorted.groups.tile_rows = cuda::group_tile_rows(sorted.rows, config.num_experts);
  sorted.groups.max_tiles = cuda::group_tiles_bound(sorted.rows, config.num_experts, sorted.groups.tile_rows);
  const auto linear = [](const ExpertProjection& p, const void* table, BF16* dy) {
    return CudaLinearBackward::ExpertLinear{p.parameters, p.weights, table, p.gradients, dy};
  };

  const int64_t values = sorted.rows * width;
  ACCORD_ASSIGN_OR_RETURN(float* const dact, scratch_.get<float>(kDact, values));
  ACCORD_RETURN_IF_ERROR(linears_.run_experts({linear(experts.down, tables.down, ddown_RH)},
                                              tape.act.as<BF16>(), sorted, {dact}));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dgate, scratch_.get<BF16>(kDgate, values));
  ACCORD_ASSIGN_OR_RETURN(BF16* const dup, scratch_.get<BF16>(kDup, values));
  cuda::swiglu_backward(tape.gate.matrix(Dtype::kBF16, sorted.rows, width),
                        tape.up.matrix(Dtype::kBF16, sorted.rows, width), dact, dgate, dup, c_.handle());
  sorted.sorted_tokens = tape.sorted_tokens.as<int32_t>();
  sorted.tokens = rows();
  return linears_.run_experts({linear(experts.gate, tables.gate, dgate), linear(experts.up, tables.up, dup)},
                              tape.norm2.as<BF16>(), sorted, {din_RH});
}

}  // namespace accord::trainer
