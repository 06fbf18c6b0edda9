#include "bench/random_policy.hpp"

#include <algorithm>
#include <cstring>
#include <filesystem>
#include <vector>

#include "base/philox.hpp"
#include "recipe/recipe.hpp"
#include "weights/manifest.hpp"
#include "weights/quantize.hpp"

namespace accord::bench {
namespace {

constexpr int64_t kRandomValues = int64_t{1} << 20;
constexpr int64_t kTileRows = 128;

recipe::PrecisionPart one_format(WeightFormat format, const std::string& pattern) {
  recipe::PrecisionPart part;
  if (format == WeightFormat::kBF16) return part;
  recipe::PrecisionConfig chosen;
  chosen.name = "chosen";
  chosen.format = format;
  part.configs = {chosen};
  part.matchers = {{.name = "chosen", .pattern = pattern, .config = chosen.name}};
  return part;
}

StatusOr<RandomPolicy> policy_of(const ModelConfig& config, const recipe::PrecisionPart& part) {
  RandomPolicy policy;
  policy.config = config;
  ACCORD_ASSIGN_OR_RETURN(policy.plan, precision::build_plan(config, part));
  ACCORD_ASSIGN_OR_RETURN(policy.manifest, weights::build_manifest(config, policy.plan));
  return policy;
}

}  // namespace

StatusOr<RandomPolicy> uniform_policy(const ModelConfig& config, WeightFormat format) {
  return policy_of(config, one_format(format, "*"));
}

StatusOr<RandomPolicy> planned_policy(const ModelConfig& config, const std::string& format) {
  const char* const pattern = config.num_experts > 0 ? "*.mlp.experts.*" : "*";
  if (format == "bf16") return policy_of(config, {});
  if (format == "mxfp8") return policy_of(config, one_format(WeightFormat::kMXFP8, pattern));
  if (format == "nvfp4") return policy_of(config, one_format(WeightFormat::kNVFP4, pattern));
  std::error_code error;
  if (!std::filesystem::is_regular_file(format, error)) {
    return usage_error("--format: '{}' is neither a recipe nor one of bf16, mxfp8, nvfp4", format);
  }
  ACCORD_ASSIGN_OR_RETURN(const recipe::Recipe recipe, recipe::load_recipe(format));
  ModelConfig with_form = config;
  if (config.has_mla()) with_form.mla.form = recipe.model.mla;
  return policy_of(with_form, recipe.precision);
}

void fill_arena(const RandomPolicy& policy, std::byte* arena, ThreadPool& pool) {
  std::vector<float> values(static_cast<size_t>(kRandomValues));
  PhiloxStream random(1, 1);
  const auto scale = static_cast<float>(policy.config.initializer_range);
  for (float& x : values) x = scale * static_cast<float>(random.next_normal());
  for (const WeightEntry& e : policy.manifest.entries) {
    const precision::PlanRow& row = *policy.plan.find(e.name);
    const weights::MatrixShape shape = weights::matrix_shape(e);
    if (e.format == WeightFormat::kF32) {
      std::memset(arena + e.data_offset, 0, static_cast<size_t>(e.data_bytes));
      continue;
    }
    const float outer = 4.0F * scale;  // A: a size that normal values reach
    if (e.outer_bytes > 0) std::memcpy(arena + e.outer_offset, &outer, sizeof(outer));
    pool.parallel_for((shape.rows + kTileRows - 1) / kTileRows, [&](int64_t tile) {
      const int64_t begin = tile * kTileRows;
      const auto count = static_cast<size_t>(std::min(kTileRows, shape.rows - begin) * shape.cols);
      std::vector<float> masters(count);
      size_t at = static_cast<size_t>((e.data_offset / 64 + begin * 61) % (kRandomValues / 2));
      for (size_t done = 0; done < count; at = 0) {
        const size_t piece = std::min(count - done, values.size() - at);
        std::copy_n(values.begin() + static_cast<std::ptrdiff_t>(at), piece,
                    masters.begin() + static_cast<std::ptrdiff_t>(done));
        done += piece;
      }
      if (e.shape.size() == 1) std::fill(masters.begin(), masters.end(), 1.0F);
      (void)weights::quantize_tile(e, row, masters, begin, outer, arena);
    });
  }
}

}  // namespace accord::bench
