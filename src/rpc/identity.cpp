#include "rpc/identity.hpp"

#include <charconv>
#include <chrono>

namespace accord::rpc {
namespace {

constexpr char kRunKey[] = "accord-run";
constexpr char kEpochKey[] = "accord-epoch";
constexpr int kKeepaliveMs = 10'000;

std::string metadata_value(const grpc::ServerContext& context, const char* key) {
  const auto it = context.client_metadata().find(key);
  return it == context.client_metadata().end() ? std::string()
                                               : std::string(it->second.data(), it->second.size());
}

}  // namespace

void attach_identity(grpc::ClientContext& context, const Identity& identity) {
  context.AddMetadata(kRunKey, identity.run_id);
  context.AddMetadata(kEpochKey, std::to_string(identity.epoch));
}

Status check_identity(const grpc::ServerContext& context, const Identity& expected) {
  const std::string run = metadata_value(context, kRunKey);
  const std::string epoch = metadata_value(context, kEpochKey);
  if (run != expected.run_id || epoch != std::to_string(expected.epoch)) {
    return absl::FailedPreconditionError(
        fmt::format("the call is for run '{}' epoch '{}', this process belongs to run '{}' epoch {}", run,
                    epoch, expected.run_id, expected.epoch));
  }
  return absl::OkStatus();
}

std::shared_ptr<grpc::Channel> make_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(kMaxMessageBytes);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIME_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_KEEPALIVE_TIMEOUT_MS, kKeepaliveMs);
  arguments.SetInt(GRPC_ARG_HTTP2_MAX_PINGS_WITHOUT_DATA, 0);
  // Peers of one machine share channels otherwise, and a proxy variable must not carry control traffic away.
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

void await_connection(grpc::Channel& channel) {
  constexpr std::chrono::seconds kPatience{5};
  channel.WaitForConnected(std::chrono::system_clock::now() + kPatience);
}

void allow_keepalive(grpc::ServerBuilder& builder) {
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MIN_RECV_PING_INTERVAL_WITHOUT_DATA_MS, kKeepaliveMs / 2);
  builder.AddChannelArgument(GRPC_ARG_HTTP2_MAX_PING_STRIKES, 0);  // no limit: busy machines delay pings
}

Status check_loopback(const std::string& address) {
  const size_t colon = address.rfind(':');
  int port = -1;
  const char* const end = address.data() + address.size();
  const bool numeric = colon != std::string::npos && colon + 1 < address.size() &&
                       std::from_chars(address.data() + colon + 1, end, port).ptr == end;
  const std::string host = address.substr(0, colon);
  if (!numeric || port < 0 || port > 65535 ||
      (host.rfind("127.", 0) != 0 && host != "localhost" && host != "[::1]")) {
    return usage_error(
        "address '{}': must be HOST:PORT with a loopback host (127.0.0.1, localhost, [::1]); calls "
        "are not "
        "authenticated in this version",
        address);
  }
  return absl::OkStatus();
}

}  // namespace accord::rpc
