// Steps that write the arena in the update's own pass, against the export of the same masters on its own: the
// same bytes and the same report.
#include <algorithm>
#include <cstring>
#include <limits>
#include <memory>
#include <string>
#include <vector>

#include "precision/plan.hpp"
#include "support/catch.hpp"
#include "support/group.hpp"
#include "trainer/case.hpp"
#include "weights/device_export.hpp"

using namespace accord;
using gpu_test::Gpu;
using gpu_test::must;
using gpu_test::trainer_options;
using gpu_test::TrainerCase;
using gpu_test::training_samples;
using gpu_test::uniform_plan;
using recipe::BackwardMode;
using trainer::TrainerOptions;
using trainer::TrainSample;

namespace {

constexpr int64_t kTile = 32 * 64;  // several tiles a tensor

// Attention in MXFP8, experts in NVFP4: a layout and four over six of its own in each layer.
precision::PrecisionPlan mixed_plan(const ModelConfig& config) {
  using recipe::FourOverSix;
  using recipe::ScaleLayout;
  recipe::PrecisionPart part;
  const auto add = [&part](const std::string& name, const std::string& pattern, WeightFormat format,
                           ScaleLayout layout, FourOverSix four_over_six, int64_t range) {
    recipe::PrecisionConfig chosen;
    chosen.name = name;
    chosen.format = format;
    chosen.layout = layout;
    chosen.four_over_six = four_over_six;
    chosen.four_over_six_range = range;
    part.configs.push_back(chosen);
    part.matchers.push_back({name, pattern, name});
  };
  add("attention", "*.self_attn.*", WeightFormat::kMXFP8, ScaleLayout::k1x16, FourOverSix::kNone, 448);
  add("layer0", "*.layers.0.mlp.*", WeightFormat::kNVFP4, ScaleLayout::k16x16, FourOverSix::kNone, 448);
  add("layer1", "*.layers.1.mlp.*", WeightFormat::kNVFP4, ScaleLayout::k16x16, FourOverSix::kWeights, 256);
  add("layer2", "*.layers.2.mlp.*", WeightFormat::kNVFP4, ScaleLayout::k1x16, FourOverSix::kAll, 448);
  return must(precision::build_plan(config, part));
}

// An exporter of the tensors that a trainer owns, and what it fills on the host.
class Export {
 public:
  Export(const Gpu& gpu, TrainerCase& source) : source_(source) {
    const WeightManifest& manifest = source.manifest();
    std::vector<bool> owned;
    for (const WeightEntry& entry : manifest.entries) owned.push_back(source.trainer().owns(entry.name));
    host = must(weights::Arena::create_pinned(gpu.device(), manifest.arena_bytes));
    std::memset(host->data(), 0, static_cast<size_t>(host->size()));
    exporter_ = must(weights::DeviceExporter::create(manifest, source.plan(), gpu.device(),
                                                     *source.trainer().stream(), {owned, kTile}));
  }

  // Of all masters, into another arena of the device.
  StatusOr<weights::ExportReport> whole(const Memory& arena) {
    return exporter_->run(masters(), arena.as<std::byte>(), host.get(), pool_);
  }
  // Of what the step left, into the trainer's; digests of the bytes on the host, or (null) on the device.
  StatusOr<weights::ExportReport> rest(weights::Arena* to) {
    const auto exported = must(source_.trainer().exported());
    const auto parameters = source_.trainer().parameters();
    REQUIRE(exported.size() == parameters.size());
    std::vector<ExportCounts> counts;
    for (const WeightEntry& entry : source_.manifest().entries) {
      const auto spec = std::find_if(parameters.begin(), parameters.end(),
                                     [&](const ParamSpec& p) { return p.name == entry.name; });
      counts.push_back(exported[static_cast<size_t>(spec - parameters.begin())]);
    }
    return exporter_->finish(masters(), counts, source_.arena().as<std::byte>(), to, pool_);
  }

  std::unique_ptr<weights::Arena> host;

