#include "controller/update_channel.hpp"

#include <algorithm>
#include <vector>

#include "weights/spans.hpp"

namespace accord::controller {
namespace {

// Large enough that starting a broadcast costs nothing beside it, small enough that the first digests begin
// early.
constexpr int64_t kDeviceChunkBytes = int64_t{256} << 20;

}  // namespace

weights::UpdateChannel make_update_channel(Communicator& communicator, Deadline deadline) {
  weights::UpdateChannel channel;
  channel.rank = communicator.rank();
  channel.broadcast = [&communicator, deadline](void* data, int64_t bytes, int32_t root) {
    return communicator.broadcast(data, bytes, root, deadline);
  };
  channel.agree = [&communicator, deadline](weights::Vote vote) -> StatusOr<weights::Vote> {
    const auto mine = static_cast<int32_t>(vote);
    std::vector<int32_t> votes(static_cast<size_t>(communicator.size()));
    ACCORD_RETURN_IF_ERROR(communicator.all_gather(&mine, sizeof(mine), votes.data(), deadline));
    return static_cast<weights::Vote>(*std::max_element(votes.begin(), votes.end()));
  };
  return channel;
}

StatusOr<std::unique_ptr<DeviceUpdates>> DeviceUpdates::create(const WeightManifest& manifest,
                                                               const Device& device) {
  std::unique_ptr<DeviceUpdates> updates(new DeviceUpdates(device));
  ACCORD_RETURN_IF_ERROR(device.make_current());
  ACCORD_ASSIGN_OR_RETURN(updates->stream_, Stream::create(device));
  ACCORD_ASSIGN_OR_RETURN(
      updates->digest_,
      weights::DeviceDigest::create(
          manifest, device, {.pass_bytes = kDeviceChunkBytes, .first_byte = weights::first_sent(manifest)}));
  return updates;
}

weights::UpdateOptions DeviceUpdates::options(uint64_t version) {
  weights::UpdateOptions options;
  options.version = version;
  options.chunk_bytes = kDeviceChunkBytes;
  return options;
}

weights::UpdateChannel DeviceUpdates::channel(Communicator& group, Deadline deadline) const {
  weights::UpdateChannel channel = make_update_channel(group, deadline);
  DeviceCollectives* const collectives = group.device_collectives();
  const Stream* const stream = &stream_;
  channel.broadcast_content = [=](void* data, int64_t bytes, int32_t root) {
    return collectives->broadcast(data, bytes, root, *stream, deadline);
  };
  channel.content_done = [=] { return collectives->finish(*stream, deadline); };
  return channel;
}

Status DeviceUpdates::Digest::begin(const std::byte* staging) { return updates_.digest_->begin(staging); }

Status DeviceUpdates::Digest::arrived(int64_t count) {
  return updates_.digest_->advance(count, updates_.stream_);
}

StatusOr<std::vector<std::string>> DeviceUpdates::Digest::digests() {
  ACCORD_RETURN_IF_ERROR(updates_.digest_->end(updates_.stream_));
  ACCORD_RETURN_IF_ERROR(collectives_.finish(updates_.digest_->stream(), deadline_));
  return updates_.digest_->digests();
}

StatusOr<std::vector<std::string>> DeviceUpdates::digests_of(const std::byte* arena) {
  ACCORD_RETURN_IF_ERROR(digest_->begin(arena));
  ACCORD_RETURN_IF_ERROR(digest_->end(stream_));
  ACCORD_RETURN_IF_ERROR(digest_->stream().synchronize());
  return digest_->digests();
}

StatusOr<std::span<std::byte>> DeviceUpdates::scratch(int64_t bytes) {
  ACCORD_RETURN_IF_ERROR(scratch_.ensure(device_, static_cast<size_t>(bytes)));
  return std::span<std::byte>(scratch_.as<std::byte>(), static_cast<size_t>(bytes));
}

}  // namespace accord::controller
