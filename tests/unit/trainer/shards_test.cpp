// Ownership, flat layouts, and what ranks exchange in an update.
#include "trainer/shards.hpp"

#include <algorithm>
#include <cmath>
#include <cstring>
#include <map>

#include "base/philox.hpp"
#include "support/catch.hpp"
#include "trainer/exchange.hpp"
#include "trainer/parameters.hpp"
#include "trainer/packing.hpp"
#include "trainer/rank_group.hpp"
#include "unit/trainer/rank_pool.hpp"

namespace accord::trainer {
namespace {

// gate and up of one MLP together.
std::vector<std::string> units_of(const ModelConfig& config) {
  std::vector<std::string> units;
  for (const ParamSpec& spec : parameter_specs(config)) {
    const bool pair = spec.role == ParamRole::kGate || spec.role == ParamRole::kUp;
    units.push_back(
        pair ? spec.name.substr(
                   0, spec.name.find(pair && spec.role == ParamRole::kGate ? "gate_proj" : "up_proj"))
             : "");
  }
  return units;
}

Shards shards_of(const ModelConfig& config, int32_t rank, int32_t size, int32_t expert_parallel) {
  return value_of(Shards::create(config, {rank, size, expert_parallel, units_of(config)}));
}

// (ranks, expert_parallel)
constexpr std::pair<int32_t, int32_t> kShapes[] = {{1, 1}, {2, 1}, {3, 1}, {4, 1}, {2, 2}, {4, 2}, {4, 4}};

// What rank r's gradient of element j of parameter i is, before the reduction.
float gradient_value(int32_t rank, int64_t parameter, size_t element) {
  PhiloxStream random(static_cast<uint64_t>(rank) + 1, static_cast<uint64_t>(parameter) * 100003 + element);
  return static_cast<float>(random.next_normal() *
                            std::exp2(static_cast<double>(random.next_below(20)) - 10));
}

WeightManifest manifest_of(const ModelConfig& config) {
  WeightManifest manifest;
  for (const ParamSpec& spec : parameter_specs(config)) {
    WeightEntry entry;
    entry.name = spec.name;
    entry.shape = spec.shape;
    entry.format = spec.role == ParamRole::kDown || spec.role == ParamRole::kQ ? WeightFormat::kMXFP8
                                                                               : WeightFormat::kBF16;
    entry.data_offset = manifest.arena_bytes;
    manifest.arena_bytes += spec.numel() * 2;
    manifest.entries.push_back(entry);
  }
  return manifest;
}

}  // namespace

TEST_CASE("every tensor has one owner among its holders; units stay together; loads are even") {
  const ModelConfig config = moe_config();
  const std::vector<ParamSpec> specs = parameter_specs(config);
  const std::vector<std::string> units = units_of(config);
  int64_t total = 0, largest = 0;
  std::map<std::string, int64_t> unit_elements;
  for (size_t i = 0; i < specs.size(); ++i) {
    total += specs[i].numel();
    int64_t& sum = unit_elements[units[i].empty() ? specs[i].name : units[i]];
    sum += specs[i].numel();
    largest = std::max(largest, sum);
  }
  for (const auto& [size, places] : kShapes) {
    CAPTURE(size, places);
    std::vector<int64_t> load(static_cast<size_t>(size));
    std::map<std::string, int32_t> unit_owner;
    for (size_t i = 0; i < specs.size(); ++i) {
      CAPTURE(specs[i].name);
      const int64_t p = static_cast<int64_t>(i);
      const int32_t owner = shards_of(config, 0, size, places).owner(p);
      REQUIRE(owner >= 0);
      REQUIRE(owner < size);
      load[static_cast<size_t>(owner)] += specs[i].numel();
      if (!units[i].empty()) CHECK(unit_owner.emplace(units[i], owner).first->second == owner);
    }
    for (int32_t rank = 0; rank < size; ++rank) {
      const Shards shards = shards_of(config, rank, size, places);
      for (size_t i = 0; i < specs.size(); ++i) {
        const int64_t p = static_cast<int64_t>(i);
        CHECK(shards.owner(p) == shards_of(config, 0, size, places).owner(p));
        CHECK(shards.owns(p) == (shards.owner(p) == rank));
        if (shards.owns(p)) CHECK(shards.holds(p));
        const int32_t home = static_cast<int32_t>(specs[i].expert / (config.num_experts / places));
        CHECK(shards.holds(p) == (specs[i].expert < 0 || home == rank % places));
      }
    }
    int64_t sum = 0;
    for (int64_t l : load) {
      sum += l;
      CHECK(std::abs(l - total / size) <= largest);
    }
    CHECK(sum == total);
  }
}

TEST_CASE("ownership refuses what cannot be shared") {
  const ModelConfig config = moe_config();
  const auto code = [&](const ShardOptions& options) {
    const auto shards = Shards::create(config, options);
    INFO(std::string(message_of(shards.status())));
    return exit_code(shards.status());
  };
  CHECK(code({0, 4, 3, {}}) == ExitCode::kBadRecipe);
  CHECK(code({0,
              static_cast<int32_t>(2 * config.num_experts),
              static_cast<int32_t>(2 * config.num_experts),
              {}}) == ExitCode::kBadRecipe);
  CHECK(code({2, 2, 1, {}}) == ExitCode::kInternal);
  CHECK(code({0, 2, 1, {"a", "b"}}) == ExitCode::kInternal);
  CHECK(code({0, 2, 0, {}}) == ExitCode::kBadRecipe);
  CHECK(code({1, 2, 2, {}}) == ExitCode::kOk);
  const ModelConfig dense =
      value_of(checkpoint::HfCheckpoint::open(std::string(ACCORD_TEST_DATA) + "/hf/llama_tied")).config();
  CHECK(exit_code(Shards::create(dense, {0, 2, 2, {}}).status()) == ExitCode::kBadRecipe);
}

TEST_CASE("a single rank lays everything out in canonical order") {
  const ModelConfig config = moe_config();
  const std::vector<ParamSpec> specs = parameter_specs(config);
  const ShardLayout layout(
      Shards(), specs, [](int64_t) { return true; }, true);
  int64_t at = 0;
  for (size_t i = 0; i < specs.size(); ++i) {
    CHECK(layout.offset(static_cast<int64_t>(i)) == at);
    at += (specs[i].numel() + 15) / 16 * 16;
  }
  CHECK(layout.total() == at);
}

TEST_CASE("gradients are summed in rank order over those who hold the tensor") {
  const ModelConfig config = moe_config();
  for (const auto& [size, places] : kShapes) {
    for (const int64_t round_bytes : {int64_t{60000}, kRoundBytes}) {
      CAPTURE(size, places, round_bytes);
      std::vector<Parameters> parameters;
      for (int32_t rank = 0; rank < size; ++rank) {
        parameters.push_back(value_of(Parameters::create(config, {}, shards_of(config, rank, size, places))));
        for (int64_t i = 0; i < parameters.back().count(); ++i) {
          const auto gradient = parameters.back().gradient(i);
          CHECK(gradient.empty() != parameters.back().shards().holds(i));
          for (size_t j = 0; j < gradient.size(); ++j) gradient[j] = gradient_value(rank, i, j);
        }
      }
      const auto statuses = run_ranks(size, [&](int32_t rank, Communicator& group) -> Status {
        ThreadPool pool(1);
        const Parameters& mine = parameters[static_cast<size_t>(rank)];
        return reduce_gradients(mine.held(), mine.gradients(), group, pool,
                                Deadline::after(std::chrono::seconds(60)), round_bytes);
      });
      for (const Status& status : statuses) {
        INFO(std::string(message_of(status)));
        REQUIRE(status.ok());
      }
      int64_t wrong = 0;
      for (int64_t i = 0; i < parameters[0].count(); ++i) {
        const int32_t owner = parameters[0].shards().owner(i);
        const auto gradient = parameters[static_cast<size_t>(owner)].gradient(i);
        for (size_t j = 0; j < gradient.size(); ++j) {
          float sum = 0.0F;
          for (int32_t r = 0; r < size; ++r) {
            if (parameters[0].shards().holds(i, r)) sum += gradient_value(r, i, j);
          }
          wrong += gradient[j] == sum ? 0 : 1;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("originals are bf16 of the owner's master wherever they are read") {
  const ModelConfig config = moe_config();
  const WeightManifest manifest = manifest_of(config);
  for (const auto& [size, places] : kShapes) {
    for (const int64_t round_bytes : {int64_t{40000}, kRoundBytes}) {
      CAPTURE(size, places, round_bytes);
      std::vector<Parameters> parameters;
      std::vector<std::vector<BF16>> arenas;
      for (int32_t rank = 0; rank < size; ++rank) {
        parameters.push_back(value_of(Parameters::create(config, {}, shards_of(config, rank, size, places))));
        Parameters& mine = parameters.back();
        std::vector<BF16> arena(static_cast<size_t>(manifest.arena_bytes / 2));
        for (int64_t i = 0; i < mine.count(); ++i) {
          const WeightEntry& entry = manifest.entries[static_cast<size_t>(i)];
          const size_t elements = static_cast<size_t>(mine.specs()[static_cast<size_t>(i)].numel());
          for (size_t j = 0; j < elements; ++j) {
            const float value = gradient_value(0, i, j);
            if (mine.shards().owns(i)) mine.master(i)[j] = value;
            if (entry.format == WeightFormat::kBF16)
              arena[static_cast<size_t>(entry.data_offset) / 2 + j] = to_bf16(value);
          }
        }
        arenas.push_back(std::move(arena));
      }
      for (size_t r = 0; r < parameters.size(); ++r)
        REQUIRE(parameters[r].bind(manifest, arenas[r].data(), true).ok());
      const auto statuses = run_ranks(size, [&](int32_t rank, Communicator& group) -> Status {
        ThreadPool pool(1);
        const Parameters& mine = parameters[static_cast<size_t>(rank)];
        return share_originals(
            mine.original_layout(), mine.originals(), [&](int64_t i) { return mine.master(i); }, group, pool,
            Deadline::after(std::chrono::seconds(60)), round_bytes);
      });
      for (const Status& status : statuses) {
        INFO(std::string(message_of(status)));
        REQUIRE(status.ok());
      }
      int64_t wrong = 0;
      for (const Parameters& mine : parameters) {
        for (int64_t i = 0; i < mine.count(); ++i) {
          if (!mine.shards().holds(i)) continue;
          const int64_t elements = mine.specs()[static_cast<size_t>(i)].numel();
          std::vector<float> values(static_cast<size_t>(elements));
          mine.read_weight(i, 0, elements / 2, values.data());
          mine.read_weight(i, elements / 2, elements - elements / 2, values.data() + elements / 2);
          for (size_t j = 0; j < values.size(); ++j)
            wrong += values[j] == to_float(to_bf16(gradient_value(0, i, j))) ? 0 : 1;
        }
      }
      CHECK(wrong == 0);
    }
  }
}

TEST_CASE("ranks agree on the first error, and on nothing but the first") {
  for (const int32_t size : {1, 2, 4}) {
    for (int32_t failing = 0; failing <= size; ++failing) {
      const auto statuses = run_ranks(size, [&](int32_t rank, Communicator& communicator) -> Status {
        RankGroup group(rank, size);
        ACCORD_RETURN_IF_ERROR(group.connect(communicator));
        const Status mine = rank < failing ? absl::OkStatus() : data_error("rank {} fails", rank);
        return group.agree(mine, Deadline::after(std::chrono::seconds(60)));
      });
      for (const Status& status : statuses) {
        CHECK(exit_code(status) == (failing < size ? ExitCode::kBadData : ExitCode::kOk));
        if (failing < size)
          CHECK(std::string(message_of(status)) == "rank " + std::to_string(failing) + " fails");
      }
    }
  }
}

TEST_CASE("values of all ranks in rank order, also where a rank has none") {
  const auto statuses = run_ranks(3, [](int32_t rank, Communicator& communicator) -> Status {
    RankGroup group(rank, 3);
    const std::vector<int64_t> counts{2, 0, 5};
    const std::vector<double> mine(static_cast<size_t>(counts[static_cast<size_t>(rank)]), rank + 0.5);
    const Deadline deadline = Deadline::after(std::chrono::seconds(60));
    if (group.gather(rank, deadline).ok()) return internal_error("an unconnected group talks");
    ACCORD_RETURN_IF_ERROR(group.connect(communicator));
    ACCORD_ASSIGN_OR_RETURN(const auto all,
                            group.concatenate(std::span<const double>(mine), counts, deadline));
    if (all != std::vector<double>{0.5, 0.5, 2.5, 2.5, 2.5, 2.5, 2.5}) return internal_error("wrong values");
    ACCORD_ASSIGN_OR_RETURN(const auto ranks, group.gather(rank, deadline));
    return ranks == std::vector<int32_t>{0, 1, 2} ? absl::OkStatus() : internal_error("wrong ranks");
  });
  for (const Status& status : statuses) {
    INFO(std::string(message_of(status)));
    CHECK(status.ok());
  }
}

TEST_CASE("samples go to the rank with the fewest tokens") {
  const auto assigned = [](std::vector<int64_t> tokens, int32_t ranks) {
    return assign_samples(tokens, ranks);
  };
  CHECK(assigned({5, 5, 5, 5}, 2) == std::vector<int32_t>{0, 1, 0, 1});
  CHECK(assigned({1, 9, 4, 4}, 2) == std::vector<int32_t>{1, 0, 1, 1});
  CHECK(assigned({3, 7}, 4) == std::vector<int32_t>{1, 0});
  CHECK(assigned({}, 3).empty());
  CHECK(assigned({2, 2, 2}, 1) == std::vector<int32_t>{0, 0, 0});
}

}  // namespace accord::trainer
