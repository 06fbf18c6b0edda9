#include "weights/transaction.hpp"

#include <algorithm>
#include <atomic>
#include <condition_variable>
#include <cstring>
#include <mutex>
#include <thread>

#include "base/hash.hpp"
#include "support/catch.hpp"
#include "weights/digest.hpp"
#include "weights/spans.hpp"

using namespace accord;
using namespace accord::weights;

namespace {

constexpr int kReceivers = 3;

WeightManifest small_manifest() {
  WeightManifest manifest;
  const auto add = [&](const char* name, int64_t data, int64_t scale, int64_t outer) {
    WeightEntry entry;
    entry.name = name;
    entry.data_offset = manifest.arena_bytes;
    entry.data_bytes = data;
    entry.scale_offset = entry.data_offset + (data + 255) / 256 * 256;
    entry.scale_bytes = scale;
    entry.outer_offset = entry.scale_offset + (scale + 255) / 256 * 256;
    entry.outer_bytes = outer;
    manifest.arena_bytes = entry.outer_offset + (outer + 255) / 256 * 256;
    manifest.entries.push_back(entry);
  };
  add("a", 1000, 0, 0);
  add("b", 2048, 64, 4);
  add("c", 10, 0, 0);
  manifest.digest = digest_hex("manifest");
  return manifest;
}

// Broadcasts and votes between one thread per rank, with faults put in by message number. A message is
// delivered when every rank has come to it. Senders are the first ranks.
class Bus {
 public:
  // Called on a receiver's copy of message `message`; a status other than OK is what its broadcast returns.
  using Fault = std::function<Status(int receiver, int message, std::byte* data, int64_t bytes)>;

  explicit Bus(Fault fault = nullptr, int senders = 1) : fault_(std::move(fault)), senders_(senders) {}

  UpdateChannel sender(int index = 0) { return channel(index); }
  UpdateChannel receiver(int index) { return channel(senders_ + index); }

  // One rank leaves: the others' calls fail from now on.
  void leave() {
    const std::lock_guard lock(mutex_);
    broken_ = true;
    changed_.notify_all();
  }

 private:
  UpdateChannel channel(int rank) {
    return {rank,
            [this, rank, message = 0](void* data, int64_t bytes, int32_t root) mutable {
              return broadcast(rank, message++, static_cast<std::byte*>(data), bytes, root);
            },
            [this](Vote vote) { return agree(vote); }};
  }

  Status broadcast(int rank, int message, std::byte* data, int64_t bytes, int32_t root) {
    if (rank == root) {
      const std::lock_guard lock(mutex_);
      message_.assign(data, data + bytes);
    }
    if (!meet()) {
      return unavailable_error("a rank is gone");
    }
    Status status;
    if (rank != root) {
      if (static_cast<int64_t>(message_.size()) != bytes) {
        status = internal_error("message {} has {} bytes, {} expected", message, message_.size(), bytes);
      } else {
        std::copy(message_.begin(), message_.end(), data);
        status =
            fault_ && rank >= senders_ ? fault_(rank - senders_, message, data, bytes) : absl::OkStatus();
      }
      if (!status.ok()) {
        leave();
        return status;
      }
    }
    return meet() ? status : unavailable_error("a rank is gone");
  }

  StatusOr<Vote> agree(Vote vote) {
    {
      const std::lock_guard lock(mutex_);
      worst_ = std::max(worst_, vote);
    }
    if (!meet()) {
      return unavailable_error("a rank is gone");
    }
    const Vote result = worst_;
    if (!meet()) {
      return unavailable_error("a rank is gone");
    }
    {
      const std::lock_guard lock(mutex_);
      worst_ = Vote::kAccept;
    }
    if (!meet()) {  // nobody votes again before everybody has reset
      return unavailable_error("a rank is gone");
    }
    return result;
  }

  bool meet() {
    std::unique_lock lock(mutex_);
    const int64_t round = round_;
    if (++arrived_ == kReceivers + senders_) {
      arrived_ = 0;
      ++round_;
      changed_.notify_all();
    }
    changed_.wait(lock, [&] { return round_ != round || broken_; });
    return round_ != round;  // a round that was complete counts, even if a rank has left since
  }

