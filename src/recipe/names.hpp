#pragma once
// The words of the recipe's closed choices, one table per type, shared by reading and writing.
#include <array>
#include <string_view>
#include <utility>

#include "recipe/recipe.hpp"

namespace accord::recipe {

template <class E>
struct Names;  // Names<E>::table: std::array of {word, value}

#define ACCORD_NAMES(E, ...)                                                                    \
  template <>                                                                                   \
  struct Names<E> {                                                                             \
    static constexpr auto table = std::to_array<std::pair<std::string_view, E>>({__VA_ARGS__}); \
  }
#define ACCORD_NAME(word, value) \
  std::pair<std::string_view, decltype(value)> { word, value }

ACCORD_NAMES(OnBad, ACCORD_NAME("fail", OnBad::kFail), ACCORD_NAME("skip", OnBad::kSkip));
ACCORD_NAMES(OnFailure, ACCORD_NAME("fail", OnFailure::kFail), ACCORD_NAME("score", OnFailure::kScore),
             ACCORD_NAME("drop", OnFailure::kDrop));
ACCORD_NAMES(Dtype, ACCORD_NAME("bfloat16", Dtype::kBF16), ACCORD_NAME("float32", Dtype::kF32));
ACCORD_NAMES(MlaForm, ACCORD_NAME("plain", MlaForm::kPlain), ACCORD_NAME("absorbed", MlaForm::kAbsorbed));
ACCORD_NAMES(DeviceChoice, ACCORD_NAME("auto", DeviceChoice::kAuto), ACCORD_NAME("cpu", DeviceChoice::kCpu),
             ACCORD_NAME("cuda", DeviceChoice::kCuda));
ACCORD_NAMES(Schedule, ACCORD_NAME("constant", Schedule::kConstant), ACCORD_NAME("linear", Schedule::kLinear),
             ACCORD_NAME("cosine", Schedule::kCosine));
ACCORD_NAMES(AdvantageKind, ACCORD_NAME("std", AdvantageKind::kStd),
             ACCORD_NAME("mean", AdvantageKind::kMean),
             ACCORD_NAME("leave-one-out", AdvantageKind::kLeaveOneOut));
ACCORD_NAMES(Aggregate, ACCORD_NAME("token-mean", Aggregate::kTokenMean),
             ACCORD_NAME("seq-mean-token-mean", Aggregate::kSeqMeanTokenMean),
             ACCORD_NAME("seq-mean-token-sum", Aggregate::kSeqMeanTokenSum));
ACCORD_NAMES(KlEstimator, ACCORD_NAME("k1", KlEstimator::kK1), ACCORD_NAME("k2", KlEstimator::kK2),
             ACCORD_NAME("k3", KlEstimator::kK3), ACCORD_NAME("low-variance", KlEstimator::kLowVariance));
ACCORD_NAMES(ImportanceCorrection, ACCORD_NAME("none", ImportanceCorrection::kNone),
             ACCORD_NAME("tis", ImportanceCorrection::kTis), ACCORD_NAME("mis", ImportanceCorrection::kMis));
ACCORD_NAMES(WeightFormat, ACCORD_NAME("bf16", WeightFormat::kBF16),
             ACCORD_NAME("mxfp8", WeightFormat::kMXFP8), ACCORD_NAME("nvfp4", WeightFormat::kNVFP4));
ACCORD_NAMES(ScaleScope, ACCORD_NAME("tensor", ScaleScope::kTensor),
             ACCORD_NAME("token", ScaleScope::kToken));
ACCORD_NAMES(ScaleLayout, ACCORD_NAME("1x16", ScaleLayout::k1x16), ACCORD_NAME("16x16", ScaleLayout::k16x16));
ACCORD_NAMES(FourOverSix, ACCORD_NAME("none", FourOverSix::kNone),
             ACCORD_NAME("weights", FourOverSix::kWeights),
             ACCORD_NAME("activations", FourOverSix::kActivations), ACCORD_NAME("all", FourOverSix::kAll));
ACCORD_NAMES(FourOverSixError, ACCORD_NAME("mse", FourOverSixError::kMse),
             ACCORD_NAME("mae", FourOverSixError::kMae));
ACCORD_NAMES(BackwardMode, ACCORD_NAME("quantized", BackwardMode::kQuantized),
             ACCORD_NAME("high_precision", BackwardMode::kHighPrecision),
             ACCORD_NAME("dequantized", BackwardMode::kDequantized));
ACCORD_NAMES(TrainerForward, ACCORD_NAME("same", TrainerForward::kSame),
             ACCORD_NAME("bf16", TrainerForward::kBF16));
ACCORD_NAMES(MatchNames, ACCORD_NAME("any", MatchNames::kAny),
             ACCORD_NAME("megatron", MatchNames::kMegatron));
ACCORD_NAMES(DebugMode, ACCORD_NAME("none", DebugMode::kNone),
             ACCORD_NAME("rollout_only", DebugMode::kRolloutOnly),
             ACCORD_NAME("train_only", DebugMode::kTrainOnly));
ACCORD_NAMES(RestartPolicy, ACCORD_NAME("never", RestartPolicy::kNever),
             ACCORD_NAME("workers", RestartPolicy::kWorkers), ACCORD_NAME("all", RestartPolicy::kAll));

#undef ACCORD_NAME
#undef ACCORD_NAMES

template <class E>
constexpr std::string_view name_of(E value) {
  for (const auto& [word, candidate] : Names<E>::table) {
    if (candidate == value) {
      return word;
    }
  }
  return "?";
}

}  // namespace accord::recipe
