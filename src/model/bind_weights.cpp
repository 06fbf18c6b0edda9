#include <string>
#include <unordered_map>

#include "kernels/gemm/fragments.hpp"
#include "model/forward.hpp"

namespace accord::model {
namespace {

int64_t expected_data_bytes(WeightFormat format, int64_t numel) {
  switch (format) {
    case WeightFormat::kBF16:
      return 2 * numel;
    case WeightFormat::kMXFP8:
      return numel;
    case WeightFormat::kNVFP4:
      return numel / 2;
    case WeightFormat::kF32:
      return 4 * numel;
  }
  return -1;
}

int64_t block_of(WeightFormat format) {
  return format == WeightFormat::kMXFP8 ? 32 : format == WeightFormat::kNVFP4 ? 16 : 1;
}

class Binder {
 public:
  Binder(const WeightManifest& manifest, const void* arena)
      : manifest_(manifest), arena_(static_cast<const std::byte*>(arena)) {
    for (const WeightEntry& entry : manifest.entries) {
      by_name_.emplace(entry.name, &entry);
    }
  }

  StatusOr<const WeightEntry*> find(const ParamSpec& spec) const {
    const auto it = by_name_.find(spec.name);
    if (it == by_name_.end()) {
      return data_error("weight manifest: parameter '{}' is missing", spec.name);
    }
    const WeightEntry& e = *it->second;
    if (e.shape != spec.shape) {
      return data_error("weight manifest: '{}' has another shape than the model's config asks for",
                        spec.name);
    }
    if (e.data_bytes != expected_data_bytes(e.format, spec.numel())) {
      return data_error("weight manifest: '{}' holds {} bytes of elements, its shape and format need {}",
                        spec.name, e.data_bytes, expected_data_bytes(e.format, spec.numel()));
    }
    const auto inside = [&](int64_t offset, int64_t bytes) {
      return offset >= 0 && bytes >= 0 && offset + bytes <= manifest_.arena_bytes;
    };
    if (!inside(e.data_offset, e.data_bytes) || !inside(e.scale_offset, e.scale_bytes) ||
        !inside(e.outer_offset, e.outer_bytes)) {
      return data_error("weight manifest: '{}' lies outside the arena of {} bytes", spec.name,
                        manifest_.arena_bytes);
    }
    return &e;
  }

  Status plain(const ParamSpec& spec, const BF16*& out) const {
    ACCORD_ASSIGN_OR_RETURN(const WeightEntry* e, find(spec));
    if (e->format != WeightFormat::kBF16) {
      return data_error("weight manifest: '{}' must be BF16 (embeddings and norms are never quantized)",
                        spec.name);
    }
    out = reinterpret_cast<const BF16*>(arena_ + e->data_offset);
    return absl::OkStatus();
  }

  Status exact(const ParamSpec& spec, const float*& out) const {
    ACCORD_ASSIGN_OR_RETURN(const WeightEntry* e, find(spec));
    if (e->format != WeightFormat::kF32 || e->data_offset % 4 != 0) {
      return data_error("weight manifest: '{}' must be aligned FP32", spec.name);
    }
    out = reinterpret_cast<const float*>(arena_ + e->data_offset);
    return absl::OkStatus();
  }

  Status linear(const ParamSpec& spec, LinearWeight& out) const {
    ACCORD_ASSIGN_OR_RETURN(const WeightEntry* e, find(spec));
    if (e->format == WeightFormat::kF32) {
      return data_error("weight manifest: '{}' is FP32, which no product reads", spec.name);
    }
    out.format = e->format;
    out.scaling = e->scaling;
    out.activations = e->activations;
    out.n = spec.shape[0];
    out.k = spec.shape[1];
    out.data = arena_ + e->data_offset;
    if (e->format == WeightFormat::kBF16) {
      return absl::OkStatus();
    }
    const int64_t block = block_of(e->format);
    if (out.k % block != 0) {
      return data_error(
          "weight manifest: '{}' contracts over {} values, which do not divide into blocks of {}", spec.name,
          out.k, block);
    }
    if (e->scale_bytes != out.n * (out.k / block)) {
      return data_error("weight manifest: '{}' holds {} bytes of scales, its shape needs {}", spec.name,
                        e->scale_bytes, out.n * (out.k / block));
    }
    out.scales = reinterpret_cast<const uint8_t*>(arena_ + e->scale_offset);
    if (e->format == WeightFormat::kNVFP4) {
      if (e->outer_bytes != static_cast<int64_t>(sizeof(float)) || e->outer_offset % 4 != 0) {
        return data_error("weight manifest: '{}' needs one aligned fp32 outer scale", spec.name);
      }
      out.outer = reinterpret_cast<const float*>(arena_ + e->outer_offset);
    }
    return absl::OkStatus();
  }

