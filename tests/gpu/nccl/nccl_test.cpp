#include <algorithm>
#include <chrono>
#include <cmath>
#include <cstring>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/philox.hpp"
#include "controller/update_channel.hpp"
#include "device/thread_pool.hpp"
#include "device_group.hpp"
#include "gpu.hpp"
#include "support/catch.hpp"
#include "support/fake_nccl.hpp"
#include "trainer/device_exchange.hpp"
#include "trainer/exchange.hpp"
#include "trainer/shards.hpp"
#include "weights/digest.hpp"
#include "weights/transaction.hpp"

using namespace accord;
using accord::testing::set_faults;
using controller::DeviceUpdates;
using gpu_test::have_devices;
using gpu_test::must;
using gpu_test::Rank;
using gpu_test::run_ranks;

namespace {

void require_all_ok(const std::vector<Status>& results) {
  for (size_t rank = 0; rank < results.size(); ++rank) {
    CAPTURE(rank, std::string(message_of(results[rank])));
    REQUIRE(results[rank].ok());
  }
}

Deadline soon(int ms = 60000) { return Deadline::after(std::chrono::milliseconds(ms)); }

std::vector<uint8_t> bytes_of(uint64_t seed, int64_t count) {
  std::vector<uint8_t> bytes(static_cast<size_t>(count));
  PhiloxStream random(seed, 1);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next_below(256));
  return bytes;
}

Status same(bool equal, const char* what) { return equal ? absl::OkStatus() : internal_error("{}", what); }

ModelConfig small_config() {
  ModelConfig config;
  config.num_layers = 2;
  config.hidden_size = 72;
  config.intermediate_size = 200;
  config.vocab_size = 301;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 24;
  config.layer_is_moe = {false, false};
  return config;
}

WeightManifest manifest_of(const std::vector<int64_t>& sizes) {
  WeightManifest manifest;
  for (const int64_t size : sizes) {
    constexpr int64_t kAlign = 256;
    WeightEntry entry;
    entry.name = "w" + std::to_string(manifest.entries.size());
    entry.data_offset = manifest.arena_bytes;
    entry.data_bytes = size;
    entry.scale_offset = entry.data_offset + (size + kAlign - 1) / kAlign * kAlign;
    entry.scale_bytes = size / 32;
    entry.outer_offset = entry.scale_offset + (entry.scale_bytes + kAlign - 1) / kAlign * kAlign;
    entry.outer_bytes = 4;
    manifest.arena_bytes = entry.outer_offset + kAlign;
    manifest.entries.push_back(entry);
  }
  manifest.digest = digest_hex("manifest");
  return manifest;
}

}  // namespace

TEST_CASE("broadcast and all_gather and exchange move device memory between devices") {
  if (!have_devices(2)) return;
  set_faults({});
  require_all_ok(run_ranks(2, [](Rank& rank) -> Status {
    const int self = rank.group.rank();
    for (const int64_t bytes : {int64_t{1}, int64_t{4097}, int64_t{5} << 20}) {
      for (int root = 0; root < 2; ++root) {
        const std::vector<uint8_t> sent = bytes_of(static_cast<uint64_t>(root), bytes);
        const std::vector<uint8_t> other = bytes_of(9, bytes);
        const Memory memory = rank.upload(self == root ? sent.data() : other.data(), sent.size());
        ACCORD_RETURN_IF_ERROR(rank.collectives.broadcast(memory.data(), bytes, root, rank.stream, soon()));
        ACCORD_RETURN_IF_ERROR(rank.collectives.finish(rank.stream, soon()));
        std::vector<uint8_t> got(sent.size());
        rank.download(memory.data(), got.data(), got.size());
        ACCORD_RETURN_IF_ERROR(same(got == sent, "broadcast"));
      }
      const std::vector<uint8_t> mine = bytes_of(static_cast<uint64_t>(10 + self), bytes);
      const std::vector<uint8_t> theirs = bytes_of(static_cast<uint64_t>(10 + 1 - self), bytes);
      const Memory out = rank.upload(mine.data(), mine.size());
      const Memory in = must(Memory::allocate(rank.device, mine.size()));
      const DeviceCollectives::Part send{1 - self, out.data(), bytes};
      const DeviceCollectives::Part receive{1 - self, in.data(), bytes};
      ACCORD_RETURN_IF_ERROR(
          rank.collectives.exchange(std::span(&send, 1), std::span(&receive, 1), rank.stream, soon()));
      const Memory all = must(Memory::allocate(rank.device, 2 * mine.size()));
      ACCORD_RETURN_IF_ERROR(rank.collectives.all_gather(out.data(), bytes, all.data(), rank.stream, soon()));
      ACCORD_RETURN_IF_ERROR(rank.collectives.finish(rank.stream, soon()));
      std::vector<uint8_t> got(mine.size());
      rank.download(in.data(), got.data(), got.size());
      ACCORD_RETURN_IF_ERROR(same(got == theirs, "exchange"));
      rank.download(all.as<uint8_t>() + (1 - self) * bytes, got.data(), got.size());
      ACCORD_RETURN_IF_ERROR(same(got == theirs, "all_gather of the other"));
      rank.download(all.as<uint8_t>() + self * bytes, got.data(), got.size());
      ACCORD_RETURN_IF_ERROR(same(got == mine, "all_gather of this one"));
    }
    return rank.group.barrier(soon());
  }));
}

