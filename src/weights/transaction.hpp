#pragma once
// One weight update as a transaction. All ranks of a group run the same rounds in step:
//
//   sender                                    receiver
//   offer: version, manifest, sizes   ----->  is it the update that was asked for?
//                                     <-----  vote (the worst vote of all ranks decides, everywhere)
//   digests, then the arena in chunks ----->  into the staging buffer; digest of every tensor
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
  // The sender's bytes to everyone; on the sender `data` is only read.
  std::function<Status(void* data, int64_t bytes)> broadcast;
  // The worst (largest) vote over all ranks, the same on all.
  std::function<StatusOr<Vote>(Vote vote)> agree;
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

// `digests`: of the arena's tensors, in manifest order. Errors: a refusal (kInternal), too many attempts
// (kUnavailable), the channel's.
StatusOr<UpdateReport> send_update(const WeightManifest& manifest, const std::byte* arena,
                                   std::span<const std::string> digests, const UpdateOptions& options,
                                   const UpdateChannel& channel);

// The receiving end of one arena.
class UpdateReceiver {
 public:
  using Copy = std::function<Status(std::byte* to, const std::byte* from, int64_t bytes)>;

  // All must outlive the receiver. `copy` moves staging to arena (memcpy for host memory).
  UpdateReceiver(const WeightManifest& manifest, std::byte* arena, ThreadPool& pool, Copy copy = nullptr);

  // Takes part in one update. `staging` (at least arena_bytes) is scratch: its content is lost. Errors: as
  // above; a staging buffer that is too small (kInternal, before anything is received).
  StatusOr<UpdateReport> receive(std::span<std::byte> staging, const UpdateOptions& options,
                                 const UpdateChannel& channel);

  // The version whose bytes the arena holds; none before the first update and after a failed copy.
  std::optional<uint64_t> version() const { return version_; }

 private:
  StatusOr<Vote> receive_content(std::byte* staging, const UpdateOptions& options,
                                 const UpdateChannel& channel);

  const WeightManifest& manifest_;
  std::byte* arena_;
  ThreadPool& pool_;
  Copy copy_;
  std::optional<uint64_t> version_;
  std::string problem_;  // what the last vote of this rank was about
};

}  // namespace accord::weights
