// A weight update between two GPUs: its broadcast in chunks with digests against one plain broadcast of the
// same bytes, and the copy into the arena, on the shapes of Qwen3-30B-A3B in MXFP8.
//
//   bench_gpu_nccl [LAYERS] [REPEATS]   31 layers are 20 GB
#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <cstdio>
#include <cstdlib>
#include <functional>
#include <memory>
#include <string>
#include <vector>

#include "base/hash.hpp"
#include "base/philox.hpp"
#include "controller/update_channel.hpp"
#include "device/thread_pool.hpp"
#include "device_group.hpp"
#include "gpu.hpp"
#include "weights/transaction.hpp"

using namespace accord;
using controller::DeviceUpdates;
using gpu_test::must;
using gpu_test::Rank;

namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kHidden = 2048;
constexpr int64_t kVocab = 151936;
constexpr int64_t kExpertWidth = 768;
constexpr int64_t kExperts = 128;
constexpr int64_t kChunk = int64_t{256} << 20;

Deadline soon() { return Deadline::after(std::chrono::seconds(120)); }

void add(WeightManifest& manifest, int64_t data, int64_t scale) {
  constexpr int64_t kAlign = 256;
  WeightEntry entry;
  entry.name = fmt::format("w{}", manifest.entries.size());
  entry.data_offset = manifest.arena_bytes;
  entry.data_bytes = data;
  entry.scale_offset = entry.data_offset + (data + kAlign - 1) / kAlign * kAlign;
  entry.scale_bytes = scale;
  entry.outer_offset = entry.scale_offset + (scale + kAlign - 1) / kAlign * kAlign;
  manifest.arena_bytes = entry.outer_offset;
  manifest.entries.push_back(entry);
}

WeightManifest qwen3_moe(int64_t layers) {
  WeightManifest manifest;
  const auto bf16 = [&](int64_t n, int64_t k) { add(manifest, n * k * 2, 0); };
  const auto mxfp8 = [&](int64_t n, int64_t k) { add(manifest, n * k, n * k / 32); };
  bf16(kVocab, kHidden);
  for (int64_t layer = 0; layer < layers; ++layer) {
    bf16(1, kHidden);
    mxfp8(2 * kHidden, kHidden);
    mxfp8(kHidden / 4, kHidden);
    mxfp8(kHidden / 4, kHidden);
    mxfp8(kHidden, 2 * kHidden);
    bf16(1, kHidden);
    bf16(kExperts, kHidden);
    for (int64_t expert = 0; expert < 3 * kExperts; ++expert) mxfp8(kExpertWidth, kHidden);
  }
  bf16(1, kHidden);
  bf16(kVocab, kHidden);
  manifest.digest = digest_hex("bench");
  return manifest;
}

double seconds(const std::function<void()>& work) {
  const auto begin = Clock::now();
  work();
  return std::chrono::duration<double>(Clock::now() - begin).count();
}

double median(std::vector<double> values) {
  std::sort(values.begin(), values.end());
  return values[values.size() / 2];
}

class Bench {
 public:
  Bench(Rank& rank, const WeightManifest& manifest, int repeats)
      : rank_(rank), manifest_(manifest), repeats_(repeats), bytes_(manifest.arena_bytes) {}

  Status run();

 private:
  bool sends() const { return rank_.group.rank() == 0; }
  // The median over repeats of work that both ranks begin together; printed by the receiver.
  double measure(const std::string& what, double reference, const std::function<void()>& work);
  void print(const std::string& what, double time, double reference) const;
  void fill(const Memory& memory) const;
  void update(uint64_t version, weights::UpdateReceiver& receiver);

  Rank& rank_;
  const WeightManifest& manifest_;
  const int repeats_;
  const int64_t bytes_;
  std::unique_ptr<DeviceUpdates> updates_;
  Memory arena_, staging_;
  std::vector<std::string> digests_;
};

void Bench::print(const std::string& what, double time, double reference) const {
  if (sends()) return;
  const std::string share = reference > 0 ? fmt::format("  {:5.1f} % of it", 100.0 * reference / time) : "";
  std::printf("%s\n", fmt::format("{:58} {:8.2f} ms {:8.1f} GB/s{}", what, 1e3 * time,
                                  static_cast<double>(bytes_) / time / 1e9, share)
                          .c_str());
  std::fflush(stdout);
}

double Bench::measure(const std::string& what, double reference, const std::function<void()>& work) {
  std::vector<double> times;
  for (int i = -1; i < repeats_; ++i) {  // the first one connects and warms up
    must(rank_.group.barrier(soon()));
    const double time = seconds(work);
    if (i >= 0) times.push_back(time);
  }
  const double time = median(times);
  print(what, time, reference);
  return time;
}

void Bench::fill(const Memory& memory) const {
  std::vector<uint64_t> tile(size_t{8} << 20);
  PhiloxStream random(1, 2);
  for (uint64_t& word : tile) word = random.next_below(~uint64_t{0});
  const auto tile_bytes = static_cast<int64_t>(tile.size() * sizeof(uint64_t));
  const Memory source = rank_.upload(tile.data(), static_cast<size_t>(tile_bytes));
  for (int64_t at = 0; at < bytes_; at += tile_bytes - 24) {
    must(rank_.stream.copy(memory.as<std::byte>() + at, source.data(),
                           static_cast<size_t>(std::min(tile_bytes - 24, bytes_ - at))));
  }
  must(rank_.stream.synchronize());
}

