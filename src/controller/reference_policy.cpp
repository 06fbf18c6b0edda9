#include "controller/reference_policy.hpp"

#include <algorithm>
#include <vector>

#include "checkpoint/hf_config.hpp"
#include "kernels/logprob/logprob.hpp"
#include "precision/plan.hpp"
#include "trainer/samples.hpp"
#include "weights/manifest.hpp"

namespace accord::controller {
namespace {

constexpr int64_t kLogitsElements = int64_t{1} << 24;  // of one chunk of response rows: 64 MiB of fp32

const char* name_of(Architecture architecture) {
  switch (architecture) {
    case Architecture::kLlama:
      return "Llama";
    case Architecture::kQwen3:
      return "Qwen3";
    case Architecture::kQwen3Moe:
      return "Qwen3-MoE";
    case Architecture::kDeepseekV3:
      return "DeepSeek-V3";
  }
  return "unknown";
}

}  // namespace

std::optional<std::string> reference_of(const recipe::Recipe& recipe) {
  if (recipe.algorithm.kl_coefficient == 0.0 && !recipe.algorithm.reference_kl) {
    return std::nullopt;
  }
  return recipe.model.reference.value_or(recipe.model.checkpoint);
}

StatusOr<ModelConfig> read_reference_config(const std::string& reference, const recipe::Recipe& recipe,
                                            const ModelConfig& policy) {
  const StatusOr<checkpoint::HfConfig> hf = checkpoint::read_hf_config(reference);
  if (!hf.ok()) {
    return annotate(hf.status(), "model.reference");
  }
  const ModelConfig& config = hf->model;
  if (config.architecture != policy.architecture || config.vocab_size != policy.vocab_size) {
    return data_error(
        "model.reference: {} is {} with {} tokens, the policy {} is {} with {}: architecture and vocabulary "
        "must be the same",
        reference, name_of(config.architecture), config.vocab_size, recipe.model.checkpoint,
        name_of(policy.architecture), policy.vocab_size);
  }
  return config;
}

StatusOr<int64_t> reference_bytes(const ModelConfig& reference) {
  ACCORD_ASSIGN_OR_RETURN(const precision::PrecisionPlan plan,
                          precision::build_plan(reference, recipe::PrecisionPart{}));
  ACCORD_ASSIGN_OR_RETURN(const WeightManifest manifest, weights::build_manifest(reference, plan));
  return manifest.arena_bytes;
}

StatusOr<std::unique_ptr<ReferencePolicy>> ReferencePolicy::load(const std::string& reference,
                                                                 const recipe::Recipe& recipe,
                                                                 const ModelConfig& policy, int threads) {
  ACCORD_RETURN_IF_ERROR(read_reference_config(reference, recipe, policy).status());
  LocalModelOptions options;
  options.checkpoint = reference;
  options.compute_dtype = recipe.model.compute_dtype;
  options.mla = recipe.model.mla;
  options.threads = threads;
  StatusOr<std::unique_ptr<LocalModel>> local = LocalModel::load(options);
  if (!local.ok()) {
    return annotate(local.status(), "model.reference");
  }
  return std::unique_ptr<ReferencePolicy>(
      new ReferencePolicy(*std::move(local), recipe.trainer.tokens_per_microbatch));
}

Status ReferencePolicy::fill(std::span<trainer::TrainSample> samples) {
  const int64_t positions = local_->config().max_position_embeddings;
  std::vector<int64_t> rows;
  rows.reserve(samples.size());
  for (const trainer::TrainSample& sample : samples) {
    rows.push_back(static_cast<int64_t>(sample.tokens.size()) - 1);
    if (rows.back() > positions) {
      return data_error("{}: {} tokens exceed the reference's {} positions (max_position_embeddings)",
                        trainer::describe(sample.key), sample.tokens.size(), positions);
    }
  }
  for (const std::vector<int32_t>& members : trainer::pack_sequences(rows, tokens_per_microbatch_)) {
    ACCORD_RETURN_IF_ERROR(fill_packed(samples, members));
  }
  return absl::OkStatus();
}

Status ReferencePolicy::fill_packed(std::span<trainer::TrainSample> samples,
                                    std::span<const int32_t> members) {
  std::vector<trainer::Sequence> sequences;
  for (const int32_t m : members) {
    const trainer::TrainSample& sample = samples[static_cast<size_t>(m)];
    sequences.push_back({sample.tokens, sample.prompt_length});
  }
  packed_.build(sequences);
  model::Model& model = local_->model();
  const ModelConfig& c = local_->config();
  const int64_t rows = packed_.num_rows();
  const MatrixView x_TH = x_.matrix(model.compute_dtype(), rows, c.hidden_size);
  // A layer is done before the next one begins: one layer's cache serves all.
  const model::KvLayer kv = model::kv_layer(c, model.compute_dtype(), rows, k_, v_);
  model.embed(packed_.batch(), x_TH);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    ACCORD_RETURN_IF_ERROR(model.layer_forward(layer, packed_.batch(), kv, x_TH, {}, nullptr));
  }
  head(x_TH, samples, members);
  return absl::OkStatus();
}

void ReferencePolicy::head(MatrixView x_TH, std::span<trainer::TrainSample> samples,
                           std::span<const int32_t> members) {
  std::vector<float*> out;  // per response token
  std::vector<float> temperatures;
  for (const int32_t m : members) {
    trainer::TrainSample& sample = samples[static_cast<size_t>(m)];
    sample.ref_logprobs.resize(static_cast<size_t>(sample.response_length()));
    for (float& logprob : sample.ref_logprobs) {
      out.push_back(&logprob);
      temperatures.push_back(sample.temperature);
    }
  }
  const int64_t vocab = local_->config().vocab_size;
  const auto count = static_cast<int64_t>(out.size());
  const int64_t chunk = std::max<int64_t>(kLogitsElements / vocab, 1);
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t n = std::min(chunk, count - begin);
    const MatrixView logits = logits_.matrix(Dtype::kF32, n, vocab);
    local_->model().logits(
        x_TH, packed_.response_rows().subspan(static_cast<size_t>(begin), static_cast<size_t>(n)), logits);
    local_->pool().parallel_for(n, [&](int64_t i) {
      const auto token = static_cast<size_t>(begin + i);
      *out[token] = kernels::token_logprob(logits.row<float>(i), vocab, packed_.response_tokens()[token],
                                           temperatures[token]);
    });
  }
}

}  // namespace accord::controller
