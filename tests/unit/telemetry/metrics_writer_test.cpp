#include "telemetry/metrics_writer.hpp"

#include <stdlib.h>

#include <cmath>
#include <filesystem>
#include <fstream>
#include <limits>
#include <sstream>

#include "support/catch.hpp"

using namespace accord;
using namespace accord::telemetry;

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

std::string content(const std::string& path) {
  std::ifstream in(path, std::ios::binary);
  std::ostringstream text;
  text << in.rdbuf();
  return text.str();
}

constexpr double kInf = std::numeric_limits<double>::infinity();

}  // namespace

TEST_CASE("a line has the step first and sorted metrics") {
  const auto line =
      format_metrics_line(3, {{"train/loss", 0.5}, {"eval/a\"b/pass1", 1}, {"rollout/x", kInf}});
  REQUIRE(line.ok());
  CHECK(*line == R"({"step":3,"eval/a\"b/pass1":1,"rollout/x":"Infinity","train/loss":0.5})");
  CHECK_FALSE(format_metrics_line(3, {{"step", 1}}).ok());
}

TEST_CASE("every line is in the file when write returns, and steps ascend") {
  const TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  auto writer = MetricsWriter::open(path, -1);
  REQUIRE(writer.ok());
  REQUIRE((*writer)->write(0, {{"a", 1}}).ok());
  CHECK(content(path) == "{\"step\":0,\"a\":1}\n");
  REQUIRE((*writer)->write(1, {{"a", std::nan("")}}).ok());
  CHECK(content(path) == "{\"step\":0,\"a\":1}\n{\"step\":1,\"a\":\"NaN\"}\n");
  CHECK(exit_code((*writer)->write(1, {{"a", 1}})) == ExitCode::kInternal);
}

TEST_CASE("a resumed run drops later steps and broken lines, and appends") {
  const TempDir dir;
  const std::string path = dir.file("metrics.jsonl");
  std::ofstream(path)
      << "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\nnoise\n{\"step\":3,\"a\":3}\n{\"step\":4,\"a\"";
  {
    auto writer = MetricsWriter::open(path, 2);
    REQUIRE(writer.ok());
    CHECK(content(path) == "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\n");
    REQUIRE((*writer)->write(3, {{"a", 30}}).ok());
  }
  CHECK(content(path) == "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\n{\"step\":3,\"a\":30}\n");
  SECTION("the newest kept step bounds what may be written") {
    auto writer = MetricsWriter::open(path, 10);
    REQUIRE(writer.ok());
    CHECK_FALSE((*writer)->write(3, {}).ok());
    CHECK((*writer)->write(4, {}).ok());
  }
  SECTION("a fresh run starts empty") {
    REQUIRE(MetricsWriter::open(path, -1).ok());
    CHECK(content(path).empty());
  }
  SECTION("a last line that only lacks its newline was cut off") {
    std::ofstream(path, std::ios::app) << "{\"step\":4}";
    REQUIRE(MetricsWriter::open(path, 10).ok());
    CHECK(content(path) == "{\"step\":1,\"a\":1}\n{\"step\":2,\"a\":2}\n{\"step\":3,\"a\":30}\n");
  }
}

TEST_CASE("a directory that does not exist is an I/O error with the path") {
  const auto writer = MetricsWriter::open("/nonexistent/metrics.jsonl", -1);
  CHECK(exit_code(writer.status()) == ExitCode::kIo);
  CHECK(std::string(message_of(writer.status())).find("/nonexistent/metrics.jsonl") != std::string::npos);
}
