#include <algorithm>
#include <charconv>
#include <cmath>
#include <cstring>
#include <map>
#include <optional>
#include <set>
#include <utility>

#include "base/mapped_memory.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "checkpoint/ignore_list.hpp"
#include "checkpoint/strict_json.hpp"
#include "kernels/math/convert.hpp"

namespace accord::checkpoint {
namespace {

constexpr char kHead[] = "lm_head.weight";
constexpr char kEmbedding[] = "model.embed_tokens.weight";
constexpr int64_t kChunk = 1 << 16;

bool is_floating(Dtype dtype) {
  return dtype == Dtype::kBF16 || dtype == Dtype::kF32 || dtype == Dtype::kF16;
}

bool ends_with(std::string_view text, std::string_view end) {
  return text.size() >= end.size() && text.substr(text.size() - end.size()) == end;
}

// Where an expert's parameter lies when all experts of the layer share one tensor.
struct Fused {
  std::string name;
  std::vector<int64_t> shape;
  int64_t first = 0;
};

Fused fused_form(const ParamSpec& spec, const ModelConfig& config) {
  const int64_t hidden = config.hidden_size;
  const int64_t width = config.moe_intermediate_size;
  const std::string prefix = fmt::format("model.layers.{}.mlp.experts.", spec.layer);
  if (spec.role == ParamRole::kDown) {
    return {prefix + "down_proj", {config.num_experts, hidden, width}, spec.expert * hidden * width};
  }
  const int64_t half = spec.role == ParamRole::kUp ? width * hidden : 0;
  return {prefix + "gate_up_proj",
          {config.num_experts, 2 * width, hidden},
          spec.expert * 2 * width * hidden + half};
}

// DeepSeek-V3's files hold layers for multi-token prediction after the model's own; transformers passes over
// them too.
bool is_prediction_layer(std::string_view name, const ModelConfig& config) {
  constexpr std::string_view kLayers = "model.layers.";
  if (config.architecture != Architecture::kDeepseekV3 || name.substr(0, kLayers.size()) != kLayers) {
    return false;
  }
  const std::string_view rest = name.substr(kLayers.size());
  int64_t layer = -1;
  const auto [end, error] = std::from_chars(rest.data(), rest.data() + rest.size(), layer);
  return error == std::errc() && end != rest.data() + rest.size() && *end == '.' &&
         layer >= config.num_layers;
}

// At most a few names, and how many more.
std::string name_list(const std::vector<std::string>& names) {
  constexpr size_t kShown = 6;
  std::string text;
  for (size_t i = 0; i < std::min(names.size(), kShown); ++i) {
    text += (i > 0 ? ", " : "") + names[i];
  }
  return names.size() > kShown ? fmt::format("{}, and {} more", text, names.size() - kShown) : text;
}

struct Problems {
  std::vector<std::string> missing;
  std::vector<std::string> extra;
  std::vector<std::string> wrong;

