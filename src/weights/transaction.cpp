#include "weights/transaction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "weights/digest.hpp"
#include "weights/spans.hpp"

namespace accord::weights {
namespace {

constexpr size_t kDigestDigits = 32;
constexpr int32_t kLeader = 0;
constexpr uint64_t kMagic = 0x3154445055434341;  // "ACCUPDT1"

using Owners = std::vector<int32_t>;  // per tensor

std::string owners_digest(const Owners& owners) {
  return digest_hex(owners.data(), owners.size() * sizeof(int32_t));
}

// The first message of an attempt. All ranks of a group have the same byte order.
struct Offer {
  uint64_t magic = kMagic;
  uint64_t version = 0;
  int64_t arena_bytes = 0;
  int64_t num_tensors = 0;
  int64_t chunk_bytes = 0;
  char manifest_digest[kDigestDigits] = {};
  char owners_digest[kDigestDigits] = {};  // of the message that follows
  char checksum[kDigestDigits] = {};       // of all before it
};
static_assert(std::is_trivially_copyable_v<Offer> && sizeof(Offer) == 5 * 8 + 3 * kDigestDigits);

std::string checksum_of(const Offer& offer) { return digest_hex(&offer, offsetof(Offer, checksum)); }

std::string text_of(const char (&digits)[kDigestDigits]) { return {digits, kDigestDigits}; }

Status check_digest(std::string_view digest, std::string_view what) {
  if (digest.size() != kDigestDigits) {
    return internal_error("{} is '{}', not {} hex digits", what, digest, kDigestDigits);
  }
  return absl::OkStatus();
}

// `owners`: the sender's; a receiver learns them.
StatusOr<Offer> make_offer(const WeightManifest& manifest, const UpdateOptions& options,
                           const Owners* owners) {
  ACCORD_RETURN_IF_ERROR(check_digest(manifest.digest, "the manifest's digest"));
  Offer offer;
  offer.version = options.version;
  offer.arena_bytes = manifest.arena_bytes;
  offer.num_tensors = static_cast<int64_t>(manifest.entries.size());
  offer.chunk_bytes = options.chunk_bytes;
  std::memcpy(offer.manifest_digest, manifest.digest.data(), kDigestDigits);
  if (owners != nullptr) {
    std::memcpy(offer.owners_digest, owners_digest(*owners).data(), kDigestDigits);
  }
  std::memcpy(offer.checksum, checksum_of(offer).data(), kDigestDigits);
  return offer;
}

// Why `offer` is not the one that is expected; empty: it is.
std::string difference(const Offer& offer, const Offer& expected) {
  if (offer.version != expected.version) {
    return fmt::format("version {} is offered, version {} was asked for", offer.version, expected.version);
  }
  if (text_of(offer.manifest_digest) != text_of(expected.manifest_digest)) {
    return fmt::format(
        "the sender's manifest is {}, this worker's {}: their precision plans or models differ",
        text_of(offer.manifest_digest), text_of(expected.manifest_digest));
  }
  if (offer.arena_bytes != expected.arena_bytes || offer.num_tensors != expected.num_tensors) {
    return fmt::format("{} tensors in {} bytes are offered, {} in {} expected", offer.num_tensors,
                       offer.arena_bytes, expected.num_tensors, expected.arena_bytes);
  }
  if (offer.chunk_bytes != expected.chunk_bytes) {
    return fmt::format("the sender's chunks have {} bytes, this worker's {}", offer.chunk_bytes,
                       expected.chunk_bytes);
  }
  return "";
}

// Every byte of the arena from the rank that owns it, in chunks. `place` says where a chunk goes to, or comes
// from on its owner.
// After each chunk `arrived` (may be empty) learns how many bytes, from first_sent() on, are there.
Status transfer(const WeightManifest& manifest, std::span<const int32_t> owners, int64_t chunk_bytes,
                const UpdateChannel& channel, const std::function<std::byte*(const ArenaSpan&)>& place,
                const std::function<Status(int64_t count)>& arrived) {
  const auto& broadcast = channel.broadcast_content ? channel.broadcast_content : channel.broadcast;
  int64_t count = 0;
  for (const ArenaSpan& chunk :
       chunks_from(first_sent(manifest), arena_spans(manifest, owners), chunk_bytes)) {
    const Status status = broadcast(place(chunk), chunk.end - chunk.begin, chunk.owner);
    if (!status.ok()) {
      return annotate(status, fmt::format("weight bytes {} to {} of {} from sender {}", chunk.begin,
                                          chunk.end, manifest.arena_bytes, chunk.owner));
    }
    if (arrived) {
      count += chunk.end - chunk.begin;
      ACCORD_RETURN_IF_ERROR(arrived(count));
    }
  }
  return channel.content_done ? channel.content_done() : absl::OkStatus();
}

Status broadcast_owners(Owners& owners, const UpdateChannel& channel) {
  return channel.broadcast(owners.data(), static_cast<int64_t>(owners.size() * sizeof(int32_t)), kLeader);
}

std::string_view digest_in(const std::string& table, size_t tensor) {
  return std::string_view(table).substr(tensor * kDigestDigits, kDigestDigits);
}

Status broadcast_digests(std::string& table, const UpdateChannel& channel) {
  return channel.broadcast(table.data(), static_cast<int64_t>(table.size()), kLeader);
}

Status check(const UpdateOptions& options) {
  if (options.chunk_bytes < 1 || options.max_attempts < 1) {
    return internal_error("a weight update in chunks of {} bytes and {} attempts", options.chunk_bytes,
                          options.max_attempts);
  }
  return absl::OkStatus();
}

Status refused(const UpdateOptions& options, const std::string& problem) {
  return internal_error("weight version {} was refused: {}", options.version,
                        problem.empty() ? "see the log of the worker that refused it" : problem);
}

Status given_up(const UpdateOptions& options, const std::string& problem) {
  return unavailable_error("weight version {} did not arrive intact in {} attempts: {}", options.version,
                           options.max_attempts,
                           problem.empty() ? "see the logs of the receiving workers" : problem);
}

}  // namespace

StatusOr<UpdateReport> send_update(const WeightManifest& manifest, const std::byte* arena,
                                   const UpdateContent& content, const UpdateOptions& options,
                                   const UpdateChannel& channel) {
  ACCORD_RETURN_IF_ERROR(check(options));
  const size_t count = manifest.entries.size();
  if (content.digests.size() != count || (!content.owners.empty() && content.owners.size() != count)) {
    return internal_error("{} digests and {} owners for {} tensors", content.digests.size(),
                          content.owners.size(), count);
  }
  std::string table;
  for (size_t i = 0; i < count; ++i) {
    ACCORD_RETURN_IF_ERROR(check_digest(content.digests[i], "the digest of " + manifest.entries[i].name));
    table += content.digests[i];
  }
  const Owners owners =
      content.owners.empty() ? Owners(count, kLeader) : Owners(content.owners.begin(), content.owners.end());
  ACCORD_ASSIGN_OR_RETURN(const Offer mine, make_offer(manifest, options, &owners));
  const bool alone = std::all_of(owners.begin(), owners.end(), [&](int32_t r) { return r == channel.rank; });
  if (channel.broadcast_content && !alone &&
      static_cast<int64_t>(content.passing.size()) < options.chunk_bytes) {
    return internal_error("{} bytes to pass chunks of {} through", content.passing.size(),
                          options.chunk_bytes);
  }
  std::vector<std::byte> passing;  // what other senders send to the receivers
  const auto place = [&](const ArenaSpan& chunk) {
    if (chunk.owner == channel.rank) {
      return const_cast<std::byte*>(arena) + chunk.begin;  // the channel only reads on this side
    }
    if (channel.broadcast_content) {
      return content.passing.data();
    }
    passing.resize(std::max(passing.size(), static_cast<size_t>(chunk.end - chunk.begin)));
    return passing.data();
  };
  UpdateReport report{options.version, 0, 0};
  while (report.attempts < options.max_attempts) {
    ++report.attempts;
    Offer offer = mine;
    Owners leaders = owners;
    std::string digests = table;
    ACCORD_RETURN_IF_ERROR(channel.broadcast(&offer, sizeof(offer), kLeader));
    ACCORD_RETURN_IF_ERROR(broadcast_owners(leaders, channel));
    std::string problem = difference(offer, mine);
    if (problem.empty() && leaders != owners) {
      problem = fmt::format("senders 0 and {} disagree on who owns the tensors", channel.rank);
    }
    ACCORD_ASSIGN_OR_RETURN(Vote vote, channel.agree(problem.empty() ? Vote::kAccept : Vote::kRefuse));
    if (vote == Vote::kAccept) {
      ACCORD_RETURN_IF_ERROR(broadcast_digests(digests, channel));
      ACCORD_RETURN_IF_ERROR(transfer(manifest, owners, options.chunk_bytes, channel, place, nullptr));
      report.bytes += manifest.arena_bytes;
      if (digests != table) {
        problem = fmt::format("senders 0 and {} disagree on the tensors' digests", channel.rank);
      }
      ACCORD_ASSIGN_OR_RETURN(vote, channel.agree(problem.empty() ? Vote::kAccept : Vote::kRefuse));
    }
    if (vote == Vote::kAccept) {
      ACCORD_ASSIGN_OR_RETURN(vote, channel.agree(Vote::kAccept));  // the copies
    }
    if (vote == Vote::kAccept) {
      return report;
    }
    if (vote == Vote::kRefuse) {
      return refused(options, problem);
    }
    log::warn("weight version {}: a receiver asks for it again (attempt {} of {})", options.version,
              report.attempts, options.max_attempts);
  }
  return given_up(options, "");
}

Status share_arena(const WeightManifest& manifest, std::span<const int32_t> owners,
                   const std::vector<bool>& holds, std::byte* arena, int64_t chunk_bytes,
                   const UpdateChannel& channel) {
  // Chunks are the same on every rank, whatever it keeps of them.
  const bool on_devices = channel.broadcast_content != nullptr;
  if (on_devices && !holds.empty()) {
    return internal_error("a device's arena without all tensors cannot be completed");
  }
  const auto& broadcast = on_devices ? channel.broadcast_content : channel.broadcast;
  std::vector<std::byte> passing;
  for (const ArenaSpan& chunk : chunks_of(arena_spans(manifest, owners), chunk_bytes)) {
    const bool direct = holds.empty() || chunk.owner == channel.rank;
    if (!direct) {
      passing.resize(static_cast<size_t>(std::min(chunk_bytes, manifest.arena_bytes)));
    }
    ACCORD_RETURN_IF_ERROR(annotate(
        broadcast(direct ? arena + chunk.begin : passing.data(), chunk.end - chunk.begin, chunk.owner),
        fmt::format("weight bytes of trainer rank {}", chunk.owner)));
    for (size_t i = 0; !direct && i < manifest.entries.size(); ++i) {
      const ArenaSpan tensor = tensor_span(manifest, i);
      const int64_t begin = std::max(tensor.begin, chunk.begin);
      const int64_t end = std::min(tensor.end, chunk.end);
      if (holds[i] && begin < end) {
        std::memcpy(arena + begin, passing.data() + (begin - chunk.begin), static_cast<size_t>(end - begin));
      }
    }
  }
  return channel.content_done ? channel.content_done() : absl::OkStatus();
}

Status verify_tensors(const WeightManifest& manifest, const std::byte* arena,
                      std::span<const std::string> digests, const std::vector<bool>& holds,
                      ThreadPool& pool) {
  return compare_digests(manifest, per_tensor_digests(manifest, arena, pool), digests, holds);
}

Status compare_digests(const WeightManifest& manifest, std::span<const std::string> found,
                       std::span<const std::string> digests, const std::vector<bool>& holds) {
  for (size_t i = 0; i < found.size(); ++i) {
    if ((holds.empty() || holds[i]) && found[i] != digests[i]) {
      return internal_error("{} has digest {} here and {} where it was made", manifest.entries[i].name,
                            found[i], digests[i]);
    }
  }
  return absl::OkStatus();
}

UpdateReceiver::UpdateReceiver(const WeightManifest& manifest, std::byte* arena, ThreadPool& pool, Copy copy)
    : manifest_(manifest), arena_(arena), pool_(pool), copy_(std::move(copy)) {
  if (!copy_) {
    copy_ = [](std::byte* to, const std::byte* from, int64_t bytes) {
      std::memcpy(to, from, static_cast<size_t>(bytes));
      return absl::OkStatus();
    };
  }
}

StatusOr<Vote> UpdateReceiver::receive_content(std::byte* staging, std::span<const int32_t> owners,
                                               const UpdateOptions& options, const UpdateChannel& channel,
                                               StagingDigest* digest) {
  std::string table(manifest_.entries.size() * kDigestDigits, '\0');
  ACCORD_RETURN_IF_ERROR(broadcast_digests(table, channel));
  std::function<Status(int64_t)> arrived;
  if (digest != nullptr) {
    ACCORD_RETURN_IF_ERROR(digest->begin(staging));
    arrived = [digest](int64_t count) { return digest->arrived(count); };
  }
  ACCORD_RETURN_IF_ERROR(transfer(
      manifest_, owners, options.chunk_bytes, channel,
      [staging](const ArenaSpan& chunk) { return staging + chunk.begin; }, arrived));
  std::vector<std::string> digests;
  if (digest != nullptr) {
    ACCORD_ASSIGN_OR_RETURN(digests, digest->digests());
  } else {
    digests = per_tensor_digests(manifest_, staging, pool_);
  }
  int64_t num_different = 0;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (digest_in(table, i) != digests[i]) {
      if (num_different++ == 0) {
        problem_ = fmt::format("{} arrived as {}, not {}", manifest_.entries[i].name, digests[i],
                               digest_in(table, i));
      }
    }
  }
  if (num_different == 0) {
    return Vote::kAccept;
  }
  problem_ += fmt::format(" ({} tensors differ)", num_different);
  return Vote::kAgain;
}

