#include "checkpoint/run_checkpoint.hpp"

#include <sys/wait.h>

#include <csignal>
#include <string>
#include <vector>

#include "base/files.hpp"
#include "checkpoint/safetensors.hpp"
#include "support/catch.hpp"
#include "temp_dir.hpp"

using namespace accord;
using namespace accord::checkpoint;
namespace fs = std::filesystem;

namespace {

Status fill(CheckpointWriter& writer, float value) {
  ACCORD_RETURN_IF_ERROR(writer.add_file("state/masters.safetensors", [&](const std::string& path) {
    const std::vector<float> data(1000, value);
    return write_safetensors(path, {{{"w", Dtype::kF32, {1000}}, data.data()}});
  }));
  return writer.add_text("scalars.json", "{\"step\": 1}\n");
}

std::string save(const std::string& dir, int64_t step, float value = 1.0F) {
  auto writer = CheckpointWriter::begin(dir, step);
  REQUIRE(writer.ok());
  REQUIRE(fill(*writer, value).ok());
  const auto path = writer->commit();
  INFO(message_of(path.status()));
  REQUIRE(path.ok());
  return *path;
}

void flip_bit(const std::string& path, size_t at) {
  std::string content = slurp(path);
  content.at(at) = static_cast<char>(content.at(at) ^ 4);
  spill(path, content);
}

void has(const std::string& text, const std::string& part) {
  INFO(text << "\n  lacks: " << part);
  CHECK(text.find(part) != std::string::npos);
}

CheckpointSearch search(const std::string& dir) {
  auto found = find_newest_verified(dir);
  REQUIRE(found.ok());
  return *found;
}

}  // namespace

TEST_CASE("a committed checkpoint verifies and is found") {
  TempDir dir;
  CHECK_FALSE(search(dir / "none").newest.has_value());
  const std::string path = save(dir / "c", 40);
  CHECK(path == dir / "c/step_40");
  CHECK(verify_checkpoint(path).ok());
  CHECK(slurp(dir / "c/LATEST") == "step_40\n");
  CHECK_FALSE(fs::exists(dir / "c/step_40.tmp"));
  const auto manifest = parse_manifest(slurp(path + "/manifest.json"), "m");
  REQUIRE(manifest.ok());
  CHECK(manifest->step == 40);
  REQUIRE(manifest->files.size() == 2);
  CHECK(manifest->files.at("scalars.json").bytes == 12);
  save(dir / "c", 100);
  save(dir / "c", 20);
  CHECK(search(dir / "c").newest->step == 100);
  CHECK(search(dir / "c").newest->path == dir / "c/step_100");
  CHECK(search(dir / "c").skipped.empty());
  CHECK(*list_checkpoints(dir / "c") == std::vector<int64_t>{20, 40, 100});
}

TEST_CASE("damaged checkpoints are skipped, each with its reason") {
  TempDir dir;
  const std::string c = dir / "c";
  for (const int64_t step : {1, 2, 3, 4, 5, 6, 7, 8}) save(c, step);
  flip_bit(c + "/step_2/state/masters.safetensors", 2000);
  fs::resize_file(c + "/step_3/state/masters.safetensors", 100);
  fs::remove(c + "/step_4/scalars.json");
  fs::remove(c + "/step_5/manifest.json");
  spill(c + "/step_6/manifest.json", slurp(c + "/step_6/manifest.json").substr(0, 50));
  std::string altered = slurp(c + "/step_7/manifest.json");
  altered.replace(altered.find("\"bytes\": 12"), 11, "\"bytes\": 13");
  spill(c + "/step_7/manifest.json", altered);
  fs::remove_all(c + "/step_8");
  fs::copy(c + "/step_1", c + "/step_8", fs::copy_options::recursive);
  spill(c + "/step_09", "not a step");
  spill(c + "/step_x", "not a step");
  const CheckpointSearch found = search(c);
  REQUIRE(found.newest.has_value());
  CHECK(found.newest->step == 1);
  REQUIRE(found.skipped.size() == 7);
  CHECK(found.skipped[0].step == 8);
  has(found.skipped[0].reason, "manifest is that of step 1; the directory was renamed");
  has(found.skipped[1].reason, "files_xxh3 does not match");
  has(found.skipped[2].reason, "not valid JSON");
  has(found.skipped[3].reason, "manifest.json: cannot open");
  has(found.skipped[4].reason, "scalars.json: listed in manifest.json but cannot be read");
  has(found.skipped[5].reason, "masters.safetensors: has 100 bytes, manifest.json says");
  has(found.skipped[6].reason, "masters.safetensors: its content");
}

TEST_CASE("a process killed in the middle of a checkpoint leaves the older one in force") {
  TempDir dir;
  const std::string c = dir / "c";
  save(c, 1);
  const pid_t child = ::fork();
  REQUIRE(child >= 0);
  if (child == 0) {
    auto writer = CheckpointWriter::begin(c, 2);
    if (writer.ok() && fill(*writer, 2.0F).ok()) {
      ::raise(SIGKILL);
    }
    ::_exit(1);
  }
  int status = 0;
  REQUIRE(::waitpid(child, &status, 0) == child);
  REQUIRE(WIFSIGNALED(status));
  CHECK(fs::exists(c + "/step_2.tmp/scalars.json"));
  spill(c + "/LATEST.tmp.1.0", "step_");
  CHECK(search(c).newest->step == 1);
  CHECK(*list_checkpoints(c) == std::vector<int64_t>{1});
  const auto removed = remove_interrupted(c);
  REQUIRE(removed.ok());
  CHECK(*removed == std::vector<std::string>{"LATEST.tmp.1.0", "step_2.tmp"});
  CHECK_FALSE(fs::exists(c + "/step_2.tmp"));
  CHECK(remove_interrupted(c)->empty());
  CHECK(remove_interrupted(dir / "none")->empty());
  save(c, 2);
  CHECK(search(c).newest->step == 2);
}

