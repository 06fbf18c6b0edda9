#include "weights/export.hpp"

#include <bit>
#include <cmath>
#include <cstring>
#include <limits>

#include "fixture.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "support/catch.hpp"
#include "weights/digest.hpp"
#include "weights/manifest.hpp"

using namespace accord;
using namespace accord::weights;
using namespace accord::weights::testing;

namespace {

struct Export {
  WeightManifest manifest;
  precision::PrecisionPlan plan;
  std::unique_ptr<Arena> arena;
  ExportReport report;

  std::span<const std::byte> bytes(int64_t offset, int64_t size) const {
    return {arena->data() + offset, static_cast<size_t>(size)};
  }
  const WeightEntry& entry(const std::string& name) const { return *find_entry(manifest, name); }
  const ExportedTensor& tensor(const std::string& name) const {
    return report.tensors[static_cast<size_t>(&entry(name) - manifest.entries.data())];
  }
};

Export prepare(const ModelConfig& config, const recipe::PrecisionConfig& mlp) {
  Export e;
  e.plan = plan_with(config, mlp);
  auto manifest = build_manifest(config, e.plan);
  REQUIRE(manifest.ok());
  e.manifest = *std::move(manifest);
  auto arena = Arena::create(e.manifest.arena_bytes);
  REQUIRE(arena.ok());
  e.arena = *std::move(arena);
  return e;
}

Export export_of(const ModelConfig& config, const recipe::PrecisionConfig& mlp, const Masters& masters,
                 int threads = 1, bool check_first = true) {
  Export e = prepare(config, mlp);
  ThreadPool pool(threads);
  auto report = export_weights(e.manifest, e.plan, masters, *e.arena, pool, {.check_first = check_first});
  INFO(message_of(report.status()));
  REQUIRE(report.ok());
  e.report = *std::move(report);
  return e;
}

bool same_arena(const Export& a, const Export& b) {
  return a.arena->size() == b.arena->size() &&
         std::memcmp(a.arena->data(), b.arena->data(), static_cast<size_t>(a.arena->size())) == 0;
}

std::vector<BF16> narrowed(const std::vector<float>& values) {
  std::vector<BF16> out;
  for (const float value : values) {
    out.push_back(to_bf16(value));
  }
  return out;
}

template <class T>
bool equals(std::span<const std::byte> bytes, const std::vector<T>& expected) {
  return bytes.size() == expected.size() * sizeof(T) &&
         std::memcmp(bytes.data(), expected.data(), bytes.size()) == 0;
}

const std::string kExpert = "model.layers.1.mlp.experts.1.";

std::vector<recipe::PrecisionConfig> all_configs() {
  std::vector<recipe::PrecisionConfig> configs = {config_of(WeightFormat::kBF16),
                                                  config_of(WeightFormat::kMXFP8)};
  recipe::PrecisionConfig nvfp4 = config_of(WeightFormat::kNVFP4);
  configs.push_back(nvfp4);
  nvfp4.layout = recipe::ScaleLayout::k16x16;
  configs.push_back(nvfp4);
  nvfp4.four_over_six = recipe::FourOverSix::kWeights;
  nvfp4.four_over_six_range = 256;
  configs.push_back(nvfp4);
  return configs;
}

}  // namespace

