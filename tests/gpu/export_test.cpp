// Weights exported on the device: the CPU's bytes and report, in every format and layout.
#include "weights/export.hpp"

#include <cmath>
#include <cstring>
#include <limits>
#include <map>
#include <string>
#include <vector>

#include "base/philox.hpp"
#include "gpu.hpp"
#include "support/catch.hpp"
#include "weights/device_export.hpp"
#include "weights/manifest.hpp"

using namespace accord;
using namespace gpu_test;

namespace {

using MasterMap = std::map<std::string, std::vector<float>>;

constexpr int64_t kSmallTile = 64 * 48;  // several tiles a tensor, the last one shorter

ModelConfig moe_config() {
  ModelConfig c;
  c.architecture = Architecture::kQwen3Moe;
  c.vocab_size = 83;
  c.hidden_size = 64;
  c.num_layers = 6;
  c.num_heads = 2;
  c.num_kv_heads = 1;
  c.head_dim = 32;
  c.intermediate_size = 96;
  c.num_experts = 2;
  c.num_experts_per_token = 1;
  c.moe_intermediate_size = 112;
  c.router_bias = true;
  c.layer_is_moe = std::vector<bool>(6, true);
  c.qk_norm = true;
  c.max_position_embeddings = 64;
  return c;
}

// Attention in MXFP8; experts: MXFP8 in layer 0, then NVFP4 in both layouts, and four over six in both ranges
// and errors.
precision::PrecisionPlan plan_of(const ModelConfig& config) {
  recipe::PrecisionPart part;
  const auto add = [&part](const std::string& name, const std::string& pattern, WeightFormat format,
                           recipe::ScaleLayout layout = recipe::ScaleLayout::k1x16,
                           recipe::FourOverSix four_over_six = recipe::FourOverSix::kNone,
                           recipe::FourOverSixError error = recipe::FourOverSixError::kMse,
                           int64_t range = 448) {
    recipe::PrecisionConfig chosen;
    chosen.name = name;
    chosen.format = format;
    chosen.layout = layout;
    chosen.four_over_six = four_over_six;
    chosen.four_over_six_error = error;
    chosen.four_over_six_range = range;
    part.configs.push_back(chosen);
    part.matchers.push_back({name, pattern, name});
  };
  using recipe::FourOverSix;
  using recipe::FourOverSixError;
  using recipe::ScaleLayout;
  add("attention", "*.self_attn.*", WeightFormat::kMXFP8);
  add("layer0", "*.layers.0.mlp.*", WeightFormat::kMXFP8);
  add("layer1", "*.layers.1.mlp.*", WeightFormat::kNVFP4);
  add("layer2", "*.layers.2.mlp.*", WeightFormat::kNVFP4, ScaleLayout::k16x16);
  add("layer3", "*.layers.3.mlp.*", WeightFormat::kNVFP4, ScaleLayout::k1x16, FourOverSix::kWeights,
      FourOverSixError::kMse, 256);
  add("layer4", "*.layers.4.mlp.*", WeightFormat::kNVFP4, ScaleLayout::k16x16, FourOverSix::kAll,
      FourOverSixError::kMae);
  return must(precision::build_plan(config, part));
}

// Rows of very different size, values that BF16 or a format makes zero, and a tensor that is all zeros.
MasterMap masters_of(const ModelConfig& config, uint64_t seed) {
  MasterMap masters;
  uint64_t stream = 0;
  for (const ParamSpec& spec : parameter_specs(config)) {
    PhiloxStream random(seed, stream++);
    std::vector<float>& values = masters[spec.name];
    values.resize(static_cast<size_t>(spec.numel()));
    for (size_t i = 0; i < values.size(); ++i) {
      const double size = std::exp2(-static_cast<double>(random.next_below(12)));
      values[i] = static_cast<float>(random.next_normal() * size);
      if (i % 97 == 0) {
        values[i] = i % 2 == 0 ? 1e-41F : -3e-6F;
      }
    }
  }
  for (float& value : masters.at("model.layers.1.mlp.experts.0.down_proj.weight")) {
    value = 0.0F;
  }
  return masters;
}

weights::Masters borrow(const MasterMap& masters) {
  return [&masters](const std::string& name) -> StatusOr<weights::Master> {
    return weights::Master(std::span<const float>(masters.at(name)));
  };
}

// A policy whose arenas hold a pattern that no export writes everywhere.
class Case {
 public:
  explicit Case(const Gpu& gpu)
      : gpu_(gpu),
        config(moe_config()),
        plan(plan_of(config)),
        manifest(must(weights::build_manifest(config, plan))),
        expected(must(weights::Arena::create(manifest.arena_bytes))),
        host(must(weights::Arena::create_pinned(gpu.device(), manifest.arena_bytes))),
        arena(must(Memory::allocate(gpu.device(), static_cast<size_t>(manifest.arena_bytes)))) {
    clear();
  }

  void clear() const {
    for (weights::Arena* a : {expected.get(), host.get()}) {
      std::memset(a->data(), 0, static_cast<size_t>(a->size()));
    }
    must(gpu_.stream().fill(arena.data(), 0, arena.bytes()));
  }
  void set_masters(const MasterMap& masters) {
    for (const auto& [name, values] : masters) {
      on_device_[name] = gpu_.upload(values);
    }
  }
  weights::DeviceMasters masters() const {
    return [this](const std::string& name) -> const float* { return on_device_.at(name).as<float>(); };
  }
  // Bytes in which the device's arena, and the host's copy, differ from the CPU's.
  int64_t device_differs() const {
    const std::vector<std::byte> bytes = gpu_.download<std::byte>(arena, arena.bytes());
    return count(bytes.data());
  }
  int64_t host_differs() const { return count(host->data()); }