  std::mutex mutex_;
  std::condition_variable changed_;
  Fault fault_;
  const int senders_;
  std::vector<std::byte> message_;
  Vote worst_ = Vote::kAccept;
  int arrived_ = 0;
  int64_t round_ = 0;
  bool broken_ = false;
};

struct Outcome {
  StatusOr<UpdateReport> sender = absl::UnknownError("not run");
  std::vector<StatusOr<UpdateReport>> receivers;
};

struct Fixture {
  WeightManifest manifest = small_manifest();
  std::vector<std::byte> source;
  std::vector<std::vector<std::byte>> arenas;
  ThreadPool pool{1};
  std::vector<std::unique_ptr<UpdateReceiver>> receivers;
  std::vector<std::string> digests;

  explicit Fixture(const UpdateReceiver::Copy& copy_of_first = nullptr) {
    source.resize(static_cast<size_t>(manifest.arena_bytes));
    fill(1);
    for (int i = 0; i < kReceivers; ++i) {
      arenas.emplace_back(source.size());
    }
    for (int i = 0; i < kReceivers; ++i) {
      receivers.push_back(std::make_unique<UpdateReceiver>(manifest, arenas[static_cast<size_t>(i)].data(),
                                                           pool, i == 0 ? copy_of_first : nullptr));
    }
  }

  void fill(int seed) {
    for (size_t i = 0; i < source.size(); ++i) {
      source[i] = static_cast<std::byte>(i * 37 + i / 256 + static_cast<size_t>(seed));
    }
    digests = per_tensor_digests(manifest, source.data(), pool);
  }