 private:
  weights::DeviceMasters masters() {
    return [this](const std::string& name) { return source_.trainer().device_master(name); };
  }
  TrainerCase& source_;
  ThreadPool pool_{2};
  std::unique_ptr<weights::DeviceExporter> exporter_;
};

// Bytes of owned tensors that differ between two arenas' copies on the host.
int64_t different_bytes(TrainerCase& source, const std::byte* a, const std::byte* b) {
  int64_t different = 0;
  const auto compare = [&](int64_t begin, int64_t count) {
    for (int64_t i = begin; i < begin + count; ++i) different += a[i] != b[i] ? 1 : 0;
  };
  for (const WeightEntry& entry : source.manifest().entries) {
    if (!source.trainer().owns(entry.name)) continue;
    compare(entry.data_offset, entry.data_bytes);
    compare(entry.scale_offset, entry.scale_bytes);
    compare(entry.outer_offset, entry.outer_bytes);
  }
  return different;
}

std::vector<std::byte> arena_bytes(const Gpu& gpu, const TrainerCase& source) {
  return gpu.download<std::byte>(source.arena(), source.arena().bytes());
}

void check_same(const weights::ExportReport& report, const weights::ExportReport& expected) {
  REQUIRE(report.tensors.size() == expected.tensors.size());
  for (size_t i = 0; i < report.tensors.size(); ++i) {
    CAPTURE(report.tensors[i].name);
    CHECK(report.tensors[i].name == expected.tensors[i].name);
    CHECK(report.tensors[i].digest == expected.tensors[i].digest);
    CHECK(report.tensors[i].amax == expected.tensors[i].amax);
    CHECK(report.tensors[i].saturated == expected.tensors[i].saturated);
    CHECK(report.tensors[i].flushed == expected.tensors[i].flushed);
  }
}

// After a step: finishes its export, by both places of digests, and compares with an export of the same
// masters alone. How many bytes the step changed.
int64_t check_export(const Gpu& gpu, TrainerCase& source, const std::vector<std::byte>& before) {
  const auto bytes = static_cast<size_t>(source.manifest().arena_bytes);
  const Memory arena = gpu.allocate(bytes);
  Export alone(gpu, source);
  Export fused(gpu, source);
  const weights::ExportReport expected = must(alone.whole(arena));
  const weights::ExportReport report = must(fused.rest(fused.host.get()));
  const std::vector<std::byte> got = gpu.download<std::byte>(source.arena(), bytes);
  CHECK(different_bytes(source, got.data(), gpu.download<std::byte>(arena, bytes).data()) == 0);
  CHECK(different_bytes(source, got.data(), alone.host->data()) == 0);
  CHECK(different_bytes(source, got.data(), fused.host->data()) == 0);
  check_same(report, expected);
  check_same(must(fused.rest(nullptr)), expected);
  CHECK(different_bytes(source, arena_bytes(gpu, source).data(), alone.host->data()) == 0);
  return different_bytes(source, got.data(), before.data());
}

// Some masters become ones that BF16 or a format makes zero, and one much larger than the rest of its block.
void plant_hard_masters(TrainerCase& source) {
  for (trainer::StateTensor& tensor : source.trainer().state()) {
    if (!tensor.name.starts_with("master.")) continue;
    std::vector<float> values(static_cast<size_t>(tensor.numel));
    must(tensor.read(values));
    for (size_t i = 0; i < values.size(); i += 41) values[i] = i % 2 == 0 ? 1e-41F : -3e-6F;
    values[values.size() / 3] = 3.0F;
    must(tensor.write(values));
  }
}

struct Weights {
  const char* name;
  TrainerCase::MakePlan plan;
};
TrainerCase::MakePlan uniform(WeightFormat format) {
  return [format](const ModelConfig& config) { return uniform_plan(config, format); };
}

}  // namespace

TEST_CASE("a step on the device leaves the bytes and counts of an export of its masters") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  const Weights all[] = {{"BF16", uniform(WeightFormat::kBF16)},
                         {"MXFP8", uniform(WeightFormat::kMXFP8)},
                         {"NVFP4", uniform(WeightFormat::kNVFP4)},
                         {"mixed", mixed_plan}};
  for (const char* model : {"qwen3_moe", "qwen3_dense_tied", "deepseek_v3_mla absorbed"}) {
    for (const Weights& weights : all) {
      CAPTURE(model, weights.name);
      for (const double lr : {1e-3, 0.0}) {
        CAPTURE(lr);
        options.optimizer.lr = lr;
        TrainerCase run(*gpu, gpu->device().id(), model, weights.plan, options);
        CHECK(must(run.trainer().exported()).empty());
        const auto samples = training_samples(run.trainer(), run.config().vocab_size);
        for (const uint64_t step : {1U, 2U, 3U}) {  // the counts of a step are its own
          CAPTURE(step);
          if (step == 2) plant_hard_masters(run);
          CHECK(must(run.trainer().exported()).empty() == (step != 3));
          const std::vector<std::byte> before = arena_bytes(*gpu, run);
          must(run.trainer().train_step(samples, step));
          const int64_t changed = check_export(*gpu, run, before);
          CHECK((changed > 0) == (lr > 0.0 || step == 2));
        }
      }
    }
  }
}

