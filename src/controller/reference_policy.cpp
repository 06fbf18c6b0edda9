#include "controller/reference_policy.hpp"

#include <algorithm>
#include <vector>

#include "checkpoint/hf_config.hpp"
#include "controller/local_model.hpp"
#include "precision/plan.hpp"
#include "trainer/samples.hpp"
#include "weights/manifest.hpp"

namespace accord::controller {
namespace {

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
                                                                 const ModelConfig& policy, int threads,
                                                                 const Device& device) {
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
  const int64_t positions = (*local)->config().max_position_embeddings;
  std::unique_ptr<ReferenceForward> forward;
  if (device.is_cuda()) {
    StatusOr<std::unique_ptr<ReferenceForward>> made = make_cuda_reference(*std::move(local), device);
    if (!made.ok()) {
      return annotate(made.status(), "model.reference");
    }
    forward = *std::move(made);
  } else {
    forward = make_cpu_reference(*std::move(local));
  }
  return std::unique_ptr<ReferencePolicy>(
      new ReferencePolicy(std::move(forward), positions, recipe.trainer.tokens_per_microbatch));
}

Status ReferencePolicy::fill(std::span<trainer::TrainSample> samples) {
  std::vector<int64_t> rows;
  rows.reserve(samples.size());
  for (const trainer::TrainSample& sample : samples) {
    rows.push_back(static_cast<int64_t>(sample.tokens.size()) - 1);
    if (rows.back() > positions_) {
      return data_error("{}: {} tokens exceed the reference's {} positions (max_position_embeddings)",
                        trainer::describe(sample.key), sample.tokens.size(), positions_);
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
  std::vector<float> temperatures;
  for (const int32_t m : members) {
    const trainer::TrainSample& sample = samples[static_cast<size_t>(m)];
    temperatures.insert(temperatures.end(), static_cast<size_t>(sample.response_length()),
                        sample.temperature);
  }
  std::vector<float> logprobs(temperatures.size());
  ACCORD_RETURN_IF_ERROR(forward_->logprobs(packed_, temperatures, logprobs));
  auto next = logprobs.begin();
  for (const int32_t m : members) {
    trainer::TrainSample& sample = samples[static_cast<size_t>(m)];
    const auto end = next + sample.response_length();
    sample.ref_logprobs.assign(next, end);
    next = end;
  }
  return absl::OkStatus();
}

}  // namespace accord::controller
