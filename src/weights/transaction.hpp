#pragma once
// One weight update as a transaction. The first ranks of the group send, rank 0 leads; the others receive.
// All run the same rounds in step:
//
//   senders                                   receivers
//   offer: version, manifest, sizes,
//   owner of each tensor (rank 0)     ----->  is it the update that was asked for?
//                                     <-----  vote (the worst vote of all ranks decides, everywhere)
//   digests (rank 0), then the arena in
//   chunks, each from its owner       ----->  into the staging buffer; digest of every tensor
//                                     <-----  vote: again if a digest differs, up to max_attempts
//                                             copy staging -> arena
//                                     <-----  vote: again, everything, if the copy failed anywhere
//   done                                      the version becomes visible
//
// Up to the copy a receiver keeps its old version, whatever fails. During the copy it serves nothing; if the
// copy fails it serves nothing until a whole arena has arrived. A failed transport ends the call on that
// rank: the caller makes a new group and updates again.
#include <cstddef>
#include <cstdint>
#include <functional>
#include <optional>
#include <span>
#include <string>
#include <vector>

#include "base/flow.hpp"
#include "base/status.hpp"
#include "device/thread_pool.hpp"

namespace accord::weights {

enum class Vote : int32_t { kAccept = 0, kAgain = 1, kRefuse = 2 };

// How the ranks of one group talk. Both functions are collective and end by a deadline of their own.
struct UpdateChannel {
  int32_t rank = 0;
  // The bytes of rank `root` to everyone; there `data` is only read.
  std::function<Status(void* data, int64_t bytes, int32_t root)> broadcast;
  // The worst (largest) vote over all ranks, the same on all.
  std::function<StatusOr<Vote>(Vote vote)> agree;
  // Where arenas and staging lie on devices: the arena's chunks. It may return before their bytes have moved;
  // `content_done` waits for all of them. Null: `broadcast`, which is done when it returns.
  std::function<Status(void* data, int64_t bytes, int32_t root)> broadcast_content{};
  std::function<Status()> content_done{};
};

// How a receiver digests what arrives in its staging buffer, where that is not host memory.
class StagingDigest {
 public:
  virtual ~StagingDigest() = default;
  virtual Status begin(const std::byte* staging) = 0;
  // The first `count` bytes, in the order of chunks_from (spans.hpp), have come, or come before what the
  // channel does next.
  virtual Status arrived(int64_t count) = 0;
  // Of all tensors, manifest order.
  virtual StatusOr<std::vector<std::string>> digests() = 0;
};

struct UpdateOptions {
  uint64_t version = 0;
  int64_t chunk_bytes = int64_t{64} << 20;  // the same on all ranks
  int32_t max_attempts = 3;
};

struct UpdateReport {
  uint64_t version = 0;
  int64_t bytes = 0;  // sent or received, over all attempts
  int32_t attempts = 0;
};

// What the senders offer, the same on all of them; both in manifest order.
struct UpdateContent {
  std::span<const std::string> digests;
  std::span<const int32_t> owners;  // the rank that sends each tensor; empty: rank 0 sends all
  // With broadcast_content and several senders: scratch for a chunk, in memory of the arena's kind.
  std::span<std::byte> passing{};
};

// Called by every sending rank; `arena` holds the tensors that this rank owns. Errors: a refusal (kInternal),
// too many attempts (kUnavailable), senders that disagree on the content (kInternal), the channel's.
StatusOr<UpdateReport> send_update(const WeightManifest& manifest, const std::byte* arena,
                                   const UpdateContent& content, const UpdateOptions& options,
                                   const UpdateChannel& channel);

// Completes the senders' arenas among themselves: every tensor from the rank that owns it to the ranks that
// hold it (holds[i]: whether this one keeps tensor i; empty: all). Collective over the senders' own group,
// without digests: see verify_tensors. With broadcast_content every sender holds all tensors.
Status share_arena(const WeightManifest& manifest, std::span<const int32_t> owners,
                   const std::vector<bool>& holds, std::byte* arena, int64_t chunk_bytes,
                   const UpdateChannel& channel);

// Whether the arena's tensors (those that are held) have these digests. Errors: kInternal, naming the first
// tensor that differs.
Status verify_tensors(const WeightManifest& manifest, const std::byte* arena,
                      std::span<const std::string> digests, const std::vector<bool>& holds, ThreadPool& pool);
// The same of digests that were found elsewhere.
Status compare_digests(const WeightManifest& manifest, std::span<const std::string> found,
                       std::span<const std::string> digests, const std::vector<bool>& holds);

// The receiving end of one arena.
class UpdateReceiver {
 public:
  using Copy = std::function<Status(std::byte* to, const std::byte* from, int64_t bytes)>;

  // All must outlive the receiver. `copy` moves staging to arena (memcpy for host memory).
  UpdateReceiver(const WeightManifest& manifest, std::byte* arena, ThreadPool& pool, Copy copy = nullptr);

  // Takes part in one update. `staging` (at least arena_bytes) is scratch: its content is lost. It is host
  // memory, or what `digest` (may be null) and the channel's broadcast_content take. Errors: as above; a
  // staging buffer that is too small (kInternal, before anything is received).
  StatusOr<UpdateReport> receive(std::span<std::byte> staging, const UpdateOptions& options,
                                 const UpdateChannel& channel, StagingDigest* digest = nullptr);

  // The version whose bytes the arena holds; none before the first update and after a failed copy.
  std::optional<uint64_t> version() const { return version_; }

 private:
  StatusOr<Vote> receive_content(std::byte* staging, std::span<const int32_t> owners,
                                 const UpdateOptions& options, const UpdateChannel& channel,
                                 StagingDigest* digest);

  const WeightManifest& manifest_;
  std::byte* arena_;
  ThreadPool& pool_;
  Copy copy_;
  std::optional<uint64_t> version_;
  std::string problem_;  // what the last vote of this rank was about
};

}  // namespace accord::weights
