#pragma once
// The recipe: everything a run is told, after validation. Plain data; nobody changes it after loading.
// The member names are the YAML keys (docs/interfaces.md, configs/reference.yaml); the initializers are the
// defaults. Relative paths are relative to the current directory of the process that reads them.
#include <cstdint>
#include <map>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/dtype.hpp"
#include "base/flow.hpp"
#include "base/model_config.hpp"
#include "base/status.hpp"

namespace accord::recipe {

enum class OnBad : uint8_t { kFail, kSkip };
enum class OnFailure : uint8_t { kFail, kScore, kDrop };
enum class DeviceChoice : uint8_t { kAuto, kCpu, kCuda };
enum class Schedule : uint8_t { kConstant, kLinear, kCosine };
enum class AdvantageKind : uint8_t { kStd, kMean, kLeaveOneOut };
enum class Aggregate : uint8_t { kTokenMean, kSeqMeanTokenMean, kSeqMeanTokenSum };
enum class KlEstimator : uint8_t { kK1, kK2, kK3, kLowVariance };
enum class ImportanceCorrection : uint8_t { kNone, kTis, kMis };
enum class ScaleScope : uint8_t { kTensor, kToken };
enum class ScaleLayout : uint8_t { k1x16, k16x16 };
enum class FourOverSix : uint8_t { kNone, kWeights, kActivations, kAll };
enum class FourOverSixError : uint8_t { kMse, kMae };
enum class BackwardMode : uint8_t { kQuantized, kHighPrecision, kDequantized };
enum class TrainerForward : uint8_t { kSame, kBF16 };
enum class MatchNames : uint8_t { kAny, kMegatron };
enum class DebugMode : uint8_t { kNone, kRolloutOnly, kTrainOnly };
enum class RestartPolicy : uint8_t { kNever, kWorkers, kAll };

struct RunPart {
  std::string name;  // at least one of name and dir is given: dir defaults to runs/<name>, name to dir's last
  std::string dir;   // component
  uint64_t seed = 42;
  int64_t steps = 200;
  bool operator==(const RunPart&) const = default;
};

struct ModelPart {
  std::string checkpoint;                // Hugging Face directory
  Dtype compute_dtype = Dtype::kBF16;    // bfloat16 | float32
  MlaForm mla = kDefaultMlaForm;         // plain | absorbed; for models with latent attention
  std::optional<std::string> reference;  // directory of the reference policy; null: checkpoint
  bool operator==(const ModelPart&) const = default;
};

struct TrainData {
  std::string path;     // JSONL or Parquet; file@[a:b] is a part
  double weight = 1.0;  // among several files: the share of prompts drawn from this one
  std::string prompt_key = "prompt";
  std::string label_key = "label";
  OnBad on_bad_line = OnBad::kFail;     // a record that does not parse, or lacks a key
  OnBad on_long_prompt = OnBad::kFail;  // a prompt of more than rollout.max_prompt_tokens
  bool operator==(const TrainData&) const = default;
};

struct EvalData {
  std::string name;
  std::string path;
  std::string prompt_key = "prompt";
  std::string label_key = "label";
  int64_t samples = 1;       // per prompt
  int64_t every = 20;        // steps
  double temperature = 1.0;  // these three default to the rollout's; temperature 0 is greedy
  double top_p = 1.0;
  int64_t max_response_tokens = 8192;
  bool operator==(const EvalData&) const = default;
};

struct DataPart {
  std::vector<TrainData> train;  // at least one
  std::vector<EvalData> eval;
  std::string chat_template = "auto";       // auto | none | a name that the text room knows | a .jinja file
  std::string chat_template_kwargs = "{}";  // a JSON object: variables of a Jinja template
  std::optional<std::string> chat_date;     // YYYY-MM-DD
  bool operator==(const DataPart&) const = default;
};

inline constexpr std::string_view kExternalReward = "external";

// reward.type external: another program scores.
struct ExternalReward {
  std::vector<std::string> command;    // argv of a process; or
  std::optional<std::string> address;  // HOST:PORT of a RewardService (proto/accord/v1/reward.proto)
  int64_t batch_size = 16;             // samples of one request
  int64_t deadline_s = 60;             // of one attempt at one batch
  int64_t total_deadline_s = 3600;     // of all batches of a step
  int64_t retries = 2;
  OnFailure on_failure = OnFailure::kFail;
  std::optional<double> failure_score;  // with kScore
  bool drops() const { return on_failure == OnFailure::kDrop; }
  bool operator==(const ExternalReward&) const = default;
};

struct RewardPart {
  std::string type;  // a name of reward/reward.hpp, or external
  std::optional<ExternalReward> external;
  bool drops() const { return external && external->drops(); }  // groups may be left out of the training
  bool operator==(const RewardPart&) const = default;
};

struct RolloutPart {
  int64_t workers = 1;
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t threads = 0;  // per worker; 0: the machine's cores divided among its workers
  int64_t prompts_per_step = 32;
  int64_t samples_per_prompt = 8;
  int64_t max_prompt_tokens = 1024;
  int64_t max_response_tokens = 8192;
  double temperature = 1.0;  // > 0
  double top_p = 1.0;        // (0, 1]
  int64_t top_k = -1;        // -1: all
  std::vector<std::string> stop;
  int64_t prefill_chunk = 256;   // prompt tokens of one forward; at most max_batch_rows
  int64_t max_batch_rows = 256;  // tokens of one forward: decoding sequences and prompt tokens together
  int64_t kv_cache_tokens = 0;   // 0: chosen from the batch limits
  bool cuda_graphs = true;       // on CUDA devices; the CPU has none
  bool expert_fragments = true;  // on CUDA devices: CudaModel::keep_expert_fragments
  bool operator==(const RolloutPart&) const = default;
};

struct OptimizerPart {
  double lr = 1.0e-6;
  Schedule schedule = Schedule::kConstant;
  double min_lr = 0.0;  // where linear and cosine end
  int64_t warmup_steps = 0;
  double beta1 = 0.9;  // YAML: betas: [beta1, beta2]
  double beta2 = 0.98;
  double eps = 1.0e-8;
  double weight_decay = 0.1;
  double clip_grad = 1.0;  // global norm; 0: no clipping
  bool operator==(const OptimizerPart&) const = default;
};

struct TrainerPart {
  int64_t workers = 1;
  DeviceChoice device = DeviceChoice::kAuto;
  int64_t threads = 0;  // per worker; 0: the machine's cores
  int64_t tokens_per_microbatch = 32768;
  int64_t updates_per_step = 1;
  int64_t expert_parallel = 0;  // 0: auto
  int64_t expert_tensor_parallel = 1;
  OptimizerPart optimizer;
  bool operator==(const TrainerPart&) const = default;
};

struct OverlongPenalty {
  int64_t buffer_tokens = 0;  // the penalty grows linearly over the last buffer_tokens of the response limit
  double factor = 1.0;
  bool operator==(const OverlongPenalty&) const = default;
};

struct AlgorithmPart {
  std::string type = "grpo";
  double clip_low = 0.2;
  double clip_high = 0.28;
  std::optional<double> clip_dual;
  AdvantageKind advantage = AdvantageKind::kStd;
  Aggregate aggregate = Aggregate::kTokenMean;
  double kl_coefficient = 0.0;
  KlEstimator kl_estimator = KlEstimator::kK3;
  bool reference_kl = false;
  double entropy_coefficient = 0.0;
  bool routing_replay = false;
  ImportanceCorrection importance_correction = ImportanceCorrection::kNone;
  bool filter_zero_std = false;
  std::optional<OverlongPenalty> overlong_penalty;
  bool operator==(const AlgorithmPart&) const = default;
};

// A named number format. `scope` and `layout` speak of NVFP4 only.
struct PrecisionConfig {
  std::string name;
  WeightFormat format = WeightFormat::kBF16;  // bf16 | mxfp8 | nvfp4
  ScaleScope scope = ScaleScope::kToken;      // of activations; weights are always per tensor
  ScaleLayout layout = ScaleLayout::k1x16;    // of weights
  FourOverSix four_over_six = FourOverSix::kNone;
  FourOverSixError four_over_six_error = FourOverSixError::kMse;
  int64_t four_over_six_range = 448;  // 448 | 256
  bool e5m2_gradients = false;
  bool fast_math = false;
  bool operator==(const PrecisionConfig&) const = default;
};

struct PrecisionMatcher {
  std::string name;
  std::string pattern;  // see precision/pattern.hpp
  std::string config;   // a name of `configs`
  bool enabled = true;
  MatchNames names = MatchNames::kAny;  // megatron: a glob over the whole path of a Megatron module only
  bool over_bf16_layers = false;        // also decides layers that bf16_layers would keep BF16
  bool operator==(const PrecisionMatcher&) const = default;
};

// A number of layers: a count, or a percentage of all layers, rounded up.
struct LayerShare {
  bool is_percent = false;
  double value = 0.0;  // a whole number when it is a count
  // Layers out of `num_layers`; never more than there are. 15 % of 48 is 8.
  int64_t resolve(int64_t num_layers) const;
  bool operator==(const LayerShare&) const = default;
};

struct Bf16Layers {
  LayerShare first;
  LayerShare last;
  bool operator==(const Bf16Layers&) const = default;
};

struct PrecisionPart {
  std::vector<PrecisionConfig> configs;    // file order
  std::vector<PrecisionMatcher> matchers;  // the first enabled match wins; none: BF16
  Bf16Layers bf16_layers;
  std::vector<std::string> high_precision;
  BackwardMode backward = BackwardMode::kHighPrecision;
  TrainerForward trainer_forward = TrainerForward::kSame;
  bool allow_mismatch = false;
  // Loading replaces these two by what they say (te_config.hpp, environment.hpp): a loaded recipe has
  // neither.
  std::optional<std::string> te_config_file;
  bool from_environment = false;
  bool operator==(const PrecisionPart&) const = default;