 private:
  int64_t count(const std::byte* bytes) const {
    int64_t n = 0;
    for (int64_t i = 0; i < manifest.arena_bytes; ++i) {
      n += bytes[i] != expected->data()[i] ? 1 : 0;
    }
    return n;
  }
  const Gpu& gpu_;
  std::map<std::string, Memory> on_device_;

 public:
  ModelConfig config;
  precision::PrecisionPlan plan;
  WeightManifest manifest;
  std::unique_ptr<weights::Arena> expected;  // the CPU's
  std::unique_ptr<weights::Arena> host;
  Memory arena;
  ThreadPool pool{2};
};

void check_same(const weights::ExportReport& a, const weights::ExportReport& b) {
  REQUIRE(a.tensors.size() == b.tensors.size());
  for (size_t i = 0; i < a.tensors.size(); ++i) {
    CAPTURE(a.tensors[i].name);
    CHECK(a.tensors[i].name == b.tensors[i].name);
    CHECK(a.tensors[i].digest == b.tensors[i].digest);
    CHECK(a.tensors[i].amax == b.tensors[i].amax);
    CHECK(a.tensors[i].saturated == b.tensors[i].saturated);
    CHECK(a.tensors[i].flushed == b.tensors[i].flushed);
  }
}

}  // namespace

TEST_CASE("weights exported on the device are the CPU's bytes, and so is the report") {
  const auto gpu = Gpu::open();
  if (!gpu) {
    return;
  }
  Case c(*gpu);
  for (const WeightFormat format :
       {WeightFormat::kBF16, WeightFormat::kMXFP8, WeightFormat::kNVFP4, WeightFormat::kF32}) {
    int64_t n = 0;
    for (const WeightEntry& entry : c.manifest.entries) {
      n += entry.format == format ? 1 : 0;
    }
    CHECK(n > 0);
  }
  for (const int64_t tile : {kSmallTile, int64_t{1} << 25}) {
    CAPTURE(tile);
    const auto exporter =
        must(weights::DeviceExporter::create(c.manifest, c.plan, gpu->device(), gpu->stream(), {{}, tile}));
    for (const uint64_t seed : {1U, 2U}) {  // the second export finds the first one's counters
      CAPTURE(seed);
      const MasterMap masters = masters_of(c.config, seed);
      c.set_masters(masters);
      c.clear();
      const auto expected =
          must(weights::export_weights(c.manifest, c.plan, borrow(masters), *c.expected, c.pool));
      const auto report = must(exporter->run(c.masters(), c.arena.as<std::byte>(), c.host.get(), c.pool));
      CHECK(c.device_differs() == 0);
      CHECK(c.host_differs() == 0);
      check_same(report, expected);
      // Digests of the device are the same.
      check_same(must(exporter->run(c.masters(), c.arena.as<std::byte>(), nullptr, c.pool)), expected);
      CHECK(c.device_differs() == 0);
    }
  }
}

TEST_CASE("a device export of some units leaves the others' bytes alone") {
  const auto gpu = Gpu::open();
  if (!gpu) {
    return;
  }
  Case c(*gpu);
  const MasterMap masters = masters_of(c.config, 3);
  c.set_masters(masters);
  std::vector<bool> owned;
  for (const WeightEntry& entry : c.manifest.entries) {
    owned.push_back(entry.name.find("layers.1.") != std::string::npos ||
                    entry.name.find("layers.4.") != std::string::npos);
  }
  const auto expected =
      must(weights::export_weights(c.manifest, c.plan, borrow(masters), *c.expected, c.pool, {true, owned}));
  const auto exporter = must(
      weights::DeviceExporter::create(c.manifest, c.plan, gpu->device(), gpu->stream(), {owned, kSmallTile}));
  const auto report = must(exporter->run(c.masters(), c.arena.as<std::byte>(), c.host.get(), c.pool));
  CHECK(c.device_differs() == 0);
  CHECK(c.host_differs() == 0);
  check_same(report, expected);
  const auto half = weights::DeviceExporter::create(c.manifest, c.plan, gpu->device(), gpu->stream(),
                                                    {std::vector<bool>(owned.size() - 1, true), kSmallTile});
  CHECK(exit_code(half.status()) == ExitCode::kInternal);
}

TEST_CASE("a master on the device that is not finite in BF16 is refused by name and no byte changes") {
  const auto gpu = Gpu::open();
  if (!gpu) {
    return;
  }
  Case c(*gpu);
  const auto exporter =
      must(weights::DeviceExporter::create(c.manifest, c.plan, gpu->device(), gpu->stream()));
  for (const float bad : {std::numeric_limits<float>::quiet_NaN(), -std::numeric_limits<float>::infinity(),
                          std::numeric_limits<float>::max()}) {
    CAPTURE(bad);
    MasterMap masters = masters_of(c.config, 4);
    masters.at("model.layers.5.mlp.experts.1.up_proj.weight")[64 * 3 + 7] = bad;
    c.set_masters(masters);
    const auto report = exporter->run(c.masters(), c.arena.as<std::byte>(), c.host.get(), c.pool);
    const auto expected = weights::export_weights(c.manifest, c.plan, borrow(masters), *c.expected, c.pool);
    CHECK(exit_code(report.status()) == ExitCode::kBadData);
    CHECK(message_of(report.status()) == message_of(expected.status()));
    CHECK(message_of(report.status()).find("row 3, column 7") != std::string::npos);
    CHECK(c.device_differs() == 0);
    CHECK(c.host_differs() == 0);
  }
}
