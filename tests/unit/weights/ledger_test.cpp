#include "weights/ledger.hpp"

#include <stdlib.h>

#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "base/hash.hpp"
#include "support/catch.hpp"

using namespace accord;
using namespace accord::weights;

namespace {

class TempDir {
 public:
  TempDir() {
    std::string name = (std::filesystem::temp_directory_path() / "accord-XXXXXX").string();
    path_ = ::mkdtemp(name.data());
  }
  ~TempDir() { std::filesystem::remove_all(path_); }
  std::string file(const std::string& name) const { return path_ + "/" + name; }

 private:
  std::string path_;
};

std::vector<std::string> lines_of(const std::string& path) {
  std::ifstream in(path);
  std::vector<std::string> lines;
  for (std::string line; std::getline(in, line);) {
    lines.push_back(line);
  }
  return lines;
}

LedgerRecord record(int64_t step) {
  return {step,
          static_cast<uint64_t>(step),
          "p",
          "m",
          "b \"1\"",
          {{"model.norm.weight", "d0", 1.5, 0, 0.25},
           {"lm_head.weight", "d1", std::numeric_limits<double>::infinity(), 1, 0}}};
}

}  // namespace

TEST_CASE("ledger lines hold every field and chain") {
  const TempDir dir;
  const std::string path = dir.file("ledger.jsonl");
  {
    auto ledger = Ledger::open(path, -1);
    REQUIRE(ledger.ok());
    REQUIRE((*ledger)->append(record(0)).ok());
    REQUIRE((*ledger)->append(record(1)).ok());
  }
  auto lines = lines_of(path);
  REQUIRE(lines.size() == 2);
  CHECK(lines[0] ==
        "{\"step\":0,\"version\":0,\"previous\":\"00000000000000000000000000000000\",\"plan\":\"p\","
        "\"manifest\":\"m\",\"build\":\"b \\\"1\\\"\",\"tensors\":["
        "{\"name\":\"model.norm.weight\",\"digest\":\"d0\",\"amax\":1.5,\"saturated\":0,\"flushed\":0.25},"
        "{\"name\":\"lm_head.weight\",\"digest\":\"d1\",\"amax\":\"Infinity\",\"saturated\":1,\"flushed\":0}]"
        "}");
  CHECK(lines[1].find("\"previous\":\"" + digest_hex(lines[0]) + "\"") != std::string::npos);

  SECTION("a resumed run drops later records and continues the chain") {
    {
      auto ledger = Ledger::open(path, 0);
      REQUIRE(ledger.ok());
      REQUIRE((*ledger)->append(record(1)).ok());
    }
    CHECK(lines_of(path) == lines);
  }
  SECTION("the last version again adds a line only if its bytes differ") {
    auto ledger = Ledger::open(path, 1);
    REQUIRE(ledger.ok());
    LedgerRecord again = record(1);
    again.build_id = "another build";
    REQUIRE((*ledger)->append(again).ok());
    CHECK(lines_of(path) == lines);
    again.tensors[0].digest = "d9";
    REQUIRE((*ledger)->append(again).ok());
    CHECK(lines_of(path).size() == 3);
    REQUIRE((*ledger)->append(record(2)).ok());
    CHECK(lines_of(path).size() == 4);
  }
  SECTION("a line that was cut off is dropped") {
    std::ofstream(path, std::ios::app) << lines[1].substr(0, 100);
    {
      auto ledger = Ledger::open(path, 5);
      REQUIRE(ledger.ok());
      REQUIRE((*ledger)->append(record(2)).ok());
    }
    const auto now = lines_of(path);
    REQUIRE(now.size() == 3);
    CHECK(now[1] == lines[1]);
    CHECK(now[2].find("\"previous\":\"" + digest_hex(lines[1]) + "\"") != std::string::npos);
  }
  SECTION("a foreign line is refused with its number") {
    std::ofstream(path, std::ios::app) << "{\"reward\":1}\n";
    const Status status = Ledger::open(path, 5).status();
    CHECK(exit_code(status) == ExitCode::kBadData);
    CHECK(std::string(message_of(status)).find("ledger.jsonl:3:") != std::string::npos);
    CHECK(lines_of(path).size() == 3);
  }
  SECTION("a fresh run starts empty") {
    REQUIRE(Ledger::open(path, -1).ok());
    CHECK(lines_of(path).empty());
  }
}