TEST_CASE("exported bytes are the quantizer's on the whole of bf16 of the master") {
  const ModelConfig config = small_config();
  const MasterMap masters = random_masters(config, 1);
  SECTION("BF16") {
    const Export e = export_of(config, config_of(WeightFormat::kMXFP8), borrow(masters));
    for (const char* name : {"model.embed_tokens.weight", "model.norm.weight", "lm_head.weight"}) {
      const WeightEntry& entry = e.entry(name);
      CHECK(equals(e.bytes(entry.data_offset, entry.data_bytes), narrowed(masters.at(name))));
    }
  }
  SECTION("MXFP8") {
    const Export e = export_of(config, config_of(WeightFormat::kMXFP8), borrow(masters));
    for (const char* part : {"gate_proj.weight", "down_proj.weight"}) {
      const WeightEntry& entry = e.entry(kExpert + part);
      const int64_t n = entry.shape[0];
      const int64_t k = entry.shape[1];
      std::vector<BF16> x = narrowed(masters.at(entry.name));
      std::vector<uint8_t> q(static_cast<size_t>(n * k));
      std::vector<uint8_t> s(static_cast<size_t>(n * k / 32));
      formats::quantize_mxfp8_reference(matrix_view(x.data(), n, k), q.data(), s.data(), formats::Axis::kRow,
                                        formats::Element::kE4M3);
      CHECK(equals(e.bytes(entry.data_offset, entry.data_bytes), q));
      CHECK(equals(e.bytes(entry.scale_offset, entry.scale_bytes), s));
    }
  }
  SECTION("NVFP4: gate and up share one outer scale, down has its own") {
    for (const recipe::ScaleLayout layout : {recipe::ScaleLayout::k1x16, recipe::ScaleLayout::k16x16}) {
      recipe::PrecisionConfig nvfp4 = config_of(WeightFormat::kNVFP4);
      nvfp4.layout = layout;
      const Export e = export_of(config, nvfp4, borrow(masters));
      formats::Nvfp4Options options;
      options.layout =
          layout == recipe::ScaleLayout::k16x16 ? formats::Nvfp4Layout::k16x16 : formats::Nvfp4Layout::k1x16;
      float pair_amax = 0;
      for (const char* part : {"gate_proj.weight", "up_proj.weight"}) {
        for (const float x : masters.at(kExpert + part)) {
          pair_amax = std::max(pair_amax, std::fabs(to_float(to_bf16(x))));
        }
      }
      for (const char* part : {"gate_proj.weight", "up_proj.weight", "down_proj.weight"}) {
        const WeightEntry& entry = e.entry(kExpert + part);
        CAPTURE(entry.name);
        const int64_t n = entry.shape[0];
        const int64_t k = entry.shape[1];
        std::vector<BF16> x = narrowed(masters.at(entry.name));
        std::vector<uint8_t> q(static_cast<size_t>(n * k / 2));
        std::vector<uint8_t> s(static_cast<size_t>(n * k / 16));
        std::vector<float> amax(1);
        const bool alone = std::string(part) == "down_proj.weight";
        formats::quantize_nvfp4_reference(matrix_view(x.data(), n, k), options,
                                          {q.data(), s.data(), amax.data()}, alone ? nullptr : &pair_amax);
        if (!alone) {
          amax[0] = pair_amax;
        }
        CHECK(equals(e.bytes(entry.data_offset, entry.data_bytes), q));
        CHECK(equals(e.bytes(entry.scale_offset, entry.scale_bytes), s));
        CHECK(equals(e.bytes(entry.outer_offset, entry.outer_bytes), amax));
      }
    }
  }
}

TEST_CASE("an export equals the export of a BF16 checkpoint of the same masters") {
  const ModelConfig config = small_config();
  const MasterMap masters = random_masters(config, 2);
  MasterMap checkpoint = masters;
  for (auto& [name, values] : checkpoint) {
    for (float& value : values) {
      value = to_float(to_bf16(value));
    }
  }
  for (const recipe::PrecisionConfig& mlp : all_configs()) {
    const Export live = export_of(config, mlp, borrow(masters));
    const Export converted = export_of(config, mlp, borrow(checkpoint));
    CHECK(same_arena(live, converted));
    for (size_t i = 0; i < live.report.tensors.size(); ++i) {
      CHECK(live.report.tensors[i].digest == converted.report.tensors[i].digest);
    }
  }
}

TEST_CASE("bytes depend on neither threads, order of checks, nor who owns the masters") {
  const ModelConfig config = small_config();
  const MasterMap masters = random_masters(config, 3);
  const Masters owned = [&](const std::string& name) -> StatusOr<Master> { return Master(masters.at(name)); };
  for (const recipe::PrecisionConfig& mlp : all_configs()) {
    const Export first = export_of(config, mlp, borrow(masters));
    CHECK(same_arena(first, export_of(config, mlp, borrow(masters), 3)));
    CHECK(same_arena(first, export_of(config, mlp, owned, 2, /*check_first=*/false)));
  }
}