  Status status(const std::string& dir) const {
    std::vector<std::string> parts;
    for (const auto& [label, names] :
         {std::pair{"missing", &missing}, {"unexpected", &extra}, {"wrong", &wrong}}) {
      if (!names->empty()) {
        parts.push_back(fmt::format("{} {}: {}", names->size(), label, name_list(*names)));
      }
    }
    if (parts.empty()) {
      return absl::OkStatus();
    }
    return data_error(
        "{}: the tensors are not those of its config.json; {}; use the config.json that belongs to "
        "these weights, in BF16, F16, F32 or as its quantization_config says",
        dir, fmt::join(parts, "; "));
  }
};

}  // namespace

StatusOr<HfCheckpoint> HfCheckpoint::open(const std::string& dir) {
  HfCheckpoint result;
  result.dir_ = dir;
  ACCORD_ASSIGN_OR_RETURN(result.config_, read_hf_config(dir));
  ACCORD_ASSIGN_OR_RETURN(result.tensors_, ShardedTensors::open(dir));
  result.specs_ = parameter_specs(result.config_.model);
  ACCORD_RETURN_IF_ERROR(result.resolve());
  ACCORD_RETURN_IF_ERROR(result.settle_outer_scales());
  ACCORD_RETURN_IF_ERROR(result.check_tied_head());
  result.release_all();
  return result;
}

Status HfCheckpoint::resolve() {
  Problems problems;
  std::set<std::string_view> used;
  std::set<std::string> reported;
  std::vector<std::string> quantized;
  for (const ParamSpec& spec : specs_) {
    ACCORD_ASSIGN_OR_RETURN(const std::optional<StoredWeight> weight,
                            find_quantized(tensors_, config_.quantization, spec.name, spec.shape, quantized));
    if (weight) {
      sources_.emplace(spec.name, *weight);
      continue;
    }
    std::string name = spec.name;
    std::vector<int64_t> shape = spec.shape;
    int64_t first = 0;
    const TensorInfo* tensor = tensors_.find(name);
    if (tensor == nullptr && spec.expert >= 0) {
      Fused fused = fused_form(spec, config_.model);
      tensor = tensors_.find(fused.name);
      if (tensor != nullptr) {
        name = std::move(fused.name);
        shape = std::move(fused.shape);
        first = fused.first;
      }
    }
    if (tensor == nullptr) {
      problems.missing.push_back(spec.name);
      continue;
    }
    used.insert(tensor->name);
    if (tensor->shape != shape || !is_floating(tensor->dtype)) {
      if (reported.insert(name).second) {
        problems.wrong.push_back(fmt::format("{} is {} {}, expected {}", name, dtype_name(tensor->dtype),
                                             shape_text(tensor->shape), shape_text(shape)));
      }
      continue;
    }
    StoredWeight plain;
    plain.data = tensor;
    plain.first = first;
    plain.cols = spec.shape.empty() ? 1 : spec.shape.back();
    plain.rows = spec.numel() / plain.cols;
    sources_.emplace(spec.name, plain);
  }
  used.insert(quantized.begin(), quantized.end());
  const bool cache_scales = config_.quantization.claims_cache;
  for (const std::string& name : tensors_.names()) {
    const bool prediction = is_prediction_layer(name, config_.model);
    prediction_tensors_ += prediction ? 1 : 0;
    const bool harmless = prediction || ends_with(name, ".rotary_emb.inv_freq") ||
                          (name == kHead && config_.model.tie_word_embeddings) ||
                          (cache_scales && (ends_with(name, ".k_scale") || ends_with(name, ".v_scale")));
    if (!harmless && used.find(name) == used.end()) {
      problems.extra.push_back(printable(name));
    }
  }
  ACCORD_RETURN_IF_ERROR(problems.status(dir_));
  std::vector<StoredFormat> weights;
  for (const ParamSpec& spec : specs_) {
    const Encoding encoding = sources_.at(spec.name).encoding;
    weights.push_back({&spec, name_of(encoding), encoding != Encoding::kPlain});
  }
  return check_ignore_lists(dir_, config_.quantization, weights);
}

// Some files keep the tied head as a copy; a copy that differs is another model.
Status HfCheckpoint::check_tied_head() const {
  const TensorInfo* head = tensors_.find(kHead);
  if (head == nullptr || !config_.model.tie_word_embeddings) {
    return absl::OkStatus();
  }
  const TensorInfo* embedding = tensors_.find(kEmbedding);
  bool equal = head->shape == embedding->shape && is_floating(head->dtype);
  std::vector<float> a(kChunk);
  std::vector<float> b(kChunk);
  for (int64_t first = 0; equal && first < head->numel(); first += kChunk) {
    const auto count = static_cast<size_t>(std::min(kChunk, head->numel() - first));
    const auto a_part = std::span(a).first(count);
    const auto b_part = std::span(b).first(count);
    ACCORD_RETURN_IF_ERROR(convert_to_f32(*head, first, a_part));
    ACCORD_RETURN_IF_ERROR(convert_to_f32(*embedding, first, b_part));
    equal = std::memcmp(a_part.data(), b_part.data(), a_part.size_bytes()) == 0;
  }
  if (!equal) {
    return data_error(
        "{}: tensor '{}' differs from '{}', but config.json says tie_word_embeddings; set it to false if the "
        "model has a head of its own",
        tensors_.file_of(kHead), kHead, kEmbedding);
  }
  return absl::OkStatus();
}

// Gate and up of one MLP share an outer scale where accord wrote it; any other weight is alone.
Status HfCheckpoint::settle_outer_scales() {
  std::map<std::string, std::vector<StoredWeight*>> units;
  for (const ParamSpec& spec : specs_) {
    const auto found = sources_.find(spec.name);
    if (found == sources_.end() || found->second.encoding != Encoding::kNvfp4) {
      continue;
    }
    const bool half = spec.role == ParamRole::kGate || spec.role == ParamRole::kUp;
    const std::string module = spec.name.substr(0, spec.name.rfind('.'));
    units[half ? module.substr(0, module.rfind('.')) + ".gate_up_proj" : module].push_back(&found->second);
  }
  for (const auto& [name, unit] : units) {
    ACCORD_RETURN_IF_ERROR(annotate(settle_outer_scale(config_.quantization, unit), dir_));
  }
  return absl::OkStatus();
}

const StoredWeight* HfCheckpoint::stored(std::string_view name) const {
  const auto found = sources_.find(std::string(name));
  return found == sources_.end() ? nullptr : &found->second;
}

const std::string& HfCheckpoint::file_of(std::string_view name) const {
  const StoredWeight* weight = stored(name);
  return tensors_.file_of(weight == nullptr ? name : weight->data->name);
}

StatusOr<const StoredWeight*> HfCheckpoint::source_of(std::string_view name, int64_t first,
                                                      size_t count) const {
  const StoredWeight* weight = stored(name);
  if (weight == nullptr) {
    return internal_error("{}: '{}' is not a parameter of this model", dir_, printable(name));
  }
  if (first < 0 || first > weight->numel() || static_cast<int64_t>(count) > weight->numel() - first) {
    return internal_error("{}: '{}' has {} elements; {} from {} on were asked for", dir_, printable(name),
                          weight->numel(), count, first);
  }
  return weight;
}

StatusOr<Dtype> HfCheckpoint::dtype(std::string_view name) const {
  ACCORD_ASSIGN_OR_RETURN(const StoredWeight* weight, source_of(name, 0, 0));
  return weight->data->dtype;
}

Status HfCheckpoint::read_f32(std::string_view name, int64_t first, std::span<float> out) const {
  ACCORD_ASSIGN_OR_RETURN(const StoredWeight* weight, source_of(name, first, out.size()));
  ACCORD_RETURN_IF_ERROR(annotate(decode(*weight, first, out), dir_));
  const auto bad = std::find_if(out.begin(), out.end(), [](float value) { return !std::isfinite(value); });
  if (bad != out.end()) {
    return data_error("{}: tensor '{}' holds {} at element {}; weights must be finite",
                      tensors_.file_of(weight->data->name), printable(weight->data->name), *bad,
                      weight->first + first + (bad - out.begin()));
  }
  return absl::OkStatus();
}

Status HfCheckpoint::read_f32(std::string_view name, std::span<float> out) const {
  ACCORD_ASSIGN_OR_RETURN(const StoredWeight* weight, source_of(name, 0, 0));
  if (weight->numel() != static_cast<int64_t>(out.size())) {
    return internal_error("{}: '{}' has {} elements, the destination {}", dir_, printable(name),
                          weight->numel(), out.size());
  }
  return read_f32(name, 0, out);
}

Status HfCheckpoint::read_bf16(std::string_view name, int64_t first, std::span<BF16> out) const {
  ACCORD_ASSIGN_OR_RETURN(const StoredWeight* weight, source_of(name, first, out.size()));
  if (weight->encoding == Encoding::kPlain && weight->data->dtype == Dtype::kBF16) {
    if (!out.empty()) {
      std::memcpy(out.data(), weight->data->data + (weight->first + first) * size_of(Dtype::kBF16),
                  out.size_bytes());
    }
    return absl::OkStatus();
  }
  std::vector<float> chunk(static_cast<size_t>(std::min<int64_t>(kChunk, static_cast<int64_t>(out.size()))));
  for (size_t done = 0; done < out.size(); done += chunk.size()) {
    const auto part = std::span(chunk).first(std::min(chunk.size(), out.size() - done));
    ACCORD_RETURN_IF_ERROR(annotate(decode(*weight, first + static_cast<int64_t>(done), part), dir_));
    kernels::narrow(part.data(), out.data() + done, static_cast<int64_t>(part.size()));
  }
  return absl::OkStatus();
}

Status HfCheckpoint::read_bf16(std::string_view name, std::span<BF16> out) const {
  ACCORD_ASSIGN_OR_RETURN(const StoredWeight* weight, source_of(name, 0, 0));
  if (weight->numel() != static_cast<int64_t>(out.size())) {
    return internal_error("{}: '{}' has {} elements, the destination {}", dir_, printable(name),
                          weight->numel(), out.size());
  }
  return read_bf16(name, 0, out);
}

namespace {

// The bytes of rows [row, row + count) in each of the weight's tensors.
template <class Visit>
void visit_memory(const StoredWeight& w, int64_t row, int64_t count, Visit visit) {
  const int64_t row_bytes = w.encoding == Encoding::kPlain ? w.cols * size_of(w.data->dtype)
                                                           : w.data->bytes / std::max<int64_t>(w.rows, 1);
  visit(w.data->data + w.first * size_of(w.data->dtype) + row * row_bytes,
        static_cast<size_t>(count * row_bytes));
  if (w.scales != nullptr) {
    const int64_t per_row = w.scales->bytes / std::max<int64_t>(w.rows, 1);
    visit(w.scales->data + row * per_row, static_cast<size_t>(count * per_row));
  }
}

}  // namespace

void HfCheckpoint::prefetch(const StoredWeight& weight, int64_t row, int64_t count) const {
  visit_memory(weight, row, count, prefetch_mapped);
}

void HfCheckpoint::release(const StoredWeight& weight, int64_t row, int64_t count) const {
  visit_memory(weight, row, count, release_mapped);
}

void HfCheckpoint::release_all() const {
  for (const SafetensorsFile& file : files()) {
    if (!file.tensors().empty()) {
      const std::byte* begin = file.tensors().front().data;
      const TensorInfo& last = file.tensors().back();
      release_mapped(begin, static_cast<size_t>(last.data + last.bytes - begin));
    }
  }
}

}  // namespace accord::checkpoint