StatusOr<UpdateReport> UpdateReceiver::receive(std::span<std::byte> staging, const UpdateOptions& options,
                                               const UpdateChannel& channel, StagingDigest* digest) {
  ACCORD_RETURN_IF_ERROR(check(options));
  if (channel.broadcast_content && digest == nullptr) {
    return internal_error("weights that arrive in device memory need a digest there");
  }
  ACCORD_ASSIGN_OR_RETURN(const Offer expected, make_offer(manifest_, options, nullptr));
  if (static_cast<int64_t>(staging.size()) < manifest_.arena_bytes) {
    return internal_error("the receive buffer has {} bytes, the weights {}", staging.size(),
                          manifest_.arena_bytes);
  }
  UpdateReport report{options.version, 0, 0};
  problem_.clear();
  while (report.attempts < options.max_attempts) {
    ++report.attempts;
    Offer offer;
    Owners owners(manifest_.entries.size());
    ACCORD_RETURN_IF_ERROR(channel.broadcast(&offer, sizeof(offer), kLeader));
    ACCORD_RETURN_IF_ERROR(broadcast_owners(owners, channel));
    Vote mine = Vote::kAccept;
    if (offer.magic != kMagic || text_of(offer.checksum) != checksum_of(offer) ||
        text_of(offer.owners_digest) != owners_digest(owners)) {
      problem_ = "the offer arrived damaged";
      mine = Vote::kAgain;
    } else if (std::string why = difference(offer, expected); !why.empty()) {
      problem_ = std::move(why);
      mine = Vote::kRefuse;
    }
    ACCORD_ASSIGN_OR_RETURN(Vote vote, channel.agree(mine));
    if (vote == Vote::kAccept) {
      ACCORD_ASSIGN_OR_RETURN(mine, receive_content(staging.data(), owners, options, channel, digest));
      report.bytes += manifest_.arena_bytes;
      ACCORD_ASSIGN_OR_RETURN(vote, channel.agree(mine));
    }
    if (vote == Vote::kAccept) {
      version_.reset();
      const Status copied = copy_(arena_, staging.data(), manifest_.arena_bytes);
      if (!copied.ok()) {
        problem_ = fmt::format("copying into the arena failed: {}", message_of(copied));
        mine = Vote::kAgain;
      } else {
        version_ = options.version;
      }
      ACCORD_ASSIGN_OR_RETURN(vote, channel.agree(mine));
    }
    if (vote == Vote::kAccept) {
      return report;
    }
    if (mine != Vote::kAccept) {
      log::warn("weight version {}: {} (attempt {} of {})", options.version, problem_, report.attempts,
                options.max_attempts);
    }
    if (vote == Vote::kRefuse) {
      return refused(options, problem_);
    }
  }
  return given_up(options, problem_);
}

}  // namespace accord::weights