TEST_CASE("reported digests are those of the arena, and padding stays zero") {
  const ModelConfig config = small_config();
  const Export e = export_of(config, config_of(WeightFormat::kNVFP4), borrow(random_masters(config, 4)));
  ThreadPool pool(2);
  const std::vector<std::string> digests = per_tensor_digests(e.manifest, e.arena->data(), pool);
  std::vector<bool> used(static_cast<size_t>(e.arena->size()), false);
  for (size_t i = 0; i < digests.size(); ++i) {
    CHECK(e.report.tensors[i].name == e.manifest.entries[i].name);
    CHECK(e.report.tensors[i].digest == digests[i]);
    const WeightEntry& entry = e.manifest.entries[i];
    for (const auto& [offset, bytes] :
         {std::pair(entry.data_offset, entry.data_bytes), std::pair(entry.scale_offset, entry.scale_bytes),
          std::pair(entry.outer_offset, entry.outer_bytes)}) {
      std::fill(used.begin() + offset, used.begin() + offset + bytes, true);
    }
  }
  bool padding_is_zero = true;
  for (size_t i = 0; i < used.size(); ++i) {
    padding_is_zero = padding_is_zero && (used[i] || e.arena->data()[i] == std::byte{0});
  }
  CHECK(padding_is_zero);
}

TEST_CASE("the report says how well the format held the weights") {
  const ModelConfig config = small_config();
  MasterMap masters = random_masters(config, 5);
  const std::string name = kExpert + "down_proj.weight";
  std::vector<float>& values = masters.at(name);
  std::fill(values.begin(), values.end(), 0.0F);
  // In a block with amax 448 the scale is 1 and E4M3's least subnormal 2^-9: 2^-11 becomes 0.
  values[0] = 448.0F;
  values[1] = 0x1p-11F;
  values[2] = -0x1p-11F;
  values[3] = 0x1p-140F;  // BF16 already flushes it
  const Export e = export_of(config, config_of(WeightFormat::kMXFP8), borrow(masters));
  CHECK(e.tensor(name).amax == 448.0);
  CHECK(e.tensor(name).saturated == 0.0);
  CHECK(e.tensor(name).flushed == 3.0 / static_cast<double>(values.size()));
  masters.at("model.norm.weight")[0] = 1.0F + 0x1p-10F;
  masters.at("model.norm.weight")[1] = -5.0F;
  const Export again = export_of(config, config_of(WeightFormat::kMXFP8), borrow(masters));
  CHECK(again.tensor("model.norm.weight").amax == 5.0);
}

TEST_CASE("a master that is not finite in BF16 is refused by name, and the arena stays as it was") {
  const ModelConfig config = small_config();
  const MasterMap good = random_masters(config, 6);
  const std::string name = kExpert + "up_proj.weight";
  const float bad_values[] = {std::numeric_limits<float>::quiet_NaN(),
                              -std::numeric_limits<float>::infinity(), std::numeric_limits<float>::max()};
  for (const float bad : bad_values) {
    CAPTURE(bad);
    Export e = export_of(config, config_of(WeightFormat::kMXFP8), borrow(good));
    MasterMap masters = random_masters(config, 7);
    masters.at(name)[3 * 256 + 17] = bad;
    std::vector<std::byte> before(e.arena->data(), e.arena->data() + e.arena->size());
    ThreadPool pool(2);
    const Status status = export_weights(e.manifest, e.plan, borrow(masters), *e.arena, pool).status();
    CHECK(exit_code(status) == ExitCode::kBadData);
    CHECK(std::string(message_of(status)).find(name + ": the master at row 3, column 17 is ") == 0);
    CHECK(std::memcmp(before.data(), e.arena->data(), before.size()) == 0);
    CHECK_FALSE(
        export_weights(e.manifest, e.plan, borrow(masters), *e.arena, pool, {.check_first = false}).ok());
  }
}

