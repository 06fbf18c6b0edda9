// Incident: a rollout of more than half a minute ended with "too many pings". Clients ping so that they
// notice a peer that hangs, and the servers took the pings of a call without traffic for abuse.
#include <arpa/inet.h>
#include <sys/socket.h>
#include <unistd.h>

#include <string>

#include "rpc/control_server.hpp"
#include "support/catch.hpp"

namespace accord::rpc {
namespace {

constexpr char kSettings = 4;
constexpr char kPing = 6;
constexpr char kGoAway = 7;
constexpr char kAck = 1;
constexpr size_t kHeader = 9;  // 3 bytes of length, type, flags, 4 bytes of stream

std::string frame(char type, const std::string& payload) {
  std::string bytes(kHeader, '\0');
  bytes[2] = static_cast<char>(payload.size());
  bytes[3] = type;
  return bytes + payload;
}

int connect_to(const std::string& address) {
  const size_t colon = address.rfind(':');
  sockaddr_in to{};
  to.sin_family = AF_INET;
  to.sin_port = htons(static_cast<uint16_t>(std::stoi(address.substr(colon + 1))));
  REQUIRE(inet_pton(AF_INET, address.substr(0, colon).c_str(), &to.sin_addr) == 1);
  const int fd = socket(AF_INET, SOCK_STREAM, 0);
  REQUIRE(fd >= 0);
  REQUIRE(connect(fd, reinterpret_cast<const sockaddr*>(&to), sizeof(to)) == 0);
  const timeval patience{20, 0};
  REQUIRE(setsockopt(fd, SOL_SOCKET, SO_RCVTIMEO, &patience, sizeof(patience)) == 0);
  return fd;
}

std::string read_exactly(int fd, size_t count) {
  std::string bytes(count, '\0');
  size_t done = 0;
  while (done < count) {
    const ssize_t got = recv(fd, bytes.data() + done, count - done, 0);
    if (got <= 0) return "";
    done += static_cast<size_t>(got);
  }
  return bytes;
}

}  // namespace

TEST_CASE("a server answers every ping of a silent connection") {
  controller::RunState state;
  ControlServer::Options options;
  options.listen = "127.0.0.1:0";
  options.build = "build-1";
  options.identity.run_id = "run-a";
  options.expected.emplace_back("trainer/0");
  const auto server = ControlServer::start(options, state, [](const std::string&) {});
  REQUIRE(server.ok());

  const int fd = connect_to((*server)->address());
  const auto send_all = [fd](const std::string& bytes) {
    return send(fd, bytes.data(), bytes.size(), MSG_NOSIGNAL) == static_cast<ssize_t>(bytes.size());
  };
  REQUIRE(send_all("PRI * HTTP/2.0\r\n\r\nSM\r\n\r\n" + frame(kSettings, "")));
  for (int ping = 1; ping <= 12; ++ping) {
    CAPTURE(ping);
    REQUIRE(send_all(frame(kPing, "accord-p")));
    std::string header;
    do {
      header = read_exactly(fd, kHeader);
      REQUIRE(header.size() == kHeader);
      REQUIRE(header[3] != kGoAway);
      const int size = static_cast<unsigned char>(header[0]) << 16 |
                       static_cast<unsigned char>(header[1]) << 8 | static_cast<unsigned char>(header[2]);
      REQUIRE(read_exactly(fd, static_cast<size_t>(size)).size() == static_cast<size_t>(size));
    } while (header[3] != kPing || header[4] != kAck);
  }
  close(fd);
}

}  // namespace accord::rpc
