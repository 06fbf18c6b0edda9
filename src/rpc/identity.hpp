#pragma once
// Every call between controller and workers carries (run id, epoch) as metadata; a call of another run or
// epoch is refused, so that a worker that outlived its controller cannot disturb a new run.
#include <grpcpp/grpcpp.h>

#include <cstdint>
#include <string>

#include "base/status.hpp"

namespace accord::rpc {

// The largest message either side accepts. Trajectories are chunked far below; prompts of one call are not.
inline constexpr int kMaxMessageBytes = 64 << 20;

struct Identity {
  std::string run_id;
  uint64_t epoch = 0;
};

void attach_identity(grpc::ClientContext& context, const Identity& identity);
Status check_identity(const grpc::ServerContext& context, const Identity& expected);

// Channel with keepalive and the message limit; plaintext, so loopback addresses only.
std::shared_ptr<grpc::Channel> make_channel(const std::string& address);

// Before a channel's first call to a peer that is known to serve: a connection attempt may fail for no reason
// of the peer's (gRPC 1.51 can report another call's errno), and a call fails with it where a second attempt
// would connect. Returns after some seconds at the latest; the call then says what is wrong.
void await_connection(grpc::Channel& channel);

// For every server that such channels reach. By default a gRPC server takes the pings of a silent call, such
// as a long Generate or Train, for abuse and closes the connection.
void allow_keepalive(grpc::ServerBuilder& builder);

// Refuses a listening address that is not loopback: this version has no credentials. HOST:PORT.
Status check_loopback(const std::string& address);

}  // namespace accord::rpc
