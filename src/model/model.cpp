#include <algorithm>
#include <numeric>
#include <utility>

#include "kernels/embedding/embedding.hpp"
#include "kernels/gemm/gemm.hpp"
#include "kernels/rmsnorm/rmsnorm.hpp"
#include "model/batch_check.hpp"
#include "model/impl.hpp"

namespace accord::model {

Model::Model(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Model::~Model() = default;

StatusOr<std::unique_ptr<Model>> Model::create(const ModelConfig& config, PolicyWeights weights,
                                               Dtype compute_dtype, ThreadPool& pool) {
  ACCORD_RETURN_IF_ERROR(validate(config));
  if (compute_dtype != Dtype::kF32 && compute_dtype != Dtype::kBF16) {
    return internal_error("the model computes in float32 or bfloat16");
  }
  if (weights.layers.size() != static_cast<size_t>(config.num_layers)) {
    return internal_error("weights of {} layers for a model of {}", weights.layers.size(), config.num_layers);
  }
  return std::unique_ptr<Model>(
      new Model(std::make_unique<Impl>(config, std::move(weights), compute_dtype, pool)));
}

const ModelConfig& Model::config() const { return impl_->config; }
const PolicyWeights& Model::weights() const { return impl_->weights; }
Dtype Model::compute_dtype() const { return impl_->dtype; }

Status Model::set_expert_group(Communicator* group) {
  impl_->exchange.reset();
  if (group == nullptr || group->size() == 1) {
    return absl::OkStatus();
  }
  const int64_t experts = impl_->config.num_experts;
  if (experts == 0 || experts % group->size() != 0) {
    return recipe_error(
        "trainer.expert_parallel is {}, but the model has {} experts per layer: give a divisor",
        group->size(), experts);
  }
  impl_->exchange = std::make_unique<ExpertExchange>(*group, experts);
  return absl::OkStatus();
}

ExpertExchange* Model::expert_exchange() const { return impl_->exchange.get(); }

const kernels::RopeTable& Model::rope(int64_t count) {
  impl_->rope.ensure(count);
  return impl_->rope;
}

Status Model::check(const Batch& batch, int64_t kv_rows) const {
  return check_batch(impl_->config, batch, kv_rows);
}

Status Model::check_replay(std::span<const int32_t> ids, int64_t num_rows) const {
  return model::check_replay(impl_->config, ids, num_rows);
}

void Model::embed(const Batch& batch, MatrixView x_TH) {
  kernels::embed_rows(impl_->weights.embedding, batch.tokens, x_TH);
}

void Model::logits(MatrixView x_TH, std::span<const int32_t> rows, MatrixView logits_RV,
                   MatrixView* normed_RH, float* inv_rms) {
  Impl& m = *impl_;
  const auto count = static_cast<int64_t>(rows.size());
  const MatrixView normed =
      normed_RH != nullptr ? *normed_RH : m.normed.matrix(m.dtype, count, m.config.hidden_size);
  const LinearWeight& head = m.weights.lm_head;
  const auto eps = static_cast<float>(m.config.rms_norm_eps);
  m.for_rows(count, count * head.n * head.k, [&](int64_t begin, int64_t end, ThreadPool* inner) {
    for (int64_t r = begin; r < end; ++r) {
      kernels::rms_norm(x_TH.slice_rows(rows[static_cast<size_t>(r)], 1), m.weights.final_norm, eps,
                        normed.slice_rows(r, 1), inv_rms == nullptr ? nullptr : inv_rms + r);
    }
    const kernels::WorkspacePool::Lease lease = m.scratch.acquire();
    const kernels::Operand operand =
        kernels::make_operand(normed.slice_rows(begin, end - begin), head.activation_format(), *lease);
    kernels::linear(operand, head, logits_RV.slice_rows(begin, end - begin), inner, m.scratch);
  });
}

}  // namespace accord::model