void Bench::update(uint64_t version, weights::UpdateReceiver& receiver) {
  weights::UpdateOptions options = DeviceUpdates::options(version);
  const weights::UpdateChannel channel = updates_->channel(rank_.group, soon());
  if (sends()) {
    must(weights::send_update(manifest_, arena_.as<std::byte>(), {digests_, {}, {}}, options, channel));
    return;
  }
  DeviceUpdates::Digest digest(*updates_, rank_.group, soon());
  const auto report = must(
      receiver.receive({staging_.as<std::byte>(), static_cast<size_t>(bytes_)}, options, channel, &digest));
  if (report.attempts != 1) std::printf("FAILED: %d attempts\n", report.attempts);
}

Status Bench::run() {
  ACCORD_ASSIGN_OR_RETURN(updates_, DeviceUpdates::create(manifest_, rank_.device));
  ACCORD_ASSIGN_OR_RETURN(arena_, Memory::allocate(rank_.device, static_cast<size_t>(bytes_)));
  ACCORD_ASSIGN_OR_RETURN(staging_, Memory::allocate(rank_.device, static_cast<size_t>(bytes_)));
  ACCORD_RETURN_IF_ERROR(rank_.stream.fill(arena_.data(), 0, static_cast<size_t>(bytes_)));
  ACCORD_RETURN_IF_ERROR(rank_.stream.fill(staging_.data(), 0, static_cast<size_t>(bytes_)));
  if (sends()) fill(arena_);
  ACCORD_ASSIGN_OR_RETURN(digests_, updates_->digests_of(arena_.as<std::byte>()));
  std::byte* const from = sends() ? arena_.as<std::byte>() : staging_.as<std::byte>();
  if (!sends()) {
    std::printf("arena of %.2f GB, %zu tensors\n", static_cast<double>(bytes_) / 1e9,
                manifest_.entries.size());
  }
  const double bare = measure("one ncclBroadcast", 0, [&] {
    must(rank_.collectives.broadcast(from, bytes_, 0, rank_.stream, soon()));
    must(rank_.collectives.finish(rank_.stream, soon()));
  });
  measure("broadcast in chunks of 256 MiB", bare, [&] {
    for (int64_t at = 0; at < bytes_; at += kChunk) {
      must(rank_.collectives.broadcast(from + at, std::min(kChunk, bytes_ - at), 0, rank_.stream, soon()));
    }
    must(rank_.collectives.finish(rank_.stream, soon()));
  });
  measure("digests of an arena that is there", 0, [&] { must(updates_->digests_of(from).status()); });
  const double plain_copy = measure("copy staging to arena", 0, [&] {
    if (sends()) return;
    must(rank_.stream.copy(arena_.data(), staging_.data(), static_cast<size_t>(bytes_)));
    must(rank_.stream.synchronize());
  });
  ThreadPool pool(1);
  std::vector<double> copies;
  const auto copy = [&](std::byte* to, const std::byte* at, int64_t bytes) -> Status {
    Status status;
    copies.push_back(seconds([&] {
      status = rank_.stream.copy(to, at, static_cast<size_t>(bytes));
      if (status.ok()) status = rank_.stream.synchronize();
    }));
    return status;
  };
  weights::UpdateReceiver receiver(manifest_, arena_.as<std::byte>(), pool, copy);
  std::vector<double> without_copy;
  std::vector<double> whole;
  for (int i = -1; i < repeats_; ++i) {
    must(rank_.group.barrier(soon()));
    const double time = seconds([&] { update(static_cast<uint64_t>(i + 2), receiver); });
    if (i < 0) continue;
    whole.push_back(time);
    without_copy.push_back(time - (copies.empty() ? 0.0 : copies.back()));
  }
  print("update: offer, chunks, digests, votes (without the copy)", median(without_copy), bare);
  if (!copies.empty()) print("its copy into the arena", median(copies), plain_copy);
  print("update, all of it", median(whole), bare);
  if (!sends()) {
    const std::vector<std::string> held = must(updates_->digests_of(arena_.as<std::byte>()));
    int different = 0;
    std::vector<char> sent(held.size() * 32);
    must(rank_.host.broadcast(sent.data(), static_cast<int64_t>(sent.size()), 0, soon()));
    for (size_t i = 0; i < held.size(); ++i)
      different += held[i] != std::string(sent.data() + i * 32, 32) ? 1 : 0;
    std::printf("tensors whose digests differ after the updates: %d\n", different);
  } else {
    std::string sent;
    for (const std::string& text : digests_) sent += text;
    must(rank_.host.broadcast(sent.data(), static_cast<int64_t>(sent.size()), 0, soon()));
  }
  return absl::OkStatus();
}

}  // namespace

int main(int argc, char** argv) {
  const int64_t layers = argc > 1 ? std::atoll(argv[1]) : 31;
  const int repeats = argc > 2 ? std::atoi(argv[2]) : 5;
  if (!gpu_test::have_devices(2)) return 0;
  const WeightManifest manifest = qwen3_moe(layers);
  for (const Status& status :
       gpu_test::run_ranks(2, [&](Rank& rank) -> Status { return Bench(rank, manifest, repeats).run(); })) {
    must(status);
  }
  return 0;
}