TEST_CASE("gradients are summed on devices to the bits of the host and originals are the same") {
  if (!have_devices(2)) return;
  set_faults({});
  require_all_ok(run_ranks(2, [](Rank& rank) -> Status {
    const ModelConfig config = small_config();
    const std::vector<ParamSpec> specs = parameter_specs(config);
    const int self = rank.group.rank();
    const trainer::Shards shards = must(trainer::Shards::create(config, {self, 2, 1, {}}));
    ThreadPool pool(1);
    const trainer::ShardLayout layout(
        shards, specs, [](int64_t) { return true; }, true, 64);
    std::vector<float> values(static_cast<size_t>(layout.total()));
    PhiloxStream random(3, static_cast<uint64_t>(self));
    for (float& v : values)
      v = static_cast<float>(random.next_normal() * std::exp2(static_cast<double>(random.next_below(30))));
    const Memory gradients = rank.upload(values.data(), values.size() * sizeof(float));
    trainer::DeviceExchange exchange(rank.device, rank.stream);
    for (const int64_t round_bytes : {int64_t{1}, int64_t{100000}, trainer::kDeviceRoundBytes}) {
      ACCORD_RETURN_IF_ERROR(
          rank.stream.copy(gradients.data(), values.data(), values.size() * sizeof(float)));
      ACCORD_RETURN_IF_ERROR(rank.stream.synchronize());
      std::vector<float> expected = values;
      ACCORD_RETURN_IF_ERROR(
          trainer::reduce_gradients(layout, expected.data(), rank.host, pool, soon(), round_bytes + 5000));
      ACCORD_RETURN_IF_ERROR(
          exchange.reduce_gradients(layout, gradients.as<float>(), rank.group, soon(), round_bytes));
      std::vector<float> found(values.size());
      rank.download(gradients.data(), found.data(), found.size() * sizeof(float));
      ACCORD_RETURN_IF_ERROR(
          same(std::memcmp(found.data(), expected.data(), found.size() * sizeof(float)) == 0, "gradients"));
    }
    // Originals of every second tensor.
    const trainer::ShardLayout chosen(
        shards, specs, [](int64_t i) { return i % 2 == 0; }, false, 64);
    std::vector<std::vector<float>> masters(specs.size());
    std::vector<Memory> on_device(specs.size());
    for (const int64_t i : chosen.own_parameters()) {
      const auto at = static_cast<size_t>(i);
      masters[at].resize(static_cast<size_t>(specs[at].numel()));
      for (float& v : masters[at]) v = static_cast<float>(random.next_normal());
      on_device[at] = rank.upload(masters[at].data(), masters[at].size() * sizeof(float));
    }
    for (const int64_t round_bytes : {int64_t{1}, int64_t{50000}, trainer::kDeviceRoundBytes}) {
      std::vector<BF16> expected(static_cast<size_t>(chosen.total()));
      ACCORD_RETURN_IF_ERROR(trainer::share_originals(
          chosen, expected.data(),
          [&](int64_t i) { return std::span<const float>(masters[static_cast<size_t>(i)]); }, rank.host, pool,
          soon(), round_bytes + 5000));
      const std::vector<BF16> zeros(expected.size());
      const Memory originals = rank.upload(zeros.data(), zeros.size() * sizeof(BF16));
      ACCORD_RETURN_IF_ERROR(exchange.share_originals(
          chosen, originals.as<BF16>(),
          [&](int64_t i) { return on_device[static_cast<size_t>(i)].as<float>(); },
          [&](int64_t i) { return specs[static_cast<size_t>(i)].numel(); }, rank.group, soon(), round_bytes));
      std::vector<BF16> found(expected.size());
      rank.download(originals.data(), found.data(), found.size() * sizeof(BF16));
      ACCORD_RETURN_IF_ERROR(
          same(std::memcmp(found.data(), expected.data(), found.size() * sizeof(BF16)) == 0, "originals"));
    }
    return absl::OkStatus();
  }));
}

