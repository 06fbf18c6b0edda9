#include "weights/digest.hpp"

#include <string>
#include <vector>

#include "base/philox.hpp"
#include "device/thread_pool.hpp"
#include "gpu.hpp"
#include "support/catch.hpp"
#include "weights/device_digest.hpp"
#include "weights/spans.hpp"

using namespace accord;
using gpu_test::Gpu;
using gpu_test::must;

namespace {

// Tensors of every length class, with parts that end inside a block, a stripe and a word, and one that is
// large.
WeightManifest mixed_manifest() {
  WeightManifest manifest;
  const auto add = [&](int64_t data, int64_t scale, int64_t outer) {
    constexpr int64_t kAlign = 256;
    const auto up = [](int64_t bytes) { return (bytes + kAlign - 1) / kAlign * kAlign; };
    WeightEntry entry;
    entry.name = "tensor " + std::to_string(manifest.entries.size());
    entry.data_offset = manifest.arena_bytes;
    entry.data_bytes = data;
    entry.scale_offset = entry.data_offset + up(data);
    entry.scale_bytes = scale;
    entry.outer_offset = entry.scale_offset + up(scale);
    entry.outer_bytes = outer;
    manifest.arena_bytes = entry.outer_offset + up(outer);
    manifest.entries.push_back(entry);
  };
  for (const int64_t bytes :
       {1, 16, 17, 128, 240, 241, 256, 1024, 1025, 1088, 1089, 2048, 4097, 65536, 65537}) {
    add(bytes, 0, 0);
    add(bytes, bytes / 16 + 1, 4);
    add(bytes, bytes / 16, 0);
  }
  add(3 << 20, 3 << 16, 4);
  add(2048 * 768, 0, 0);
  add(2048 * 768, 2048 * 24, 0);
  return manifest;
}

}  // namespace

TEST_CASE("digests of an arena on the device are those of the host") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const WeightManifest manifest = mixed_manifest();
  std::vector<uint8_t> bytes(static_cast<size_t>(manifest.arena_bytes));
  PhiloxStream random(5, 6);
  for (uint8_t& byte : bytes) byte = static_cast<uint8_t>(random.next_below(256));
  ThreadPool pool(1);
  const std::vector<std::string> expected =
      weights::per_tensor_digests(manifest, reinterpret_cast<const std::byte*>(bytes.data()), pool);
  const Memory arena = gpu->allocate(bytes.size());
  const std::vector<int32_t> owners(manifest.entries.size());
  const std::vector<weights::ArenaSpan> spans = weights::arena_spans(manifest, owners);
  const int64_t largest = weights::first_sent(manifest);
  REQUIRE(largest > 0);
  for (const auto& [pass_bytes, first] : std::vector<std::pair<int64_t, int64_t>>{
           {5000, 0}, {5000, largest}, {1 << 20, largest}, {256 << 20, 0}}) {
    CAPTURE(pass_bytes);
    CAPTURE(first);
    const auto digest = must(weights::DeviceDigest::create(manifest, gpu->device(),
                                                           {.pass_bytes = pass_bytes, .first_byte = first}));
    // Twice: nothing is left over from the first time.
    for (const int64_t step : {int64_t{100000}, manifest.arena_bytes}) {
      must(gpu->stream().fill(arena.data(), 0xee, bytes.size()));  // what is read too early is wrong
      must(digest->begin(arena.as<std::byte>()));
      int64_t count = 0;
      for (const weights::ArenaSpan& chunk : weights::chunks_from(first, spans, step)) {
        const int64_t length = chunk.end - chunk.begin;
        must(gpu->stream().copy(arena.as<uint8_t>() + chunk.begin, bytes.data() + chunk.begin,
                                static_cast<size_t>(length)));
        count += length;
        must(digest->advance(count, gpu->stream()));
      }
      CHECK(count == manifest.arena_bytes);
      must(digest->end(gpu->stream()));
      must(digest->stream().synchronize());
      const std::vector<std::string> found = digest->digests();
      REQUIRE(found.size() == expected.size());
      int different = 0;
      for (size_t i = 0; i < found.size(); ++i) different += found[i] != expected[i] ? 1 : 0;
      CHECK(different == 0);
    }
  }
}

TEST_CASE(
    "a changed byte on the device changes the digest of its tensor alone and others are not asked for") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  const WeightManifest manifest = mixed_manifest();
  std::vector<uint8_t> bytes(static_cast<size_t>(manifest.arena_bytes), 7);
  std::vector<bool> chosen(manifest.entries.size(), true);
  chosen[3] = false;
  const auto digest = must(weights::DeviceDigest::create(manifest, gpu->device(), {.chosen = chosen}));
  const auto digests_of = [&] {
    const Memory arena = gpu->upload(bytes);
    must(digest->begin(arena.as<std::byte>()));
    must(digest->end(gpu->stream()));
    must(digest->stream().synchronize());
    return digest->digests();
  };
  const std::vector<std::string> before = digests_of();
  CHECK(before[3].empty());
  CHECK(before[2].size() == 32);
  const size_t changed = manifest.entries.size() - 3;
  bytes[static_cast<size_t>(manifest.entries[changed].outer_offset) + 3] ^= 1;
  const std::vector<std::string> after = digests_of();
  for (size_t i = 0; i < before.size(); ++i) {
    CAPTURE(i);
    CHECK((before[i] != after[i]) == (i == changed));
  }
}