  const PrecisionConfig* find_config(std::string_view name) const;  // nullptr: no such config
};

struct CheckpointPart {
  int64_t every = 20;  // steps; 0: only after the last step
  int64_t keep = 3;    // newest ones; 0: all
  bool save_hf = true;
  bool operator==(const CheckpointPart&) const = default;
};

struct MonitorPart {
  std::string listen = "127.0.0.1:0";  // HOST:PORT of the status service
  std::optional<std::string> prometheus;
  bool tensorboard = true;
  bool operator==(const MonitorPart&) const = default;
};

// Supervised warm start before step 1.
struct SftPart {
  std::string path;
  std::string prompt_key = "prompt";
  std::string response_key = "response";
  int64_t steps = 0;
  int64_t batch_size = 32;  // sequences per step
  OptimizerPart optimizer;
  bool operator==(const SftPart&) const = default;
};

// Seconds after which a wait fails.
struct DeadlinesPart {
  int64_t register_ = 120;  // YAML: register
  int64_t rollout = 3600;
  int64_t train = 3600;
  int64_t sync = 600;
  int64_t checkpoint = 600;
  bool operator==(const DeadlinesPart&) const = default;
};

// Flips one bit of one arena byte on one rollout worker when it takes over `version`: the negative control
// of the equality check, which must report it.
struct CorruptRollout {
  int64_t rank = 0;
  int64_t version = 0;
  int64_t byte = 0;
  bool operator==(const CorruptRollout&) const = default;
};

struct DebugPart {
  DebugMode mode = DebugMode::kNone;        // none | rollout_only | train_only
  bool dump_batches = false;                // batches/step_N.safetensors in the run directory
  std::optional<std::string> load_batches;  // train_only: such a directory, or one such file for every step
  std::optional<CorruptRollout> corrupt_rollout;
  bool operator==(const DebugPart&) const = default;
};

struct Recipe {
  RunPart run;
  ModelPart model;
  DataPart data;
  RewardPart reward;
  RolloutPart rollout;
  TrainerPart trainer;
  AlgorithmPart algorithm;
  PrecisionPart precision;
  CheckpointPart checkpoint;
  RestartPolicy restart = RestartPolicy::kNever;
  MonitorPart monitor;
  std::optional<SftPart> sft;
  DeadlinesPart deadlines;
  DebugPart debug;
  bool operator==(const Recipe&) const = default;
};

// Environment variables by name.
using Environment = std::map<std::string, std::string, std::less<>>;

// Those of this process that speak of precision (environment.hpp).
Environment precision_environment();

// Reads, overrides and validates. `overrides` are "a.b.c=value" with a YAML value, applied in order on top of
// the file, under the same checks. All independent errors are reported at once, one a line, as
//   file:line:column: key.path: rule (remedy)
// with exit code kBadRecipe; kIo when the file cannot be read. Touches nothing but the file itself and the
// precision file that it names.
StatusOr<Recipe> load_recipe(const std::string& path, std::span<const std::string> overrides = {});

// The same from memory; `source` names it in messages.
StatusOr<Recipe> parse_recipe(std::string_view text, std::string_view source,
                              std::span<const std::string> overrides = {});

// A recipe that is valid, but may ask for features that this version lacks: `refused` is then the error that
// load_recipe gives. For dry runs and conversions, which need not run the loop.
struct Inspection {
  Recipe recipe;
  Status refused;
  std::vector<std::string> notes;  // what was ignored, for whoever starts a run
};
StatusOr<Inspection> inspect_recipe_file(const std::string& path, std::span<const std::string> overrides = {},
                                         const Environment& environment = precision_environment());
StatusOr<Inspection> inspect_recipe(std::string_view text, std::string_view source,
                                    std::span<const std::string> overrides = {},
                                    const Environment& environment = precision_environment());

// Every key with its resolved value; loads back to an equal Recipe.
std::string to_yaml(const Recipe& recipe);

}  // namespace accord::recipe