TEST_CASE("an update goes from device to device with its digests and again after a damaged chunk") {
  if (!have_devices(2)) return;
  const WeightManifest manifest = manifest_of({1000, 5 << 20, 64, 3 << 20, 70001});
  for (const bool damaged : {false, true}) {
    if (damaged && !cuda_is_emulated()) continue;  // NCCL damages nothing
    CAPTURE(damaged);
    set_faults({.corrupt = damaged ? 0 : -1});
    require_all_ok(run_ranks(2, [&](Rank& rank) -> Status {
      std::vector<uint8_t> bytes = bytes_of(4, manifest.arena_bytes);
      for (const WeightEntry& entry : manifest.entries) {  // padding is zero
        std::fill(bytes.begin() + entry.outer_offset + 4, bytes.begin() + entry.outer_offset + 256,
                  uint8_t{0});
      }
      ThreadPool pool(1);
      const std::vector<std::string> digests =
          weights::per_tensor_digests(manifest, reinterpret_cast<const std::byte*>(bytes.data()), pool);
      ACCORD_ASSIGN_OR_RETURN(const auto updates, DeviceUpdates::create(manifest, rank.device));
      const weights::UpdateOptions options = DeviceUpdates::options(7);
      if (rank.group.rank() == 0) {
        const Memory arena = rank.upload(bytes.data(), bytes.size());
        ACCORD_ASSIGN_OR_RETURN(const std::vector<std::string> found,
                                updates->digests_of(arena.as<std::byte>()));
        ACCORD_RETURN_IF_ERROR(same(found == digests, "digests of the sender"));
        ACCORD_ASSIGN_OR_RETURN(const auto report,
                                weights::send_update(manifest, arena.as<std::byte>(), {digests, {}, {}},
                                                     options, updates->channel(rank.group, soon())));
        return same(report.attempts == (damaged ? 2 : 1), "attempts");
      }
      const std::vector<uint8_t> old = bytes_of(5, manifest.arena_bytes);
      const Memory arena = rank.upload(old.data(), old.size());
      const auto copy = [&](std::byte* to, const std::byte* from, int64_t count) -> Status {
        ACCORD_RETURN_IF_ERROR(rank.stream.copy(to, from, static_cast<size_t>(count)));
        return rank.stream.synchronize();
      };
      weights::UpdateReceiver receiver(manifest, arena.as<std::byte>(), pool, copy);
      ACCORD_ASSIGN_OR_RETURN(const std::span<std::byte> staging, updates->scratch(manifest.arena_bytes));
      DeviceUpdates::Digest digest(*updates, rank.group, soon());
      ACCORD_ASSIGN_OR_RETURN(
          const auto report,
          receiver.receive(staging, options, updates->channel(rank.group, soon()), &digest));
      std::vector<uint8_t> found(bytes.size());
      rank.download(arena.data(), found.data(), found.size());
      ACCORD_RETURN_IF_ERROR(same(found == bytes, "the arena"));
      return same(receiver.version() == 7 && report.attempts == (damaged ? 2 : 1), "version and attempts");
    }));
  }
  set_faults({});
}

TEST_CASE("a peer that does not come ends a wait at its deadline and one that leaves ends it early") {
  if (!have_devices(2)) return;
  set_faults({});
  for (const bool leaves : {false, true}) {
    CAPTURE(leaves);
    const auto begin = std::chrono::steady_clock::now();
    const auto results = run_ranks(2, [&](Rank& rank) -> Status {
      const Memory memory = must(Memory::allocate(rank.device, 1 << 20));
      // Connected once, so that what waits is the device.
      ACCORD_RETURN_IF_ERROR(rank.collectives.broadcast(memory.data(), 1 << 20, 1, rank.stream, soon()));
      ACCORD_RETURN_IF_ERROR(rank.collectives.finish(rank.stream, soon()));
      ACCORD_RETURN_IF_ERROR(rank.group.barrier(soon()));
      if (rank.group.rank() == 1) {
        if (!leaves) (void)rank.host.barrier(soon(20000));  // until rank 0 has given up
        return absl::OkStatus();
      }
      const Deadline deadline = soon(leaves ? 300000 : 2000);
      Status status = rank.collectives.broadcast(memory.data(), 1 << 20, 1, rank.stream, deadline);
      if (status.ok()) status = rank.collectives.finish(rank.stream, deadline);
      if (!leaves) (void)rank.host.barrier(soon(20000));
      return status;
    });
    CHECK(std::chrono::steady_clock::now() - begin < std::chrono::seconds(60));
    INFO(std::string(message_of(results[0])));
    CHECK(results[1].ok());
    CHECK(results[0].code() ==
          (leaves ? absl::StatusCode::kUnavailable : absl::StatusCode::kDeadlineExceeded));
  }
}
