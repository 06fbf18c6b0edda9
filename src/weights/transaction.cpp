#include "weights/transaction.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <cstring>
#include <type_traits>
#include <utility>

#include "base/hash.hpp"
#include "base/log.hpp"
#include "weights/digest.hpp"

namespace accord::weights {
namespace {

constexpr size_t kDigestDigits = 32;
constexpr uint64_t kMagic = 0x3154445055434341;  // "ACCUPDT1"

// The first message of an attempt. All ranks of a group have the same byte order.
struct Offer {
  uint64_t magic = kMagic;
  uint64_t version = 0;
  int64_t arena_bytes = 0;
  int64_t num_tensors = 0;
  int64_t chunk_bytes = 0;
  char manifest_digest[kDigestDigits] = {};
  char checksum[kDigestDigits] = {};  // of all before it
};
static_assert(std::is_trivially_copyable_v<Offer> && sizeof(Offer) == 5 * 8 + 2 * kDigestDigits);

std::string checksum_of(const Offer& offer) { return digest_hex(&offer, offsetof(Offer, checksum)); }

std::string text_of(const char (&digits)[kDigestDigits]) { return {digits, kDigestDigits}; }

Status check_digest(std::string_view digest, std::string_view what) {
  if (digest.size() != kDigestDigits) {
    return internal_error("{} is '{}', not {} hex digits", what, digest, kDigestDigits);
  }
  return absl::OkStatus();
}

StatusOr<Offer> make_offer(const WeightManifest& manifest, const UpdateOptions& options) {
  ACCORD_RETURN_IF_ERROR(check_digest(manifest.digest, "the manifest's digest"));
  Offer offer;
  offer.version = options.version;
  offer.arena_bytes = manifest.arena_bytes;
  offer.num_tensors = static_cast<int64_t>(manifest.entries.size());
  offer.chunk_bytes = options.chunk_bytes;
  std::memcpy(offer.manifest_digest, manifest.digest.data(), kDigestDigits);
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

Status transfer(std::byte* data, int64_t bytes, int64_t chunk_bytes, const UpdateChannel& channel) {
  for (int64_t begin = 0; begin < bytes; begin += chunk_bytes) {
    const int64_t length = std::min(chunk_bytes, bytes - begin);
    const Status status = channel.broadcast(data + begin, length);
    if (!status.ok()) {
      return annotate(status, fmt::format("weight bytes {} to {} of {}", begin, begin + length, bytes));
    }
  }
  return absl::OkStatus();
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
                                   std::span<const std::string> digests, const UpdateOptions& options,
                                   const UpdateChannel& channel) {
  ACCORD_RETURN_IF_ERROR(check(options));
  ACCORD_ASSIGN_OR_RETURN(Offer offer, make_offer(manifest, options));
  if (digests.size() != manifest.entries.size()) {
    return internal_error("{} digests for {} tensors", digests.size(), manifest.entries.size());
  }
  std::string table;
  for (size_t i = 0; i < digests.size(); ++i) {
    ACCORD_RETURN_IF_ERROR(check_digest(digests[i], "the digest of " + manifest.entries[i].name));
    table += digests[i];
  }
  // The channel only reads on this side.
  auto* content = const_cast<std::byte*>(arena);
  UpdateReport report{options.version, 0, 0};
  while (report.attempts < options.max_attempts) {
    ++report.attempts;
    ACCORD_RETURN_IF_ERROR(channel.broadcast(&offer, sizeof(offer)));
    ACCORD_ASSIGN_OR_RETURN(Vote vote, channel.agree(Vote::kAccept));
    if (vote == Vote::kAccept) {
      ACCORD_RETURN_IF_ERROR(channel.broadcast(table.data(), static_cast<int64_t>(table.size())));
      ACCORD_RETURN_IF_ERROR(transfer(content, manifest.arena_bytes, options.chunk_bytes, channel));
      report.bytes += manifest.arena_bytes;
      ACCORD_ASSIGN_OR_RETURN(vote, channel.agree(Vote::kAccept));
    }
    if (vote == Vote::kAccept) {
      ACCORD_ASSIGN_OR_RETURN(vote, channel.agree(Vote::kAccept));  // the copies
    }
    if (vote == Vote::kAccept) {
      return report;
    }
    if (vote == Vote::kRefuse) {
      return refused(options, "");
    }
    log::warn("weight version {}: a receiver asks for it again (attempt {} of {})", options.version,
              report.attempts, options.max_attempts);
  }
  return given_up(options, "");
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

StatusOr<Vote> UpdateReceiver::receive_content(std::byte* staging, const UpdateOptions& options,
                                               const UpdateChannel& channel) {
  std::string table(manifest_.entries.size() * kDigestDigits, '\0');
  ACCORD_RETURN_IF_ERROR(channel.broadcast(table.data(), static_cast<int64_t>(table.size())));
  ACCORD_RETURN_IF_ERROR(transfer(staging, manifest_.arena_bytes, options.chunk_bytes, channel));
  const std::vector<std::string> digests = per_tensor_digests(manifest_, staging, pool_);
  int64_t num_different = 0;
  for (size_t i = 0; i < digests.size(); ++i) {
    if (table.compare(i * kDigestDigits, kDigestDigits, digests[i]) != 0) {
      if (num_different++ == 0) {
        problem_ = fmt::format("{} arrived as {}, not {}", manifest_.entries[i].name, digests[i],
                               table.substr(i * kDigestDigits, kDigestDigits));
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
                                               const UpdateChannel& channel) {
  ACCORD_RETURN_IF_ERROR(check(options));
  ACCORD_ASSIGN_OR_RETURN(const Offer expected, make_offer(manifest_, options));
  if (static_cast<int64_t>(staging.size()) < manifest_.arena_bytes) {
    return internal_error("the receive buffer has {} bytes, the weights {}", staging.size(),
                          manifest_.arena_bytes);
  }
  UpdateReport report{options.version, 0, 0};
  problem_.clear();
  while (report.attempts < options.max_attempts) {
    ++report.attempts;
    Offer offer;
    ACCORD_RETURN_IF_ERROR(channel.broadcast(&offer, sizeof(offer)));
    Vote mine = Vote::kAccept;
    if (offer.magic != kMagic || text_of(offer.checksum) != checksum_of(offer)) {
      problem_ = "the offer arrived damaged";
      mine = Vote::kAgain;
    } else if (std::string why = difference(offer, expected); !why.empty()) {
      problem_ = std::move(why);
      mine = Vote::kRefuse;
    }
    ACCORD_ASSIGN_OR_RETURN(Vote vote, channel.agree(mine));
    if (vote == Vote::kAccept) {
      ACCORD_ASSIGN_OR_RETURN(mine, receive_content(staging.data(), options, channel));
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