TEST_CASE("ranks on the device leave the bytes of the tensors that they own") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  TrainerCase alone(*gpu, gpu->device().id(), "qwen3_moe", mixed_plan, options);
  const auto samples = training_samples(alone.trainer(), alone.config().vocab_size);
  std::vector<std::unique_ptr<TrainerCase>> pool;
  std::vector<TrainerCase*> ranks;
  options.size = 2;
  for (options.rank = 0; options.rank < options.size; ++options.rank) {
    pool.push_back(std::make_unique<TrainerCase>(*gpu, gpu->device().id(), "qwen3_moe", mixed_plan, options));
    ranks.push_back(pool.back().get());
  }
  for (TrainerCase* rank : ranks) rank->export_weights(ranks);
  std::vector<std::vector<std::byte>> before;
  for (TrainerCase* rank : ranks) before.push_back(arena_bytes(*gpu, *rank));
  accord::testing::require_all_ok(
      accord::testing::run_group(options.size, "trainers", [&](Communicator& group) -> Status {
        const auto rank = static_cast<size_t>(group.rank());
        trainer::Trainer& mine = ranks[rank]->trainer();
        ACCORD_RETURN_IF_ERROR(mine.connect(group));
        ACCORD_RETURN_IF_ERROR(mine.share_originals(accord::testing::soon()));
        std::vector<TrainSample> shard;
        std::vector<int64_t> places;
        for (size_t s = rank; s < samples.size(); s += ranks.size()) {
          shard.push_back(samples[s]);
          places.push_back(static_cast<int64_t>(s));
        }
        return mine.train_step(shard, 1, {}, places, accord::testing::soon()).status();
      }));
  for (size_t rank = 0; rank < ranks.size(); ++rank) {
    CAPTURE(rank);
    const std::vector<std::byte> got = arena_bytes(*gpu, *ranks[rank]);
    TrainerCase& other = *ranks[1 - rank];
    CHECK(different_bytes(other, got.data(), before[rank].data()) == 0);
    CHECK(check_export(*gpu, *ranks[rank], before[rank]) > 0);
  }
}

TEST_CASE("a step that fails leaves the arena and a master that is not finite is named after one") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const TrainerOptions options = trainer_options(BackwardMode::kHighPrecision);
  TrainerCase run(*gpu, gpu->device().id(), "qwen3_moe", mixed_plan, options);
  auto samples = training_samples(run.trainer(), run.config().vocab_size);
  const std::vector<std::byte> before = arena_bytes(*gpu, run);
  const double advantage = samples[1].advantage;
  samples[1].advantage = 1e300;  // the loss is finite, its gradient is not
  CHECK_FALSE(run.trainer().train_step(samples, 1).ok());
  CHECK(arena_bytes(*gpu, run) == before);
  CHECK(must(run.trainer().exported()).empty());

  samples[1].advantage = advantage;
  for (const char* name : {"model.embed_tokens.weight", "model.layers.1.self_attn.q_proj.weight",
                           "model.layers.2.mlp.experts.5.up_proj.weight"}) {
    CAPTURE(name);
    TrainerCase bad(*gpu, gpu->device().id(), "qwen3_moe", mixed_plan, options);
    for (trainer::StateTensor& tensor : bad.trainer().state()) {
      if (tensor.name != std::string("exp_avg.") + name) continue;
      std::vector<float> values(static_cast<size_t>(tensor.numel));
      must(tensor.read(values));
      values[64 * 3 + 7] = std::numeric_limits<float>::max();  // moves its master to infinity
      must(tensor.write(values));
    }
    must(bad.trainer().train_step(samples, 1));
    Export fused(*gpu, bad);
    const auto report = fused.rest(fused.host.get());
    CHECK(exit_code(report.status()) == ExitCode::kBadData);
    CHECK(message_of(report.status()).find(name) != std::string::npos);
    CHECK(message_of(report.status()).find("row 3, column 7") != std::string::npos);
    CHECK(std::all_of(fused.host->data(), fused.host->data() + fused.host->size(),
                      [](std::byte b) { return b == std::byte{0}; }));
  }
}