TEST_CASE("masters that do not fit and providers that fail are errors with the tensor's name") {
  const ModelConfig config = small_config();
  MasterMap masters = random_masters(config, 8);
  masters.at("model.norm.weight").pop_back();
  Export e = prepare(config, config_of(WeightFormat::kMXFP8));
  ThreadPool pool(1);
  const Status size = export_weights(e.manifest, e.plan, borrow(masters), *e.arena, pool).status();
  CHECK(message_of(size) == "model.norm.weight: the master has 255 values, the weight 1 x 256");
  const Masters failing = [](const std::string&) -> StatusOr<Master> { return io_error("disk gone"); };
  const Status failed = export_weights(e.manifest, e.plan, failing, *e.arena, pool).status();
  CHECK(exit_code(failed) == ExitCode::kIo);
  CHECK(message_of(failed) == "model.embed_tokens.weight: disk gone");
  auto small = Arena::create(256);
  REQUIRE(small.ok());
  CHECK_FALSE(export_weights(e.manifest, e.plan, borrow(masters), **small, pool).ok());
}

TEST_CASE("dequantized weights are the decoded values") {
  const ModelConfig config = small_config();
  const MasterMap masters = random_masters(config, 9);
  const std::string name = kExpert + "gate_proj.weight";
  for (const recipe::PrecisionConfig& mlp : all_configs()) {
    const Export e = export_of(config, mlp, borrow(masters));
    const auto values = dequantize(e.entry(name), e.plan, *e.arena);
    REQUIRE(values.ok());
    const std::vector<float>& master = masters.at(name);
    REQUIRE(values->size() == master.size());
    // Largest error relative to the block's amax: half of a BF16 or E4M3 step, or of E2M1's step from 4 to 6.
    const double tolerance = mlp.format == WeightFormat::kBF16    ? 0x1p-8
                             : mlp.format == WeightFormat::kMXFP8 ? 0x1p-4
                                                                  : 0.2;
    const size_t block = 256;
    bool within = true;
    for (size_t begin = 0; begin < master.size(); begin += block) {
      double amax = 0;
      double error = 0;
      for (size_t i = begin; i < begin + block; ++i) {
        amax = std::max(amax, std::fabs(static_cast<double>(master[i])));
        error = std::max(error, std::fabs(static_cast<double>(master[i]) - (*values)[i]));
      }
      within = within && error <= tolerance * amax;
    }
    CHECK(within);
  }
}

TEST_CASE("an arena exported by two owners, unit by unit, equals the one of a single owner") {
  const ModelConfig config = small_config();
  const MasterMap masters = random_masters(config, 9);
  const Export whole = export_of(config, config_of(WeightFormat::kNVFP4), borrow(masters));
  Export halves = prepare(config, config_of(WeightFormat::kNVFP4));
  ThreadPool pool(2);
  // Units alternate between the owners; gate and up of an expert go together.
  std::vector<bool> first;
  for (const WeightEntry& entry : halves.manifest.entries) {
    first.push_back(entry.name.find("_proj.weight") != std::string::npos &&
                    entry.name.find("down_proj") == std::string::npos);
  }
  std::vector<bool> second = first;
  second.flip();
  for (const std::vector<bool>& owned : {first, second}) {
    const auto report =
        export_weights(halves.manifest, halves.plan, borrow(masters), *halves.arena, pool, {true, owned});
    REQUIRE(report.ok());
    for (size_t i = 0; i < owned.size(); ++i) {
      CHECK(report->tensors[i].digest == (owned[i] ? whole.report.tensors[i].digest : ""));
    }
  }
  CHECK(same_arena(whole, halves));
}

TEST_CASE("a part of a quantization unit is not exported alone") {
  const ModelConfig config = small_config();
  const MasterMap masters = random_masters(config, 10);
  Export e = prepare(config, config_of(WeightFormat::kNVFP4));
  ThreadPool pool(1);
  std::vector<bool> owned;
  for (const WeightEntry& entry : e.manifest.entries) {
    owned.push_back(entry.name != kExpert + "up_proj.weight");
  }
  const Status status =
      export_weights(e.manifest, e.plan, borrow(masters), *e.arena, pool, {true, owned}).status();
  CHECK(exit_code(status) == ExitCode::kInternal);
  CHECK(std::string(message_of(status)).find("only a part of its unit") != std::string::npos);
}