  Outcome update(Bus& bus, uint64_t version, uint64_t expected_by_first,
                 const WeightManifest* sent = nullptr) {
    Outcome outcome;
    outcome.receivers.assign(kReceivers, absl::UnknownError("not run"));
    UpdateOptions options;
    options.version = version;
    options.chunk_bytes = 700;
    options.max_attempts = 3;
    std::vector<std::thread> threads;
    for (int i = 0; i < kReceivers; ++i) {
      threads.emplace_back([&, i] {
        UpdateOptions mine = options;
        mine.version = i == 0 ? expected_by_first : version;
        std::vector<std::byte> staging(source.size());
        outcome.receivers[static_cast<size_t>(i)] =
            receivers[static_cast<size_t>(i)]->receive(staging, mine, bus.receiver(i));
      });
    }
    outcome.sender =
        send_update(sent != nullptr ? *sent : manifest, source.data(), {digests, {}}, options, bus.sender());
    if (!outcome.sender.ok()) {
      bus.leave();
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return outcome;
  }

  Outcome update(Bus& bus, uint64_t version) { return update(bus, version, version); }

  bool holds(int receiver, uint64_t version) const {
    const auto index = static_cast<size_t>(receiver);
    return receivers[index]->version() == version && arenas[index] == source;
  }
};

// Messages of one attempt: the offer, the owners, the digests, then the chunks.
constexpr int kOffer = 0;
constexpr int kOwners = 1;
constexpr int kDigests = 2;
constexpr int kFirstChunk = 3;

bool mentions(const Status& status, const char* text) {
  return std::string(message_of(status)).find(text) != std::string::npos;
}

}  // namespace

TEST_CASE("an update arrives everywhere and becomes visible") {
  Fixture f;
  CHECK_FALSE(f.receivers[0]->version().has_value());
  for (uint64_t version = 0; version < 3; ++version) {
    f.fill(static_cast<int>(version));
    Bus bus;
    const Outcome outcome = f.update(bus, version);
    REQUIRE(outcome.sender.ok());
    CHECK(outcome.sender->attempts == 1);
    CHECK(outcome.sender->bytes == f.manifest.arena_bytes);
    for (int i = 0; i < kReceivers; ++i) {
      CHECK(outcome.receivers[static_cast<size_t>(i)].ok());
      CHECK(f.holds(i, version));
    }
  }
}

TEST_CASE("damage on the way is found, and everything is sent again") {
  for (const int damaged : {kOffer, kOwners, kDigests, kFirstChunk, kFirstChunk + 3}) {
    CAPTURE(damaged);
    Fixture f;
    Bus bus([&](int receiver, int message, std::byte* data, int64_t) {
      if (receiver == 1 && message == damaged) {
        data[3] ^= std::byte{0x10};
      }
      return absl::OkStatus();
    });
    const Outcome outcome = f.update(bus, 4);
    REQUIRE(outcome.sender.ok());
    CHECK(outcome.sender->attempts == 2);
    for (int i = 0; i < kReceivers; ++i) {
      REQUIRE(outcome.receivers[static_cast<size_t>(i)].ok());
      CHECK(f.holds(i, 4));
    }
  }
}

TEST_CASE("damage in every attempt keeps the old version everywhere and names the tensor") {
  Fixture f;
  Bus good;
  REQUIRE(f.update(good, 1).sender.ok());
  const std::vector<std::byte> old = f.source;
  f.fill(9);
  Bus bus([&](int receiver, int, std::byte* data, int64_t bytes) {
    if (receiver == 2 && bytes == 700) {
      data[600] ^= std::byte{1};
    }
    return absl::OkStatus();
  });
  const Outcome outcome = f.update(bus, 2);
  CHECK(exit_code(outcome.sender.status()) == ExitCode::kUnavailable);
  CHECK(mentions(outcome.receivers[2].status(), "a arrived as "));
  CHECK(mentions(outcome.receivers[2].status(), "in 3 attempts"));
  for (int i = 0; i < kReceivers; ++i) {
    const auto index = static_cast<size_t>(i);
    CHECK_FALSE(outcome.receivers[index].ok());
    CHECK(f.receivers[index]->version() == 1U);
    CHECK(f.arenas[index] == old);
  }
}

TEST_CASE("a lost chunk ends the update everywhere and keeps the old version") {
  Fixture f;
  Bus good;
  REQUIRE(f.update(good, 1).sender.ok());
  const std::vector<std::byte> old = f.source;
  f.fill(9);
  Bus bus([&](int receiver, int message, std::byte*, int64_t) {
    return receiver == 0 && message == kFirstChunk + 2 ? unavailable_error("connection reset")
                                                       : absl::OkStatus();
  });
  const Outcome outcome = f.update(bus, 2);
  CHECK_FALSE(outcome.sender.ok());
  CHECK(mentions(outcome.receivers[0].status(), "weight bytes 2424 to 3124"));
  for (int i = 0; i < kReceivers; ++i) {
    const auto index = static_cast<size_t>(i);
    CHECK_FALSE(outcome.receivers[index].ok());
    CHECK(f.receivers[index]->version() == 1U);
    CHECK(f.arenas[index] == old);
  }
  Bus again;
  REQUIRE(f.update(again, 2).sender.ok());
  CHECK(f.holds(0, 2));
}

TEST_CASE("another version than the one asked for is refused before any weight is sent") {
  Fixture f;
  std::atomic<int> num_chunks{0};
  Bus bus([&](int, int message, std::byte*, int64_t) {
    num_chunks += message >= kFirstChunk ? 1 : 0;
    return absl::OkStatus();
  });
  const Outcome outcome = f.update(bus, 5, 6);
  CHECK(exit_code(outcome.sender.status()) == ExitCode::kInternal);
  CHECK(mentions(outcome.receivers[0].status(), "version 5 is offered, version 6 was asked for"));
  for (int i = 0; i < kReceivers; ++i) {
    CHECK_FALSE(outcome.receivers[static_cast<size_t>(i)].ok());
    CHECK_FALSE(f.receivers[static_cast<size_t>(i)]->version().has_value());
  }
  CHECK(num_chunks == 0);
}

TEST_CASE("another manifest is refused with both digests") {
  Fixture f;
  WeightManifest other = f.manifest;
  other.digest = digest_hex("another plan");
  Bus bus;
  const Outcome outcome = f.update(bus, 1, 1, &other);
  CHECK_FALSE(outcome.sender.ok());
  CHECK(mentions(outcome.receivers[0].status(), other.digest.c_str()));
  CHECK(mentions(outcome.receivers[0].status(), f.manifest.digest.c_str()));
  CHECK_FALSE(f.receivers[0]->version().has_value());
}

TEST_CASE("a copy that fails once is made good by the whole arena again") {
  int copies = 0;
  Fixture f([&](std::byte* to, const std::byte* from, int64_t bytes) -> Status {
    if (++copies == 2) {
      std::memcpy(to, from, static_cast<size_t>(bytes / 2));  // half is new, half is old
      return unavailable_error("device error");
    }
    std::memcpy(to, from, static_cast<size_t>(bytes));
    return absl::OkStatus();
  });
  Bus first;
  REQUIRE(f.update(first, 1).sender.ok());
  f.fill(3);
  Bus second;
  const Outcome outcome = f.update(second, 2);
  REQUIRE(outcome.sender.ok());
  CHECK(outcome.sender->attempts == 2);
  CHECK(copies == 3);
  for (int i = 0; i < kReceivers; ++i) {
    CHECK(f.holds(i, 2));
  }
}

TEST_CASE("a copy that keeps failing leaves that receiver without a version") {
  Fixture f([](std::byte*, const std::byte*, int64_t) { return unavailable_error("device error"); });
  Bus bus;
  const Outcome outcome = f.update(bus, 1);
  CHECK_FALSE(outcome.sender.ok());
  CHECK_FALSE(f.receivers[0]->version().has_value());
  CHECK(mentions(outcome.receivers[0].status(), "device error"));
  CHECK(f.holds(1, 1));  // these bytes are whole
}

TEST_CASE("a staging buffer that is too small is an error with both sizes") {
  Fixture f;
  Bus bus;
  std::vector<std::byte> staging(10);
  const Status status = f.receivers[0]->receive(staging, {}, bus.receiver(0)).status();
  CHECK(mentions(status, "has 10 bytes"));
}

namespace {

// Two senders, each with garbage where the other's tensors lie.
struct TwoSenders {
  Fixture f;
  std::vector<int32_t> owners{1, 0, 1};
  std::vector<std::vector<std::byte>> arenas;

