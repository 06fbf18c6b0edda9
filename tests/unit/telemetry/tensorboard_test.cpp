#include "telemetry/tensorboard.hpp"

#include <stdlib.h>

#include <cmath>
#include <cstring>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::telemetry;

namespace {

std::string hex(std::string_view bytes) {
  std::string text;
  for (const char c : bytes) {
    text += fmt::format("{:02x}", static_cast<uint8_t>(c));
  }
  return text;
}

}  // namespace

TEST_CASE("CRC-32C agrees with RFC 3720's vectors") {
  CHECK(crc32c("123456789") == 0xe3069283);
  CHECK(crc32c(std::string(32, '\0')) == 0x8a9136aa);
  CHECK(crc32c(std::string(32, '\xff')) == 0x62a8ab43);
  std::string ascending;
  for (int i = 0; i < 32; ++i) {
    ascending += static_cast<char>(i);
  }
  CHECK(crc32c(ascending) == 0x46dd794e);
}

TEST_CASE("events have the protobuf wire bytes") {
  // wall_time 1.5 = 0x3ff8000000000000
  CHECK(hex(encode_file_version(1.5)) == "09000000000000f83f1a0d627261696e2e4576656e743a32");
  CHECK(hex(encode_scalars(1.5, 300, {{"a/b", 0.25}, {"c", -2}})) ==
        "09000000000000f83f10ac022a16"  // wall_time, step = 300, summary of 22 bytes
        "0a0a0a03612f62150000803e"      // value{tag "a/b", 0.25}
        "0a080a016315000000c0");        // value{tag "c", -2}
  CHECK(hex(encode_session_start(1.5, 7)) == "09000000000000f83f10073a020801");
  CHECK(hex(encode_scalars(1.5, 0, {{"c", std::numeric_limits<double>::infinity()}})) ==
        "09000000000000f83f2a0a0a080a0163150000807f");
}

TEST_CASE("a record frames its payload with masked checksums") {
  // The first record of a file that TensorBoard's own writer made at wall time 1.5.
  CHECK(hex(tf_record(encode_file_version(1.5))) ==
        "1800000000000000a37f4b2209000000000000f83f1a0d627261696e2e4576656e743a322a28646c");
}

TEST_CASE("a writer's file starts with the version and holds one record per step") {
  std::string name = (std::filesystem::temp_directory_path() / "accord-XXXXXX").string();
  const std::string dir = ::mkdtemp(name.data());
  std::string path;
  {
    auto writer = TensorBoardWriter::create(dir, 5);
    REQUIRE(writer.ok());
    path = (*writer)->path();
    REQUIRE((*writer)->write(5, {{"train/loss", 1.0}}).ok());
    REQUIRE((*writer)->write(6, {{"train/loss", std::nan("")}}).ok());
  }
  CHECK(std::filesystem::path(path).filename().string().rfind("events.out.tfevents.", 0) == 0);
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  std::string bytes = text.str();
  std::vector<std::string> payloads;
  while (bytes.size() >= 16) {
    uint64_t length = 0;
    std::memcpy(&length, bytes.data(), sizeof(length));
    REQUIRE(bytes.size() >= length + 16);
    payloads.push_back(bytes.substr(12, length));
    CHECK(bytes.substr(0, length + 16) == tf_record(payloads.back()));
    bytes.erase(0, length + 16);
  }
  CHECK(bytes.empty());
  REQUIRE(payloads.size() == 4);
  CHECK(payloads[0].find("brain.Event:2") != std::string::npos);
  CHECK(hex(payloads[1].substr(9)) == "10053a020801");
  CHECK(payloads[2].find("train/loss") != std::string::npos);
  CHECK(hex(payloads[3].substr(9)).find("0a747261696e2f6c6f7373150000c07f") != std::string::npos);
  std::filesystem::remove_all(dir);
}
