#include "controller/conversion.hpp"

#include <fcntl.h>
#include <sys/file.h>
#include <unistd.h>

#include <algorithm>
#include <cerrno>
#include <chrono>
#include <filesystem>
#include <optional>
#include <thread>
#include <utility>

#include "base/files.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "checkpoint/hf_checkpoint.hpp"
#include "controller/conversion_plan.hpp"
#include "controller/conversion_state.hpp"
#include "controller/decoded_check.hpp"
#include "controller/weight_tiles.hpp"
#include "device/thread_pool.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "telemetry/progress.hpp"

namespace accord::controller {
namespace {

using checkpoint::HfCheckpoint;
using checkpoint::QuantMethod;
using checkpoint::SafetensorsWriter;
using checkpoint::TensorSpec;

constexpr int64_t kBatchElements = int64_t{1} << 25;
constexpr char kStateFile[] = "conversion.state";
constexpr int64_t kMaxStateBytes = int64_t{256} << 20;

bool exists(const std::string& path) {
  std::error_code ignored;
  return std::filesystem::exists(std::filesystem::symlink_status(path, ignored));
}

int thread_count(int asked) {
  return asked > 0 ? asked : static_cast<int>(std::max(1U, std::thread::hardware_concurrency()));
}

std::string without_slash(std::string path) {
  while (path.size() > 1 && path.back() == '/') {
    path.pop_back();
  }
  return path;
}

class Conversion {
 public:
  Conversion(const ConversionOptions& options, HfCheckpoint source, ConversionPlan plan)
      : destination_(without_slash(options.destination)),
        partial_(destination_ + ".partial"),
        source_(std::move(source)),
        plan_(std::move(plan)),
        pool_(thread_count(options.threads)),
        tiles_(source_, pool_),
        progress_("convert", static_cast<int64_t>(plan_.specs.size())) {}

  StatusOr<ConversionReport> run();

 private:
  Status open_destination();
  std::string plan_digest() const;
  Status write_state() const;
  std::vector<bool> find_whole_shards();
  Status write_shard(size_t number);
  Status write_batch(std::span<const ConvertedWeight> weights, SafetensorsWriter& writer);
  Status find_outer_scales(std::span<const ConvertedWeight> weights);
  Status write_scalars(const ConvertedWeight& weight, SafetensorsWriter& writer) const;
  Status finish();
  std::string shard_name(size_t number) const {
    return checkpoint::shard_file_name(number, plan_.shards.size());
  }
  std::string shard_path(size_t number) const { return partial_ + "/" + shard_name(number); }