  TwoSenders() {
    for (int32_t rank = 0; rank < 2; ++rank) {
      arenas.push_back(f.source);
      for (size_t i = 0; i < owners.size(); ++i) {
        const ArenaSpan span = tensor_span(f.manifest, i);
        if (owners[i] != rank) {
          std::fill(arenas.back().begin() + span.begin, arenas.back().begin() + span.end, std::byte{0xEE});
        }
      }
    }
  }

  std::vector<StatusOr<UpdateReport>> send(Bus& bus, const UpdateContent& of_second) {
    UpdateOptions options;
    options.version = 1;
    options.chunk_bytes = 700;
    std::vector<StatusOr<UpdateReport>> results(2 + kReceivers, absl::UnknownError("not run"));
    std::vector<std::thread> threads;
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto index = static_cast<size_t>(rank);
        results[index] =
            send_update(f.manifest, arenas[index].data(),
                        rank == 0 ? UpdateContent{f.digests, owners} : of_second, options, bus.sender(rank));
        if (!results[index].ok()) {
          bus.leave();
        }
      });
    }
    for (int i = 0; i < kReceivers; ++i) {
      threads.emplace_back([&, i] {
        std::vector<std::byte> staging(f.source.size());
        results[static_cast<size_t>(2 + i)] =
            f.receivers[static_cast<size_t>(i)]->receive(staging, options, bus.receiver(i));
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    return results;
  }
};

}  // namespace

TEST_CASE("every tensor comes from the rank that owns it") {
  TwoSenders t;
  Bus bus(nullptr, 2);
  for (const auto& result : t.send(bus, {t.f.digests, t.owners})) {
    REQUIRE(result.ok());
    CHECK(result->attempts == 1);
  }
  for (int i = 0; i < kReceivers; ++i) {
    CHECK(t.f.holds(i, 1));
  }
}

TEST_CASE("damage of one owner's bytes is repaired by all owners sending again") {
  TwoSenders t;
  Bus bus(
      [](int receiver, int message, std::byte* data, int64_t) {
        if (receiver == 2 && message == kFirstChunk) {
          data[0] ^= std::byte{1};
        }
        return absl::OkStatus();
      },
      2);
  for (const auto& result : t.send(bus, {t.f.digests, t.owners})) {
    REQUIRE(result.ok());
    CHECK(result->attempts == 2);
  }
  CHECK(t.f.holds(2, 1));
}

TEST_CASE("senders that disagree on owners or digests change nothing anywhere") {
  TwoSenders t;
  const std::vector<int32_t> other_owners{1, 1, 1};
  std::vector<std::string> other_digests = t.f.digests;
  other_digests[0] = digest_hex("another tensor");
  for (const UpdateContent& content :
       {UpdateContent{t.f.digests, other_owners}, UpdateContent{other_digests, t.owners}}) {
    Bus bus(nullptr, 2);
    const auto results = t.send(bus, content);
    CHECK(mentions(results[1].status(), "senders 0 and 1 disagree"));
    for (size_t i = 0; i < results.size(); ++i) {
      CHECK_FALSE(results[i].ok());
    }
    CHECK_FALSE(t.f.receivers[0]->version().has_value());
  }
}

TEST_CASE("senders complete their arenas from the owners and keep what they hold") {
  for (const bool partial : {false, true}) {
    CAPTURE(partial);
    TwoSenders t;
    Fixture& f = t.f;
    Bus bus(nullptr, 2 - kReceivers);
    std::vector<Status> results(2);
    std::vector<std::thread> threads;
    // The second rank does not keep tensor b.
    const std::vector<bool> second_holds =
        partial ? std::vector<bool>{true, false, true} : std::vector<bool>{};
    for (int rank = 0; rank < 2; ++rank) {
      threads.emplace_back([&, rank] {
        const auto index = static_cast<size_t>(rank);
        UpdateChannel channel = bus.sender(rank);
        results[index] = share_arena(f.manifest, t.owners, rank == 1 ? second_holds : std::vector<bool>{},
                                     t.arenas[index].data(), 700, channel);
      });
    }
    for (std::thread& thread : threads) {
      thread.join();
    }
    CHECK(results[0].ok());
    CHECK(results[1].ok());
    CHECK(t.arenas[0] == f.source);
    CHECK(verify_tensors(f.manifest, t.arenas[0].data(), f.digests, {}, f.pool).ok());
    CHECK((t.arenas[1] == f.source) == !partial);
    CHECK(verify_tensors(f.manifest, t.arenas[1].data(), f.digests, second_holds, f.pool).ok());
    const Status all = verify_tensors(f.manifest, t.arenas[1].data(), f.digests, {}, f.pool);
    CHECK(all.ok() == !partial);
    if (partial) {
      CHECK(mentions(all, "b has digest"));
    }
  }
}

TEST_CASE(
    "content that goes its own way needs a digest there and a place to pass through and is waited for") {
  const WeightManifest manifest = small_manifest();
  std::vector<std::byte> arena(static_cast<size_t>(manifest.arena_bytes), std::byte{3});
  ThreadPool pool(1);
  const std::vector<std::string> digests = per_tensor_digests(manifest, arena.data(), pool);
  UpdateChannel channel;
  channel.rank = 0;
  int chunks = 0;
  int waits = 0;
  channel.broadcast = [](void*, int64_t, int32_t) { return absl::OkStatus(); };
  channel.agree = [](Vote vote) { return vote; };
  channel.broadcast_content = [&](void*, int64_t, int32_t) {
    ++chunks;
    return absl::OkStatus();
  };
  channel.content_done = [&]() -> Status {
    ++waits;
    return unavailable_error("the transfer broke");
  };
  UpdateOptions options;
  options.version = 1;
  // Errors of the wait are the update's.
  const auto sent = send_update(manifest, arena.data(), {digests, {}, {}}, options, channel);
  CHECK(message_of(sent.status()) == "the transfer broke");
  CHECK(chunks == 2);  // from b on, then a
  CHECK(waits == 1);
  const std::vector<int32_t> two = {0, 1, 0};
  CHECK(exit_code(send_update(manifest, arena.data(), {digests, two, {}}, options, channel).status()) ==
        ExitCode::kInternal);
  CHECK(exit_code(share_arena(manifest, two, {true, false, true}, arena.data(), options.chunk_bytes,
                              channel)) == ExitCode::kInternal);
  UpdateReceiver receiver(manifest, arena.data(), pool);
  std::vector<std::byte> staging(arena.size());
  CHECK(exit_code(receiver.receive(staging, options, channel).status()) == ExitCode::kInternal);
  CHECK(chunks == 2);
}
