#include "kernels/block_scaled/algorithm.hpp"

#include <fmt/format.h>

#include <array>

namespace accord::kernels::block_scaled {
namespace {

constexpr int kCandidates = 32;

StatusOr<LtOwned> make_preference(const LtApi& api, const ProductShape& shape) {
  LtPreference preference = nullptr;
  ACCORD_RETURN_IF_ERROR(
      check(api, api.preference_create(&preference), "cublasLtMatmulPreferenceCreate", shape));
  LtOwned owned(preference, api.preference_destroy);
  const auto set = [&](LtPreferenceAttribute attribute, auto value) {
    return check(api, api.preference_set(preference, static_cast<int>(attribute), &value, sizeof(value)),
                 "cublasLtMatmulPreferenceSetAttribute", shape);
  };
  ACCORD_RETURN_IF_ERROR(set(LtPreferenceAttribute::kMaxWorkspaceBytes, uint64_t{kWorkspaceBytes}));
  ACCORD_RETURN_IF_ERROR(set(LtPreferenceAttribute::kReductionSchemeMask, kLtReductionNone));
  for (const auto attribute :
       {LtPreferenceAttribute::kMinAlignmentA, LtPreferenceAttribute::kMinAlignmentB,
        LtPreferenceAttribute::kMinAlignmentC, LtPreferenceAttribute::kMinAlignmentD}) {
    ACCORD_RETURN_IF_ERROR(set(attribute, kAlignment));
  }
  return owned;
}

StatusOr<AlgorithmConfig> config_of(const LtApi& api, const LtAlgorithm& algorithm,
                                    const ProductShape& shape) {
  AlgorithmConfig c;
  const auto get = [&](LtConfigAttribute attribute, auto& value) {
    size_t written = 0;
    return check(api,
                 api.config_get(&algorithm, static_cast<int>(attribute), &value, sizeof(value), &written),
                 "cublasLtMatmulAlgoConfigGetAttribute", shape);
  };
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kId, c.id));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kTile, c.tile));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kSplitK, c.split_k));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kReductionScheme, c.reduction_scheme));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kSwizzling, c.swizzling));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kCustomOption, c.custom_option));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kStages, c.stages));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kInnerShape, c.inner_shape));
  ACCORD_RETURN_IF_ERROR(get(LtConfigAttribute::kClusterShape, c.cluster_shape));
  return c;
}

bool is_one_sequence(const AlgorithmConfig& c) {
  return c.split_k <= 1 && c.reduction_scheme == kLtReductionNone;
}

}  // namespace

StatusOr<PinnedAlgorithm> pin_algorithm(const LtApi& api, LtHandle handle,
                                        const ProductDescriptors& descriptors, const ProductShape& shape) {
  ACCORD_ASSIGN_OR_RETURN(const LtOwned preference, make_preference(api, shape));
  ACCORD_ASSIGN_OR_RETURN(const RowLayouts rows, RowLayouts::create(api, shape, kReferenceRows));
  ACCORD_ASSIGN_OR_RETURN(const RowLayouts many, RowLayouts::create(api, shape, kManyRows));
  std::array<LtHeuristic, kCandidates> found;
  int count = 0;
  ACCORD_RETURN_IF_ERROR(
      check(api,
            api.get_heuristic(handle, descriptors.operation(), descriptors.w(), rows.x.get(), rows.y.get(),
                              rows.y.get(), preference.get(), kCandidates, found.data(), &count),
            "cublasLtMatmulAlgoGetHeuristic", shape));
  for (int i = 0; i < count; ++i) {
    const LtHeuristic& candidate = found[static_cast<size_t>(i)];
    if (candidate.state != kLtSuccess || candidate.workspace > kWorkspaceBytes) continue;
    ACCORD_ASSIGN_OR_RETURN(const AlgorithmConfig config, config_of(api, candidate.algorithm, shape));
    if (!is_one_sequence(config)) continue;
    LtHeuristic of_many;
    const int status = api.check(handle, descriptors.operation(), descriptors.w(), many.x.get(), many.y.get(),
                                 many.y.get(), &candidate.algorithm, &of_many);
    if (status != kLtSuccess || of_many.workspace > kWorkspaceBytes) continue;
    return PinnedAlgorithm{candidate.algorithm, config};
  }
  return unavailable_error(
      "{} has no algorithm for the product of {} that adds K in one sequence for any number of rows, among "
      "{} "
      "that it names; use another version, or ACCORD_CUBLASLT=off for all workers of the run",
      api.origin, to_string(shape), count);
}

std::string to_string(const ProductShape& shape, const AlgorithmConfig& c) {
  return fmt::format("{}: {} tile {} stages {} swizzling {} option {} inner {} cluster {}", to_string(shape),
                     c.id, c.tile, c.stages, c.swizzling, c.custom_option, c.inner_shape, c.cluster_shape);
}

}  // namespace accord::kernels::block_scaled