TEST_CASE("a new attempt starts from nothing, an abandoned one leaves nothing") {
  TempDir dir;
  const std::string c = dir / "c";
  fs::create_directories(c + "/step_3.tmp");
  spill(c + "/step_3.tmp/stale", "x");
  save(c, 3);
  CHECK_FALSE(fs::exists(c + "/step_3/stale"));
  {
    auto writer = CheckpointWriter::begin(c, 4);
    REQUIRE(writer.ok());
    REQUIRE(fill(*writer, 1.0F).ok());
    const Status status = writer->add_file("x", [](const std::string&) { return data_error("no"); });
    CHECK(message_of(status) == "no");
    CHECK_FALSE(writer->add_file("x", [](const std::string&) { return absl::OkStatus(); }).ok());
  }
  CHECK_FALSE(fs::exists(c + "/step_4.tmp"));
  CHECK_FALSE(fs::exists(c + "/step_4"));
  auto empty = CheckpointWriter::begin(c, 5);
  REQUIRE(empty.ok());
  CHECK_FALSE(empty->commit().ok());
  auto linked = CheckpointWriter::begin(c, 6);
  REQUIRE(linked.ok());
  fs::create_symlink("/etc/hostname", linked->directory() + "/link");
  CHECK_FALSE(linked->commit().ok());
  CHECK_FALSE(CheckpointWriter::begin(c, -1).ok());
}

TEST_CASE("the same step can be saved again") {
  TempDir dir;
  const std::string c = dir / "c";
  save(c, 3, 1.0F);
  const std::string before = slurp(c + "/step_3/manifest.json");
  save(c, 3, 2.0F);
  CHECK(slurp(c + "/step_3/manifest.json") != before);
  CHECK(verify_checkpoint(c + "/step_3").ok());
  CHECK(std::distance(fs::directory_iterator(c), {}) == 2);  // step_3 and LATEST
}

TEST_CASE("pruning keeps the newest, and always one that verifies") {
  TempDir dir;
  const std::string c = dir / "c";
  for (const int64_t step : {1, 2, 3, 4, 5}) save(c, step);
  REQUIRE(prune_checkpoints(c, 5).ok());
  CHECK(list_checkpoints(c)->size() == 5);
  REQUIRE(prune_checkpoints(c, 3).ok());
  CHECK(*list_checkpoints(c) == std::vector<int64_t>{3, 4, 5});
  fs::remove(c + "/step_5/scalars.json");
  fs::remove(c + "/step_4/scalars.json");
  REQUIRE(prune_checkpoints(c, 1).ok());
  CHECK(*list_checkpoints(c) == std::vector<int64_t>{3, 5});
  REQUIRE(prune_checkpoints(c, 1, 3).ok());
  CHECK(*list_checkpoints(c) == std::vector<int64_t>{3, 5});
  fs::remove(c + "/step_3/scalars.json");
  REQUIRE(prune_checkpoints(c, 1).ok());
  CHECK(*list_checkpoints(c) == std::vector<int64_t>{3, 5});
  CHECK_FALSE(prune_checkpoints(c, 0).ok());
}

TEST_CASE("manifests that point outside or are malformed are refused") {
  const auto refused = [](const std::string& text, const std::string& part) {
    const auto manifest = parse_manifest(text, "m.json");
    REQUIRE_FALSE(manifest.ok());
    has(std::string(message_of(manifest.status())), part);
  };
  const std::string digest(32, 'a');
  const auto with = [&](const std::string& name, const std::string& entry) {
    return R"({"version":1,"step":2,"files_xxh3":"x","files":{")" + name + "\":" + entry + "}}";
  };
  const std::string entry = R"({"bytes":1,"xxh3":")" + digest + "\"}";
  refused("[]", "must hold one JSON object");
  refused(R"({"version":2,"step":2,"files":{}})", "version is 2");
  refused(R"({"version":1,"files":{}})", "step is missing");
  refused(R"({"version":1,"step":2,"files":{}})", "must list files");
  for (const char* name : {"../x", "/etc/passwd", "a/../../x", "", "./x"}) {
    refused(with(name, entry), "is damaged");
  }
  refused(with("a", R"({"bytes":-1,"xxh3":")" + digest + "\"}"), "bytes is -1");
  refused(with("a", R"({"bytes":1,"xxh3":"zz"})"), "32 lower-case hex digits");
  refused(with("a", "5"), "is damaged");
  refused(with("a", entry), "files_xxh3 does not match");
}

TEST_CASE("whole files are read up to a limit and written in one go") {
  TempDir dir;
  REQUIRE(write_file_atomic(dir / "f", "hello").ok());
  CHECK(*read_file(dir / "f", 5) == "hello");
  has(std::string(message_of(read_file(dir / "f", 4).status())), "has 5 bytes, more than the 4");
  CHECK(exit_code(read_file(dir / "none", 4).status()) == ExitCode::kIo);
  CHECK_FALSE(read_file(dir.path.string(), 4).ok());
  CHECK_FALSE(write_file_atomic(dir / "no/f", "x").ok());
  CHECK(make_dirs(dir / "a/b").ok());
  CHECK(make_dirs(dir / "a/b").ok());
  CHECK_FALSE(make_dirs(dir / "f").ok());
  CHECK(parent_of("x") == ".");
  CHECK(parent_of("a/x") == "a");
  REQUIRE(write_file_atomic(dir / "empty", "").ok());
  const auto mapped = MappedFile::open(dir / "empty");
  REQUIRE(mapped.ok());
  CHECK(mapped->size() == 0);
}
