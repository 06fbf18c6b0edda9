#include "telemetry/tensorboard.hpp"

#include <fcntl.h>
#include <unistd.h>

#include <array>
#include <bit>
#include <cerrno>
#include <chrono>
#include <climits>
#include <cstring>

namespace accord::telemetry {
namespace {

constexpr std::array<uint32_t, 256> make_crc_table() {
  constexpr uint32_t kPolynomial = 0x82f63b78;  // Castagnoli, reflected
  std::array<uint32_t, 256> table{};
  for (uint32_t i = 0; i < 256; ++i) {
    uint32_t crc = i;
    for (int bit = 0; bit < 8; ++bit) {
      crc = (crc >> 1) ^ ((crc & 1) != 0 ? kPolynomial : 0);
    }
    table[i] = crc;
  }
  return table;
}
constexpr std::array<uint32_t, 256> kCrcTable = make_crc_table();

template <class T>
void append_little_endian(std::string& out, T value) {
  for (size_t i = 0; i < sizeof(T); ++i) {
    out += static_cast<char>(static_cast<uint8_t>(value >> (8 * i)));
  }
}

void append_varint(std::string& out, uint64_t value) {
  while (value >= 0x80) {
    out += static_cast<char>(static_cast<uint8_t>(value | 0x80));
    value >>= 7;
  }
  out += static_cast<char>(static_cast<uint8_t>(value));
}

enum WireType : uint8_t { kVarint = 0, kFixed64 = 1, kBytes = 2, kFixed32 = 5 };

void append_tag(std::string& out, uint32_t field, WireType type) { append_varint(out, field << 3 | type); }

void append_bytes(std::string& out, uint32_t field, std::string_view bytes) {
  append_tag(out, field, kBytes);
  append_varint(out, bytes.size());
  out += bytes;
}

std::string event_header(double wall_time, int64_t step) {
  std::string out;
  append_tag(out, 1, kFixed64);
  append_little_endian(out, std::bit_cast<uint64_t>(wall_time));
  if (step != 0) {  // proto3 leaves the default out
    append_tag(out, 2, kVarint);
    append_varint(out, static_cast<uint64_t>(step));
  }
  return out;
}

double now() {
  return std::chrono::duration<double>(std::chrono::system_clock::now().time_since_epoch()).count();
}

}  // namespace

uint32_t crc32c(std::string_view bytes) {
  uint32_t crc = 0xffffffff;
  for (const char c : bytes) {
    crc = (crc >> 8) ^ kCrcTable[(crc ^ static_cast<uint8_t>(c)) & 0xff];
  }
  return ~crc;
}

uint32_t masked_crc32c(std::string_view bytes) { return std::rotr(crc32c(bytes), 15) + 0xa282ead8; }

std::string tf_record(std::string_view payload) {
  std::string out;
  append_little_endian(out, static_cast<uint64_t>(payload.size()));
  append_little_endian(out, masked_crc32c(out));
  out += payload;
  append_little_endian(out, masked_crc32c(payload));
  return out;
}

std::string encode_file_version(double wall_time) {
  std::string out = event_header(wall_time, 0);
  append_bytes(out, 3, "brain.Event:2");
  return out;
}

std::string encode_session_start(double wall_time, int64_t step) {
  constexpr uint64_t kStart = 1;
  std::string session_log;
  append_tag(session_log, 1, kVarint);
  append_varint(session_log, kStart);
  std::string out = event_header(wall_time, step);
  append_bytes(out, 7, session_log);
  return out;
}

std::string encode_scalars(double wall_time, int64_t step, const Metrics& metrics) {
  std::string summary;
  for (const auto& [name, number] : metrics) {
    std::string value;
    append_bytes(value, 1, name);
    append_tag(value, 2, kFixed32);
    append_little_endian(value, std::bit_cast<uint32_t>(static_cast<float>(number)));
    append_bytes(summary, 1, value);
  }
  std::string out = event_header(wall_time, step);
  append_bytes(out, 5, summary);
  return out;
}

StatusOr<std::unique_ptr<TensorBoardWriter>> TensorBoardWriter::create(const std::string& dir,
                                                                       int64_t first_step) {
  const double time = now();
  char host[HOST_NAME_MAX + 1] = "localhost";
  if (::gethostname(host, sizeof(host)) != 0) {
    std::strcpy(host, "localhost");
  }
  const std::string path =
      fmt::format("{}/events.out.tfevents.{}.{}.{}", dir, static_cast<int64_t>(time), host, ::getpid());
  FileDescriptor fd(::open(path.c_str(), O_WRONLY | O_CREAT | O_APPEND | O_CLOEXEC, 0644));
  if (!fd.valid()) {
    return io_error("{}: cannot create: {}", path, std::strerror(errno));
  }
  std::unique_ptr<TensorBoardWriter> writer(new TensorBoardWriter(path, std::move(fd)));
  ACCORD_RETURN_IF_ERROR(write_fully(writer->fd_.get(), path, tf_record(encode_file_version(time))));
  if (first_step > 0) {
    ACCORD_RETURN_IF_ERROR(
        write_fully(writer->fd_.get(), path, tf_record(encode_session_start(time, first_step))));
  }
  return writer;
}

TensorBoardWriter::TensorBoardWriter(std::string path, FileDescriptor fd)
    : path_(std::move(path)), fd_(std::move(fd)) {}

Status TensorBoardWriter::write(int64_t step, const Metrics& metrics) {
  return write_fully(fd_.get(), path_, tf_record(encode_scalars(now(), step, metrics)));
}

}  // namespace accord::telemetry