 private:
  const WeightManifest& manifest_;
  const std::byte* arena_;
  std::unordered_map<std::string, const WeightEntry*> by_name_;
};

Status bind_norm(const Binder& binder, const ParamSpec& spec, PolicyWeights& out) {
  if (spec.layer < 0) {
    return binder.plain(spec, out.final_norm);
  }
  LayerWeights& layer = out.layers[static_cast<size_t>(spec.layer)];
  if (spec.name.ends_with(".q_norm.weight")) {
    return binder.plain(spec, layer.q_norm);
  }
  if (spec.name.ends_with(".k_norm.weight")) {
    return binder.plain(spec, layer.k_norm);
  }
  if (spec.name.ends_with(".q_a_layernorm.weight")) {
    return binder.plain(spec, layer.q_a_norm);
  }
  if (spec.name.ends_with(".kv_a_layernorm.weight")) {
    return binder.plain(spec, layer.kv_a_norm);
  }
  return binder.plain(spec,
                      spec.name.ends_with(".input_layernorm.weight") ? layer.input_norm : layer.post_norm);
}

Status bind_layer_linear(const Binder& binder, const ParamSpec& spec, LayerWeights& layer) {
  const auto mlp = [&]() -> MlpWeights& {
    if (spec.shared) {
      return layer.shared;
    }
    const auto index = static_cast<size_t>(spec.expert < 0 ? 0 : spec.expert);
    if (layer.mlp.size() <= index) {
      layer.mlp.resize(index + 1);
    }
    return layer.mlp[index];
  };
  switch (spec.role) {
    case ParamRole::kQ:
      return binder.linear(spec, layer.q);
    case ParamRole::kK:
      return binder.linear(spec, layer.k);
    case ParamRole::kV:
      return binder.linear(spec, layer.v);
    case ParamRole::kO:
      return binder.linear(spec, layer.o);
    case ParamRole::kQA:
      return binder.linear(spec, layer.q_a);
    case ParamRole::kQB:
      return binder.linear(spec, layer.q_b);
    case ParamRole::kKvA:
      return binder.linear(spec, layer.kv_a);
    case ParamRole::kKvB:
      return binder.linear(spec, layer.kv_b);
    case ParamRole::kRouter:
      return binder.linear(spec, layer.router);
    case ParamRole::kRouterBias:
      return binder.exact(spec, layer.router_bias);
    case ParamRole::kGate:
      return binder.linear(spec, mlp().gate);
    case ParamRole::kUp:
      return binder.linear(spec, mlp().up);
    case ParamRole::kDown:
      return binder.linear(spec, mlp().down);
    default:
      return internal_error("parameter '{}' has no place in a layer", spec.name);
  }
}

}  // namespace

StatusOr<PolicyWeights> bind_weights(const ModelConfig& config, const WeightManifest& manifest,
                                     const void* arena) {
  ACCORD_RETURN_IF_ERROR(validate(config));
  const Binder binder(manifest, arena);
  PolicyWeights out;
  out.layers.resize(static_cast<size_t>(config.num_layers));
  for (const ParamSpec& spec : parameter_specs(config)) {
    switch (spec.role) {
      case ParamRole::kEmbedding:
        ACCORD_RETURN_IF_ERROR(binder.plain(spec, out.embedding));
        if (config.tie_word_embeddings) {
          ACCORD_RETURN_IF_ERROR(binder.linear(spec, out.lm_head));
        }
        break;
      case ParamRole::kLmHead:
        ACCORD_RETURN_IF_ERROR(binder.linear(spec, out.lm_head));
        break;
      case ParamRole::kNorm:
        ACCORD_RETURN_IF_ERROR(bind_norm(binder, spec, out));
        break;
      default:
        ACCORD_RETURN_IF_ERROR(bind_layer_linear(binder, spec, out.layers[static_cast<size_t>(spec.layer)]));
    }
  }
  if (config.absorbed()) {
    for (size_t layer = 0; layer < out.layers.size(); ++layer) {
      if (out.layers[layer].kv_b.format != WeightFormat::kBF16) {
        return data_error(
            "weight manifest: kv_b_proj of layer {} is quantized along the latent, but the absorbed form "
            "contracts its other axis too (keep it BF16, or use model.mla: plain)",
            layer);
      }
    }
  }
  return out;
}

int64_t expert_fragment_bytes(const WeightManifest& manifest) {
  int64_t bytes = 0;
  for (const WeightEntry& e : manifest.entries) {
    const bool routed = e.name.find(".mlp.experts.") != std::string::npos;
    if (routed && e.shape.size() == 2 && kernels::takes_fragments(e.format, e.shape[0], e.shape[1])) {
      bytes += kernels::fragments_bytes(e.format, e.shape[0], e.shape[1]);
    }
  }
  return bytes;
}

}  // namespace accord::model
