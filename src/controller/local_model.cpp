#include "controller/local_model.hpp"

#include <algorithm>
#include <thread>
#include <utility>
#include <vector>

#include "base/log.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "controller/source_check.hpp"
#include "precision/plan.hpp"
#include "recipe/recipe.hpp"
#include "weights/arena.hpp"
#include "weights/export.hpp"
#include "weights/manifest.hpp"

namespace accord::controller {
namespace {

int thread_count(int asked) {
  return asked > 0 ? asked : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

// The forward quantizes NVFP4 activations per token with the plain scale rule and range 448.
Status check_runnable(const precision::PrecisionPlan& plan) {
  for (const precision::PlanRow& row : plan.rows) {
    if (row.format == WeightFormat::kNVFP4 && row.scope != recipe::ScaleScope::kToken) {
      return recipe_error(
          "the plan of '{}' asks for per-tensor activation scales, under which a token's result depends on "
          "its "
          "neighbours (use scope: token)",
          row.name);
    }
  }
  return absl::OkStatus();
}

// A checkpoint does not say which form of latent attention it is for, but a quantized kv_b_proj does.
Status check_stored_kv_b(const checkpoint::HfCheckpoint& source, const ModelConfig& config) {
  for (const ParamSpec& spec : source.specs()) {
    const checkpoint::Encoding encoding = source.stored(spec.name)->encoding;
    const bool quantized =
        encoding == checkpoint::Encoding::kMxfp8 || encoding == checkpoint::Encoding::kNvfp4;
    if (spec.role == ParamRole::kKvB && quantized && config.absorbed()) {
      return recipe_error(
          "{}: '{}' is stored in {}, which the absorbed form of attention cannot use; give --recipe with a "
          "recipe that has model.mla: plain and this precision",
          source.dir(), spec.name, name_of(encoding));
    }
  }
  return absl::OkStatus();
}

}  // namespace

struct LocalModel::Impl {
  explicit Impl(int threads) : pool(threads) {}

  ModelConfig config;
  WeightManifest manifest;
  ThreadPool pool;
  std::unique_ptr<weights::Arena> arena;
  std::unique_ptr<model::Model> model;
};

LocalModel::LocalModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
LocalModel::~LocalModel() = default;

const ModelConfig& LocalModel::config() const { return impl_->config; }
const WeightManifest& LocalModel::manifest() const { return impl_->manifest; }
const std::byte* LocalModel::arena() const { return impl_->arena->data(); }
Dtype LocalModel::compute_dtype() const { return impl_->model->compute_dtype(); }
model::Model& LocalModel::model() { return *impl_->model; }
ThreadPool& LocalModel::pool() { return impl_->pool; }

StatusOr<std::unique_ptr<LocalModel>> LocalModel::load(const LocalModelOptions& options) {
  std::optional<recipe::PrecisionPart> precision;  // none: as the checkpoint is stored
  MlaForm mla = kDefaultMlaForm;
  Dtype dtype = Dtype::kBF16;
  if (!options.recipe.empty()) {
    // Only the precision counts here: a recipe that this version cannot train with can still be run.
    ACCORD_ASSIGN_OR_RETURN(const recipe::Inspection inspection, recipe::inspect_recipe_file(options.recipe));
    precision = inspection.recipe.precision;
    dtype = inspection.recipe.model.compute_dtype;
    mla = inspection.recipe.model.mla;
  }
  ACCORD_ASSIGN_OR_RETURN(const checkpoint::HfCheckpoint source,
                          checkpoint::HfCheckpoint::open(options.checkpoint));
  auto impl = std::make_unique<Impl>(thread_count(options.threads));
  impl->config = source.config();
  impl->config.mla.form = options.mla.value_or(mla);
  if (!precision) {
    ACCORD_RETURN_IF_ERROR(check_stored_kv_b(source, impl->config));
  }
  ACCORD_ASSIGN_OR_RETURN(const precision::PrecisionPlan plan,
                          precision::build_plan(impl->config, precision ? *precision : precision_of(source)));
  ACCORD_RETURN_IF_ERROR(check_runnable(plan));
  ACCORD_RETURN_IF_ERROR(check_source_formats(source, plan));
  if (const std::string note = source_note(source); !note.empty()) {
    log::info("{}", note);
  }

  ACCORD_ASSIGN_OR_RETURN(impl->manifest, weights::build_manifest(impl->config, plan));
  ACCORD_ASSIGN_OR_RETURN(impl->arena, weights::Arena::create(impl->manifest.arena_bytes));
  const weights::Masters masters = [&source](const std::string& name) -> StatusOr<weights::Master> {
    const std::vector<ParamSpec>& specs = source.specs();
    const auto spec = std::find_if(specs.begin(), specs.end(), [&](const auto& s) { return s.name == name; });
    if (spec == specs.end()) {
      return internal_error("no parameter '{}'", name);
    }
    std::vector<float> values(static_cast<size_t>(spec->numel()));
    ACCORD_RETURN_IF_ERROR(source.read_f32(name, values));
    return weights::Master(std::move(values));
  };
  // Nobody uses the arena if this fails, so tensors need not be checked before the first is written.
  ACCORD_RETURN_IF_ERROR(
      weights::export_weights(impl->manifest, plan, masters, *impl->arena, impl->pool, {.check_first = false})
          .status());
  ACCORD_ASSIGN_OR_RETURN(model::PolicyWeights bound,
                          model::bind_weights(impl->config, impl->manifest, impl->arena->data()));
  ACCORD_ASSIGN_OR_RETURN(
      impl->model, model::Model::create(impl->config, std::move(bound), options.compute_dtype.value_or(dtype),
                                        impl->pool));
  return std::unique_ptr<LocalModel>(new LocalModel(std::move(impl)));
}

StatusOr<Dtype> parse_compute_dtype(const std::string& text) {
  if (text == "float32") {
    return Dtype::kF32;
  }
  if (text == "bfloat16") {
    return Dtype::kBF16;
  }
  return usage_error("dtype '{}' is not one of float32, bfloat16", text);
}

}  // namespace accord::controller
