#include "bench/roofline.hpp"

#include <cmath>

#include "weights/manifest.hpp"

namespace accord::bench {

double StepBytes::coverage(double batch) const { return 1.0 - std::pow(1.0 - experts_chosen, batch); }

double StepBytes::total(double batch, double context) const {
  return dense + coverage(batch) * experts + batch * context * cache_row;
}

double StepBytes::tokens_per_second(double batch, double context, double bandwidth) const {
  return batch * bandwidth / total(batch, context);
}

StatusOr<StepBytes> step_bytes(const ModelConfig& config, const WeightManifest& manifest,
                               int64_t element_bytes) {
  StepBytes bytes;
  bytes.cache_row = static_cast<double>(kv_row_bytes(config, element_bytes));
  if (config.num_experts > 0) {
    bytes.experts_chosen =
        static_cast<double>(config.num_experts_per_token) / static_cast<double>(config.num_experts);
  }
  auto entry = manifest.entries.begin();  // in the order of parameters
  for (const ParamSpec& spec : parameter_specs(config)) {
    if (entry == manifest.entries.end() || entry->name != spec.name) {
      return internal_error("bench: the manifest lacks {}", spec.name);
    }
    const auto payload = static_cast<double>(weights::payload_bytes(*entry++));
    if (spec.role == ParamRole::kEmbedding && !config.tie_word_embeddings) continue;
    (spec.expert >= 0 ? bytes.experts : bytes.dense) += payload;
  }
  return bytes;
}

}  // namespace accord::bench