  std::string destination_;
  std::string partial_;
  HfCheckpoint source_;
  ConversionPlan plan_;
  ThreadPool pool_;
  WeightTiles tiles_;
  telemetry::ProgressBar progress_;
  FileDescriptor lock_;
  ConversionState state_;
  std::map<std::string, float> outer_;  // by unit: A
  int64_t done_ = 0;
  ConversionReport report_;
};

// Whatever decides the result beside the source: the plan, and how it is cut into shards.
std::string Conversion::plan_digest() const {
  Hasher hasher;
  hasher.update(plan_.precision.digest);
  for (const std::vector<ConvertedWeight>& shard : plan_.shards) {
    hasher.update(fmt::format("\n{}", shard.size()));
  }
  return hasher.hex();
}

Status Conversion::write_state() const {
  return write_file_atomic(partial_ + "/" + kStateFile, to_json(state_));
}

Status Conversion::open_destination() {
  if (exists(destination_)) {
    return usage_error("{}: exists; name a directory that does not", destination_);
  }
  ACCORD_RETURN_IF_ERROR(make_dirs(partial_));
  lock_ = FileDescriptor(::open(partial_.c_str(), O_RDONLY | O_DIRECTORY | O_CLOEXEC));
  if (!lock_.valid() || ::flock(lock_.get(), LOCK_EX | LOCK_NB) != 0) {
    return make_error(ExitCode::kRunLocked,
                      fmt::format("{}: another process is writing this conversion; wait for it, or name "
                                  "another destination",
                                  partial_));
  }
  const std::string state = partial_ + "/" + kStateFile;
  state_.source = source_digest(source_);
  state_.plan = plan_digest();
  if (exists(state)) {
    ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(state, kMaxStateBytes));
    ACCORD_ASSIGN_OR_RETURN(ConversionState other, parse_conversion_state(text, state));
    if (other.source != state_.source || other.plan != state_.plan) {
      return usage_error(
          "{}: holds an unfinished conversion of another source or with another plan ({}); finish it with "
          "the "
          "same command, or remove the directory",
          partial_,
          other.source != state_.source ? fmt::format("the weights or JSON files of {} are not those that it "
                                                      "was begun with",
                                                      source_.dir())
                                        : "the plan or the size of a shard differs");
    }
    state_.shards = std::move(other.shards);
  } else if (!std::filesystem::is_empty(partial_)) {
    return usage_error("{}: exists and holds no unfinished conversion; remove it", partial_);
  } else {
    ACCORD_RETURN_IF_ERROR(write_state());
  }
  std::error_code ignored;
  for (const auto& entry : std::filesystem::directory_iterator(partial_, ignored)) {
    if (entry.path().filename().string().find(".tmp.") != std::string::npos) {
      std::filesystem::remove(entry.path(), ignored);  // of a writer that was killed
    }
  }
  return absl::OkStatus();
}

StatusOr<ConversionReport> Conversion::run() {
  const auto begin = std::chrono::steady_clock::now();
  ACCORD_RETURN_IF_ERROR(open_destination());
  for (const std::vector<ConvertedWeight>& shard : plan_.shards) {
    for (const ConvertedWeight& weight : shard) {
      ++report_.weights;
      report_.quantized += is_quantized(weight.row->format) ? 1 : 0;
      report_.bytes += weight.bytes;
    }
  }
  const std::vector<bool> whole = find_whole_shards();
  for (size_t number = 0; number < whole.size(); ++number) {
    if (whole[number]) {
      ++report_.resumed_shards;
      done_ += static_cast<int64_t>(plan_.shards[number].size());
    }
  }
  if (report_.resumed_shards > 0) {
    log::info("{}: going on; {} of {} shards are finished", partial_, report_.resumed_shards,
              plan_.shards.size());
  }
  progress_.start_at(done_);
  for (size_t number = 0; number < plan_.shards.size(); ++number) {
    if (!whole[number]) {
      ACCORD_RETURN_IF_ERROR(write_shard(number));
    }
  }
  ACCORD_RETURN_IF_ERROR(finish());
  report_.seconds = std::chrono::duration<double>(std::chrono::steady_clock::now() - begin).count();
  return report_;
}

// A shard counts only with the size and the digest that were noted when it was finished.
std::vector<bool> Conversion::find_whole_shards() {
  const size_t count = plan_.shards.size();
  std::vector<std::string> problems(count);
  pool_.parallel_for(static_cast<int64_t>(count), [&](int64_t i) {
    const std::string path = shard_path(static_cast<size_t>(i));
    std::string& problem = problems[static_cast<size_t>(i)];
    const auto noted = state_.shards.find(shard_name(static_cast<size_t>(i)));
    if (!exists(path)) {
      problem = noted == state_.shards.end() ? "absent" : "is gone";
    } else if (noted == state_.shards.end()) {
      problem = "was not noted as finished";
    } else if (const StatusOr<FinishedShard> found = digest_of_file(path); !found.ok()) {
      problem = message_of(found.status());
    } else if (*found != noted->second) {
      problem = fmt::format("is damaged ({} bytes with digest {}; finished were {} with {})", found->bytes,
                            found->digest, noted->second.bytes, noted->second.digest);
    }
  });
  std::vector<bool> whole(count);
  for (size_t number = 0; number < count; ++number) {
    whole[number] = problems[number].empty();
    if (!whole[number]) {
      state_.shards.erase(shard_name(number));
      if (problems[number] != "absent") {
        log::warn("{}: {}; it is made again", shard_path(number), problems[number]);
      }
    }
  }
  return whole;
}

Status Conversion::write_shard(size_t number) {
  const std::vector<ConvertedWeight>& weights = plan_.shards[number];
  std::vector<TensorSpec> specs;
  for (const ConvertedWeight& weight : weights) {
    specs.insert(specs.end(), weight.tensors.begin(), weight.tensors.end());
  }
  ACCORD_ASSIGN_OR_RETURN(
      SafetensorsWriter writer,
      SafetensorsWriter::create(shard_path(number), std::move(specs), {{"format", "pt"}}));
  for (size_t begin = 0; begin < weights.size();) {
    size_t end = begin;
    for (int64_t elements = 0; end < weights.size() && (end == begin || elements < kBatchElements); ++end) {
      elements += weights[end].spec->numel();
    }
    const auto batch = std::span(weights).subspan(begin, end - begin);
    ACCORD_RETURN_IF_ERROR(write_batch(batch, writer));
    done_ += static_cast<int64_t>(batch.size());
    progress_.update(done_);
    begin = end;
  }
  ACCORD_RETURN_IF_ERROR(writer.commit());
  ACCORD_ASSIGN_OR_RETURN(state_.shards[shard_name(number)], digest_of_file(shard_path(number)));
  return write_state();
}

Status Conversion::write_batch(std::span<const ConvertedWeight> weights, SafetensorsWriter& writer) {
  ACCORD_RETURN_IF_ERROR(find_outer_scales(weights));
  std::vector<WeightTile> tiles;
  for (const ConvertedWeight& weight : weights) {
    const float outer = weight.row->unit.empty() ? 0.0F : outer_.at(weight.row->unit);
    tiles_.add(*weight.spec, {weight.row, outer}, tiles);
  }
  const auto write = [&](const WeightTile& tile, const TileBytes& bytes) -> Status {
    ACCORD_RETURN_IF_ERROR(check_decoded(tile, bytes, static_cast<int>(plan_.notes.range)));
    const ConvertedWeight& weight = weights[tile.weight];
    const int64_t rows = weight.rows();
    const auto place = [&](const TensorSpec& tensor) {  // rows of equal size, in all three formats
      return checkpoint::checked_bytes(tensor.dtype, tensor.shape).value_or(0) / rows * tile.row_begin;
    };
    ACCORD_RETURN_IF_ERROR(writer.write_part(weight.tensors[0].name, place(weight.tensors[0]),
                                             bytes.data.data(), bytes.data.size()));
    if (bytes.scales.empty()) {
      return absl::OkStatus();
    }
    return writer.write_part(weight.tensors[1].name, place(weight.tensors[1]), bytes.scales.data(),
                             bytes.scales.size());
  };
  ACCORD_RETURN_IF_ERROR(tiles_.for_each(tiles, write));
  for (const ConvertedWeight& weight : weights) {
    ACCORD_RETURN_IF_ERROR(write_scalars(weight, writer));
  }
  return absl::OkStatus();
}

// A of each unit that is not known yet: over gate and up, in whichever shards they lie.
Status Conversion::find_outer_scales(std::span<const ConvertedWeight> weights) {
  std::vector<WeightTile> tiles;
  std::vector<const std::string*> units;  // by number of the weight in `tiles`
  for (const ConvertedWeight& weight : weights) {
    const std::string& unit = weight.row->unit;
    if (unit.empty() || !outer_.emplace(unit, 0.0F).second) {
      continue;
    }
    for (const ParamSpec* spec : plan_.units.at(unit)) {
      tiles_.add(*spec, {}, tiles);
      units.push_back(&unit);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<float> amax, tiles_.amax(tiles));
  for (size_t i = 0; i < tiles.size(); ++i) {
    float& outer = outer_.at(*units[tiles[i].weight]);
    outer = std::max(outer, amax[i]);
  }
  return absl::OkStatus();
}

Status Conversion::write_scalars(const ConvertedWeight& weight, SafetensorsWriter& writer) const {
  if (weight.row->format != WeightFormat::kNVFP4) {
    return absl::OkStatus();
  }
  const float outer = outer_.at(weight.row->unit);
  const float inverse = formats::outer_scale(outer, static_cast<int>(plan_.notes.range)).inverse;
  const float input_scale = 1.0F;  // activation scales are dynamic
  ACCORD_RETURN_IF_ERROR(writer.append(weight.tensors[2].name, &inverse, sizeof(inverse)));
  return writer.append(weight.tensors[3].name, &input_scale, sizeof(input_scale));
}

Status Conversion::finish() {
  std::vector<std::vector<TensorSpec>> tensors;
  std::vector<std::string> files;
  for (size_t number = 0; number < plan_.shards.size(); ++number) {
    files.push_back(checkpoint::shard_file_name(number, plan_.shards.size()));
    tensors.emplace_back();
    for (const ConvertedWeight& weight : plan_.shards[number]) {
      tensors.back().insert(tensors.back().end(), weight.tensors.begin(), weight.tensors.end());
    }
  }
  if (plan_.shards.size() > 1) {
    ACCORD_RETURN_IF_ERROR(write_file_atomic(partial_ + "/" + checkpoint::kIndexFile,
                                             checkpoint::make_safetensors_index(tensors, files)));
  }
  ACCORD_RETURN_IF_ERROR(checkpoint::copy_tokenizer_files(source_.dir(), partial_));
  ACCORD_RETURN_IF_ERROR(write_file_atomic(partial_ + "/generation_config.json",
                                           checkpoint::generation_config_json_to_write(source_.hf_config())));
  if (plan_.method == QuantMethod::kModelopt) {
    ACCORD_RETURN_IF_ERROR(
        write_file_atomic(partial_ + "/hf_quant_config.json",
                          checkpoint::make_hf_quant_config(plan_.high_precision, plan_.notes)));
  }
  ACCORD_ASSIGN_OR_RETURN(std::string config_json, checkpoint::config_json_to_write(
                                                       source_.hf_config(), source_.dir() + "/config.json"));
  if (plan_.method != QuantMethod::kNone) {
    ACCORD_ASSIGN_OR_RETURN(config_json, checkpoint::add_quantization_config(
                                             config_json, plan_.method, plan_.high_precision, plan_.notes));
  }
  ACCORD_RETURN_IF_ERROR(write_file_atomic(partial_ + "/config.json", config_json));
  if (exists(destination_)) {
    return usage_error("{}: appeared while it was being converted to; the result is in {}", destination_,
                       partial_);
  }
  std::error_code error;
  std::filesystem::rename(partial_, destination_, error);
  if (error) {
    return io_error("{}: cannot rename {} to this name: {}", destination_, partial_, error.message());
  }
  std::filesystem::remove(destination_ + "/" + kStateFile, error);
  return sync_path(parent_of(destination_));
}

void log_notes(const HfCheckpoint& source, const ConversionPlan& plan) {
  if (source.quantization().method != QuantMethod::kNone) {
    log::info("{}: stored in {}; its decoded values are converted{}", source.dir(),
              name_of(source.quantization().method),
              plan.method == QuantMethod::kNone ? "" : ", which may change bytes that were quantized before");
  }
  if (source.prediction_tensors() > 0) {
    log::warn("{}: {} tensors of multi-token prediction layers are left out: such layers are not built",
              source.dir(), source.prediction_tensors());
  }
  for (const std::string& warning : plan.precision.warnings) {
    log::warn("{}", warning);
  }
  for (const std::string& warning : plan.warnings) {
    log::warn("{}", warning);
  }
}

}  // namespace

StatusOr<ConversionReport> convert_checkpoint(const ConversionOptions& options) {
  if (options.destination.empty()) {
    return usage_error("the destination is empty; name a directory that does not exist yet");
  }
  ACCORD_ASSIGN_OR_RETURN(HfCheckpoint source, HfCheckpoint::open(options.source));
  ModelConfig config = source.config();
  config.mla.form = options.mla;
  ACCORD_ASSIGN_OR_RETURN(ConversionPlan plan,
                          plan_conversion(config, options.precision, options.max_shard_bytes));
  if (plan.method == QuantMethod::kNone && !options.precision.matchers.empty() &&
      source.quantization().method == QuantMethod::kNone) {
    return recipe_error(
        "no weight of {} would be quantized: every one stays BF16 by the plan (accord plan says why)",
        options.source);
  }
  log_notes(source, plan);
  return Conversion(options, std::move(source), std::move(plan)).run();
}

}  // namespace accord::controller
