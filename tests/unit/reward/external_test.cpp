// Scorer processes that answer, hang, crash, babble and are slow: shell scripts, one each.
#include <fcntl.h>
#include <signal.h>
#include <sys/wait.h>
#include <unistd.h>

#include <atomic>
#include <cerrno>
#include <chrono>
#include <cstdlib>
#include <filesystem>
#include <fstream>
#include <iterator>
#include <limits>
#include <string>
#include <thread>

#include "reward/error_log.hpp"
#include "reward/process_scorer.hpp"
#include "reward/score_lines.hpp"
#include "support/catch.hpp"

namespace accord::reward {
namespace {

using namespace std::chrono_literals;

// A directory for one test.
struct Scratch {
  Scratch() {
    char name[] = "/tmp/accord-reward-XXXXXX";
    REQUIRE(mkdtemp(name) != nullptr);
    path = name;
  }
  ~Scratch() { std::filesystem::remove_all(path); }
  std::string file(const std::string& name) const { return path + "/" + name; }
  std::string read(const std::string& name) const {
    std::ifstream in(file(name));
    return {std::istreambuf_iterator<char>(in), {}};
  }
  std::string path;
};

// A Python scorer: `body` runs for each request `r`; reply(r, score) answers.
std::vector<std::string> python(const std::string& body) {
  return {"python3", "-u", "-c",
          "import json, os, sys, time\n"
          "def reply(r, score, **more):\n"
          "    print(json.dumps({'id': r['id'], 'score': score, **more}))\n"
          "for line in sys.stdin:\n"
          "    r = json.loads(line)\n"
          "    " +
              body + "\n"};
}

ExternalOptions quick(int64_t batch, int64_t retries) {
  ExternalOptions options;
  options.batch_size = batch;
  options.deadline = 20s;
  options.retries = retries;
  options.pause = 1ms;
  return options;
}

StatusOr<std::unique_ptr<BatchScorer>> scorer_of(const std::vector<std::string>& command,
                                                 const Scratch& scratch, const ExternalOptions& options) {
  return make_external_scorer(
      make_process_transport({command, scratch.file("reward.log"), options.cancelled}), options);
}

// Responses 0, 1, 2...
struct Samples {
  explicit Samples(size_t count) {
    for (size_t i = 0; i < count; ++i) texts.push_back(std::to_string(i));
    for (size_t i = 0; i < count; ++i) {
      ScoreRequest& request = requests.emplace_back();
      request.set = "train";
      request.step = 3;
      request.prompt_id = i / 4;
      request.sample_index = static_cast<uint32_t>(i % 4);
      request.response = texts[i];
      request.label = "L";
    }
  }
  std::vector<std::string> texts;
  std::vector<ScoreRequest> requests;
};

std::string error_of(const std::string& body, size_t count = 4, ExternalOptions options = quick(4, 0)) {
  const Scratch scratch;
  auto scorer = scorer_of(python(body), scratch, options);
  REQUIRE(scorer.ok());
  Samples samples(count);
  const auto rewards = (*scorer)->score(samples.requests);
  REQUIRE(!rewards.ok());
  return std::string(message_of(rewards.status()));
}

bool has(const std::string& text, const std::string& part) { return text.find(part) != std::string::npos; }

bool alive(int pid) {
  std::ifstream in("/proc/" + std::to_string(pid) + "/stat");
  std::string id;
  std::string name;
  std::string state;
  return in >> id >> name >> state && state != "Z";
}

bool gone_soon(int pid) {
  for (int i = 0; i < 200 && alive(pid); ++i) std::this_thread::sleep_for(10ms);
  return !alive(pid);
}

}  // namespace

TEST_CASE("scores keep the order of samples whatever the batches do") {
  Samples samples(13);
  for (const int64_t batch : {1, 4, 5, 13, 100}) {
    const Scratch scratch;
    auto scorer =
        scorer_of(python("reply(r, int(r['response']) / 4, pred=r['response'], extra={'n': r['count']})"),
                  scratch, quick(batch, 0));
    REQUIRE(scorer.ok());
    for (int round = 0; round < 2; ++round) {
      const auto rewards = (*scorer)->score(samples.requests);
      INFO((rewards.ok() ? std::string() : std::string(message_of(rewards.status()))));
      REQUIRE(rewards.ok());
      REQUIRE(rewards->size() == 13);
      for (size_t i = 0; i < 13; ++i) {
        CHECK((*rewards)[i].score == static_cast<double>(i) / 4);
        CHECK((*rewards)[i].pred == samples.texts[i]);
        CHECK(!(*rewards)[i].failed);
      }
    }
  }
}

TEST_CASE("a request holds all that is known of a sample") {
  ScoreRequest request;
  request.set = "train";
  request.step = 3;
  request.prompt_id = 7;
  request.sample_index = 2;
  request.prompt = "q\n";
  request.messages = R"([{"role":"user","content":"q"}])";
  request.response = "caf\xC3";  // cut within a character
  request.label = "34";
  request.metadata = R"({"level":5})";
  request.truncated = true;
  CHECK(request_line(request, 9, 1, 4) ==
        "{\"id\":9,\"index\":1,\"count\":4,\"set\":\"train\",\"step\":3,\"prompt_id\":7,\"sample_index\":2,"
        "\"prompt\":\"q\\n\",\"messages\":[{\"role\":\"user\",\"content\":\"q\"}],\"response\":"
        "\"caf\xEF\xBF\xBD\","
        "\"label\":\"34\",\"metadata\":{\"level\":5},\"truncated\":true}\n");
}

TEST_CASE("replies are read strictly") {
  const auto good = parse_reply(R"({"id":5,"score":-0.5,"pred":7,"extra":{"a":1}})", 5);
  REQUIRE(good.ok());
  CHECK((*good == Reward{-0.5, "7", "{\"a\":1}", false}));
  for (const char* line : {"",
                           "hello",
                           "[]",
                           "1",
                           R"({"id":5})",
                           R"({"score":1})",
                           R"({"id":6,"score":1})",
                           R"({"id":4,"score":1})",
                           R"({"id":"5","score":1})",
                           R"({"id":5,"score":NaN})",
                           R"({"id":5,"score":1e999})",
                           R"({"id":5,"score":"1"})",
                           R"({"id":5,"score":null})",
                           R"({"id":5,"score":true})",
                           R"({"id":5,"score":1,"reward":2})",
                           R"({"id":5,"score":1,"score":2})",
                           R"({"id":5,"score":1} x)",
                           R"({"id":5,"score":1,"extra":[]})",
                           R"({"id":5,"score":1,"pred":[]})",
                           "{\"id\":5,\"score\":1,\"pred\":\"\xFF\"}"}) {
    CAPTURE(line);
    CHECK(exit_code(parse_reply(line, 5).status()) == ExitCode::kBadData);
  }
}

TEST_CASE("a scorer that hangs is an error at its deadline and its group is gone") {
  const Scratch scratch;
  const std::string pids = scratch.file("pids");
  const std::string script = "sleep 1000 & echo $! $$ > " + pids + "; echo it hangs >&2; wait";
  auto options = quick(4, 0);
  options.deadline = 3s;
  auto scorer = scorer_of({"sh", "-c", script}, scratch, options);
  REQUIRE(scorer.ok());
  Samples samples(4);
  const auto begin = std::chrono::steady_clock::now();
  const auto rewards = (*scorer)->score(samples.requests);
  const auto took = std::chrono::steady_clock::now() - begin;
  REQUIRE(!rewards.ok());
  CHECK(exit_code(rewards.status()) == ExitCode::kUnavailable);
  const std::string message(message_of(rewards.status()));
  INFO(message);
  CHECK(has(message, "0 of 4 replies within 3"));
  CHECK(has(message, "it hangs"));
  CHECK(took >= 3s);
  CHECK(took < 60s);
  int child = 0;
  int shell = 0;
  std::ifstream(pids) >> child >> shell;
  REQUIRE(child > 0);
  CHECK(gone_soon(child));
  CHECK(gone_soon(shell));
}

TEST_CASE("failures of a scorer are told with its last words") {
  const std::string crash = error_of("print('boom', file=sys.stderr); sys.exit(3)");
  INFO(crash);
  CHECK(has(crash, "ended with exit code 3"));
  CHECK(has(crash, "boom"));
  CHECK(has(crash, "step 3"));
  CHECK(has(error_of("os.kill(os.getpid(), 9)"), "killed by signal 9"));
  CHECK(has(error_of("print('loading model')"), "'loading model'"));
  CHECK(has(error_of("reply(r, float('nan'))"), "NaN"));
  CHECK(has(error_of("reply(r, float('inf'))"), "Infinity"));
  CHECK(has(error_of("r['id'] = 4 - r['index']; reply(r, 1)"), "a reply to id 1 was due"));
  CHECK(has(error_of("reply(r, 1) if r['index'] < 2 else sys.exit(0)"), "after 2 of 4 replies"));
  CHECK(has(error_of("sys.stdout.write('x' * 3000000); sys.stdout.flush(); time.sleep(100)"),
            "a line of more than"));
  // One reply too many, in one write with the last.
  CHECK(has(
      error_of(
          "o = json.dumps({'id': r['id'], 'score': 1}) + chr(10); sys.stdout.write(o * 2 if r['index'] == 3 "
          "else o); sys.stdout.flush()"),
      "more than the 4 replies"));
}

TEST_CASE("a scorer that does not read cannot block a large batch") {
  const Scratch scratch;
  auto options = quick(64, 0);
  options.deadline = 1s;
  auto scorer = scorer_of({"sleep", "1000"}, scratch, options);
  REQUIRE(scorer.ok());
  Samples samples(64);
  const std::string large(100'000, 'x');
  for (ScoreRequest& request : samples.requests) request.response = large;
  CHECK(exit_code((*scorer)->score(samples.requests).status()) == ExitCode::kUnavailable);
}

TEST_CASE("large batches pass in both directions at once") {
  const Scratch scratch;
  auto scorer = scorer_of(python("reply(r, len(r['response']), pred=r['response'])"), scratch, quick(64, 0));
  REQUIRE(scorer.ok());
  Samples samples(64);
  const std::string large(100'000, 'x');
  for (ScoreRequest& request : samples.requests) request.response = large;
  const auto rewards = (*scorer)->score(samples.requests);
  REQUIRE(rewards.ok());
  CHECK(rewards->back().score == 100'000);
}

TEST_CASE("a flaky scorer is asked again and started anew") {
  const Scratch scratch;
  const std::string count = scratch.file("count");
  // Every process dies at its fourth request, so that batches of two need a new one each.
  const std::string body =
      "n = globals().get('n', 0) + 1; open('" + count +
      "', 'a').write('x') if n == 1 else None; n < 4 or os._exit(1); reply(r, n * 0 + 2)";
  auto scorer = scorer_of(python(body), scratch, quick(2, 1));
  REQUIRE(scorer.ok());
  Samples samples(8);
  const auto rewards = (*scorer)->score(samples.requests);
  INFO((rewards.ok() ? std::string() : std::string(message_of(rewards.status()))));
  REQUIRE(rewards.ok());
  for (const Reward& reward : *rewards) CHECK((reward == Reward{2.0, std::nullopt, "", false}));
  CHECK(scratch.read("count").size() > 1);
}

TEST_CASE("a failed batch scores what the policy says and only that batch") {
  const Scratch scratch;
  auto options = quick(4, 1);
  options.failure_score = -1.0;
  auto scorer = scorer_of(python("r['response'] != '5' or os._exit(1); reply(r, 1)"), scratch, options);
  REQUIRE(scorer.ok());
  CHECK((*scorer)->scores_failures());
  Samples samples(12);
  const auto rewards = (*scorer)->score(samples.requests);
  REQUIRE(rewards.ok());
  for (size_t i = 0; i < 12; ++i) {
    const bool failed = i / 4 == 1;
    CHECK((*rewards)[i].failed == failed);
    CHECK((*rewards)[i].score == (failed ? -1.0 : 1.0));
  }
}

TEST_CASE("a slow scorer within its deadline is no failure") {
  const Scratch scratch;
  auto scorer = scorer_of(python("time.sleep(0.05); reply(r, 1)"), scratch, quick(4, 0));
  REQUIRE(scorer.ok());
  Samples samples(8);
  CHECK((*scorer)->score(samples.requests).ok());
}

TEST_CASE("output between two batches fails the next attempt") {
  const Scratch scratch;
  const std::string mark = scratch.file("mark");
  auto scorer =
      scorer_of(python("reply(r, 1); time.sleep(0.1); print('late'); open('" + mark + "', 'w').close()"),
                scratch, quick(1, 0));
  REQUIRE(scorer.ok());
  Samples samples(1);
  REQUIRE((*scorer)->score(samples.requests).ok());
  for (int i = 0; i < 2000 && !std::filesystem::exists(mark); ++i) std::this_thread::sleep_for(10ms);
  const auto second = (*scorer)->score(samples.requests);
  REQUIRE(!second.ok());
  CHECK(has(std::string(message_of(second.status())), "nobody asked for, outside of a batch: 'late"));
  CHECK((*scorer)->score(samples.requests).ok());  // by a new process
}

TEST_CASE("a scorer ends with its owner") {
  const Scratch scratch;
  const std::string pids = scratch.file("pids");
  int pid = 0;
  {
    auto scorer = scorer_of(python("open('" + pids + "', 'w').write(str(os.getpid())); reply(r, 1)"), scratch,
                            quick(1, 0));
    REQUIRE(scorer.ok());
    Samples samples(1);
    REQUIRE((*scorer)->score(samples.requests).ok());
    std::ifstream(pids) >> pid;
    REQUIRE(pid > 0);
    CHECK(alive(pid));
  }
  CHECK(gone_soon(pid));
}

TEST_CASE("what a scorer started ends with it and nothing stays to be reaped") {
  const Scratch scratch;
  const std::string pids = scratch.file("pids");
  auto scorer = scorer_of(python("import subprocess; p = subprocess.Popen(['sleep', '1000']); open('" + pids +
                                 "', 'w').write(str(p.pid)); time.sleep(1000)"),
                          scratch, [] {
                            auto options = quick(1, 0);
                            options.deadline = 2s;
                            return options;
                          }());
  REQUIRE(scorer.ok());
  Samples samples(1);
  CHECK(exit_code((*scorer)->score(samples.requests).status()) == ExitCode::kUnavailable);
  int pid = 0;
  std::ifstream(pids) >> pid;
  REQUIRE(pid > 0);
  CHECK(gone_soon(pid));
  CHECK(waitpid(-1, nullptr, WNOHANG) == -1);
  CHECK(errno == ECHILD);
}

TEST_CASE("a scorer that floods its standard error does not stop or fill anything") {
  const Scratch scratch;
  auto scorer = scorer_of(python("sys.stderr.write((chr(120) * 999 + chr(10)) * 40000); reply(r, 1)"),
                          scratch, quick(2, 0));
  REQUIRE(scorer.ok());
  Samples samples(2);
  const auto rewards = (*scorer)->score(samples.requests);
  INFO((rewards.ok() ? std::string() : std::string(message_of(rewards.status()))));
  REQUIRE(rewards.ok());
  scorer->reset();
  uintmax_t kept = 0;
  for (const auto& entry : std::filesystem::directory_iterator(scratch.path)) {
    CHECK(entry.file_size() <= static_cast<uintmax_t>(kMaxErrorLog));
    kept += entry.file_size();
  }
  CHECK(kept > static_cast<uintmax_t>(kMaxErrorLog));
}

TEST_CASE("an error log keeps the newest output and its last lines") {
  const Scratch scratch;
  auto log = ErrorLog::open(scratch.file("log"), 1000);
  REQUIRE(log.ok());
  std::string all;
  for (int i = 0; i < 300; ++i) {
    const std::string line = "line " + std::to_string(i) + "\n";
    all += line;
    REQUIRE(write((*log)->child_end(), line.data(), line.size()) == static_cast<ssize_t>(line.size()));
    if (i % 50 == 0) std::this_thread::sleep_for(5ms);
  }
  (*log)->finish();
  CHECK((*log)->tail().size() <= 2000);
  CHECK((*log)->tail().ends_with("line 298\nline 299"));
  CHECK((*log)->tail().starts_with("line "));
  const std::string newest = scratch.read("log.1") + scratch.read("log");
  CHECK(all.ends_with(newest));
  CHECK(!newest.empty());
}

TEST_CASE("a scorer gets only its three open files") {
  const Scratch scratch;
  const int left_open = open("/dev/null", O_RDONLY);  // not closed on exec
  REQUIRE(left_open > 2);
  auto scorer = scorer_of(python("reply(r, len(os.listdir('/proc/self/fd')))"), scratch, quick(1, 0));
  close(left_open);
  REQUIRE(scorer.ok());
  Samples samples(1);
  const auto rewards = (*scorer)->score(samples.requests);
  REQUIRE(rewards.ok());
  CHECK(rewards->front().score == 4);  // and the one of the listing
}

TEST_CASE("a run that is lost ends an attempt and the pause before the next") {
  for (const bool hangs : {true, false}) {
    const Scratch scratch;
    std::atomic<bool> lost{false};
    auto options = quick(4, 5);
    options.deadline = 600s;
    options.pause = 600s;
    options.failure_score = 0.0;
    options.cancelled = [&] { return lost.load(); };
    auto scorer = scorer_of(python(hangs ? "time.sleep(1000)" : "sys.exit(1)"), scratch, options);
    REQUIRE(scorer.ok());
    std::thread loss([&] {
      std::this_thread::sleep_for(500ms);
      lost = true;
    });
    Samples samples(4);
    CHECK(absl::IsCancelled((*scorer)->score(samples.requests).status()));
    loss.join();
  }
}

TEST_CASE("all batches together have a deadline") {
  const Scratch scratch;
  auto options = quick(1, 1000);
  options.deadline = 600s;
  options.total_deadline = 1s;
  options.failure_score = -3.0;
  auto scorer =
      scorer_of(python("reply(r, 1) if r['response'] == '0' else time.sleep(1000)"), scratch, options);
  REQUIRE(scorer.ok());
  Samples samples(20);
  const auto begin = std::chrono::steady_clock::now();
  const auto rewards = (*scorer)->score(samples.requests);
  CHECK(std::chrono::steady_clock::now() - begin < 60s);
  REQUIRE(rewards.ok());
  CHECK(rewards->front().score == 1.0);
  for (size_t i = 1; i < 20; ++i) CHECK(((*rewards)[i] == Reward{-3.0, std::nullopt, "", true}));

  options.failure_score.reset();
  auto strict = scorer_of({"sleep", "1000"}, scratch, options);
  REQUIRE(strict.ok());
  const auto late = (*strict)->score(samples.requests);
  CHECK(exit_code(late.status()) == ExitCode::kUnavailable);
  CHECK(has(std::string(message_of(late.status())), "1 of 1001 attempts"));
}

TEST_CASE("a program that is not there is refused at the start") {
  const Scratch scratch;
  const auto missing = scorer_of({"/nonexistent/scorer"}, scratch, quick(1, 0));
  CHECK(exit_code(missing.status()) == ExitCode::kBadRecipe);
  CHECK(exit_code(scorer_of({"accord-no-such-scorer"}, scratch, quick(1, 0)).status()) ==
        ExitCode::kBadRecipe);
}

// A transport of other code: its mistakes are found here, too.
TEST_CASE("batches that run at once keep their places and non-finite scores are errors") {
  struct Threads : Transport {
    Status start(const Deadline&) override { return absl::OkStatus(); }
    StatusOr<std::vector<Reward>> attempt(std::span<const ScoreRequest> batch, const Deadline&) override {
      const double first = std::stod(std::string(batch.front().response));
      std::this_thread::sleep_for(std::chrono::milliseconds(static_cast<int>(40 - first)));
      std::vector<Reward> rewards;
      for (const ScoreRequest& request : batch) {
        rewards.push_back({std::stod(std::string(request.response)) * scale, std::nullopt, "", false});
      }
      return rewards;
    }
    int32_t concurrency() const override { return 4; }
    double scale = 1.0;
  };
  Samples samples(30);
  auto scorer = make_external_scorer(std::make_unique<Threads>(), quick(3, 0));
  REQUIRE(scorer.ok());
  const auto rewards = (*scorer)->score(samples.requests);
  REQUIRE(rewards.ok());
  for (size_t i = 0; i < 30; ++i) CHECK((*rewards)[i].score == static_cast<double>(i));

  auto broken = std::make_unique<Threads>();
  broken->scale = std::numeric_limits<double>::infinity();
  auto wrong = make_external_scorer(std::move(broken), quick(3, 0));
  REQUIRE(wrong.ok());
  CHECK(exit_code((*wrong)->score(samples.requests).status()) == ExitCode::kBadData);
}

}  // namespace accord::reward
