// The controller's port: registration, liveness, the rendezvous store, and who is turned away.
#include "rpc/control_server.hpp"

#include <chrono>
#include <future>
#include <mutex>
#include <thread>

#include "accord/v1/control.grpc.pb.h"
#include "accord/v1/status.grpc.pb.h"
#include "rpc/grpc_status.hpp"
#include "rpc/grpc_store.hpp"
#include "rpc/status_client.hpp"
#include "support/catch.hpp"

namespace accord::rpc {
namespace {

using namespace std::chrono_literals;

const Identity kIdentity{"run-a", 3};

ControlServer::Options options_of(const std::string& listen = "127.0.0.1:0") {
  return {listen, "build-1", kIdentity, {"trainer/0", "rollout/0", "rollout/1"}};
}

// A server and the losses that it reported.
struct Fixture {
  controller::RunState state;
  std::mutex mutex;
  std::vector<std::string> lost;
  std::unique_ptr<ControlServer> server;
  std::unique_ptr<v1::Control::Stub> stub;

  Fixture() {
    auto started = ControlServer::start(options_of(), state, [this](const std::string& name) {
      const std::lock_guard lock(mutex);
      lost.push_back(name);
    });
    REQUIRE(started.ok());
    server = *std::move(started);
    stub = v1::Control::NewStub(make_channel(server->address()));
  }

  std::vector<std::string> losses() {
    const std::lock_guard lock(mutex);
    return lost;
  }

  grpc::Status register_as(v1::Pool pool, int rank, int64_t pid, const std::string& build = "build-1",
                           v1::RegisterReply* reply = nullptr) {
    v1::RegisterRequest request;
    request.set_pool(pool);
    request.set_rank(rank);
    request.set_pid(pid);
    request.set_address("127.0.0.1:" + std::to_string(pid));
    request.set_build(build);
    v1::RegisterReply local;
    grpc::ClientContext context;
    return stub->Register(&context, request, reply != nullptr ? reply : &local);
  }
};

// An open Attach stream.
struct Attachment {
  grpc::ClientContext context;
  std::unique_ptr<grpc::ClientReader<v1::AttachEvent>> reader;
  v1::AttachEvent event;

  Attachment(v1::Control::Stub& stub, v1::Pool pool, int rank, const Identity& identity = kIdentity,
             int64_t pid = 0) {
    attach_identity(context, identity);
    context.set_deadline(std::chrono::system_clock::now() +
                         30s);  // ends a stream that should have been refused
    v1::AttachRequest request;
    request.set_pool(pool);
    request.set_rank(rank);
    // The pids that these tests register with.
    request.set_address("127.0.0.1:" + std::to_string(pid != 0                   ? pid
                                                      : pool == v1::POOL_TRAINER ? 40
                                                                                 : 41 + rank));
    reader = stub.Attach(&context, request);
  }
  ~Attachment() {
    context.TryCancel();
    if (reader) {
      while (reader->Read(&event)) {
      }
      static_cast<void>(reader->Finish());
    }
  }
  bool read() { return reader->Read(&event); }
  grpc::Status finish() {
    const grpc::Status status = reader->Finish();
    reader.reset();
    return status;
  }
};

template <class Condition>
bool eventually(const Condition& condition) {
  const auto deadline = std::chrono::steady_clock::now() + 20s;
  while (!condition() && std::chrono::steady_clock::now() < deadline) {
    std::this_thread::sleep_for(5ms);
  }
  return condition();
}

std::string text_of(const Status& status) { return std::string(message_of(status)); }

bool contains(const std::string& text, const std::string& part) {
  return text.find(part) != std::string::npos;
}

}  // namespace

TEST_CASE("a worker that registers learns the run and the epoch") {
  Fixture f;
  v1::RegisterReply reply;
  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 1, 41, "build-1", &reply).ok());
  CHECK(reply.run_id() == "run-a");
  CHECK(reply.epoch() == 3);
  const controller::RunSnapshot snapshot = f.state.snapshot();
  REQUIRE(snapshot.workers.size() == 1);
  CHECK(snapshot.workers[0].name == "rollout/1");
  CHECK(snapshot.workers[0].pid == 41);
  CHECK(snapshot.workers[0].state == "registered");
}

TEST_CASE("a second worker of the same name is refused, the same one asking again is not") {
  Fixture f;
  REQUIRE(f.register_as(v1::POOL_TRAINER, 0, 41).ok());
  CHECK(f.register_as(v1::POOL_TRAINER, 0, 41).ok());
  const Status refused = from_grpc(f.register_as(v1::POOL_TRAINER, 0, 42), "Register");
  CHECK(exit_code(refused) == ExitCode::kUsage);
  CHECK(contains(text_of(refused), "trainer/0 is already registered by pid 41 at 127.0.0.1:41"));
  CHECK(f.state.snapshot().workers[0].pid == 41);
  // Another rank with another pid is no duplicate.
  CHECK(f.register_as(v1::POOL_ROLLOUT, 0, 42).ok());
}

TEST_CASE("a worker of another build is refused, and both builds are named") {
  Fixture f;
  const grpc::Status answer = f.register_as(v1::POOL_ROLLOUT, 0, 41, "build-2");
  const Status refused = from_grpc(answer, "Register");
  CHECK(exit_code(refused) == ExitCode::kUnavailable);
  CHECK(contains(text_of(refused), "'build-2'"));
  CHECK(contains(text_of(refused), "'build-1'"));
  CHECK(f.state.snapshot().workers.empty());
  // An answer, not a transport failure: a worker that retries unreachable controllers must stop at this one.
  CHECK_FALSE(answer.error_details().empty());
}

TEST_CASE("a rank that the run does not have is refused") {
  Fixture f;
  const Status refused = from_grpc(f.register_as(v1::POOL_ROLLOUT, 2, 41), "Register");
  CHECK(exit_code(refused) == ExitCode::kUsage);
  CHECK(contains(text_of(refused), "this run has no rollout/2"));
  CHECK(contains(text_of(refused), "trainer/0, rollout/0, rollout/1"));
}

TEST_CASE("calls of another run or epoch are refused with FAILED_PRECONDITION") {
  Fixture f;
  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 0, 41).ok());
  for (const Identity& wrong :
       {Identity{"run-b", 3}, Identity{"run-a", 2}, Identity{"run-a", 4}, Identity{}}) {
    CAPTURE(wrong.run_id, wrong.epoch);
    Attachment attachment(*f.stub, v1::POOL_ROLLOUT, 0, wrong);
    CHECK_FALSE(attachment.read());
    const grpc::Status attached = attachment.finish();
    CHECK(attached.error_code() == grpc::StatusCode::FAILED_PRECONDITION);
    CHECK(contains(attached.error_message(), "run-a"));

    grpc::ClientContext set_context, get_context;
    attach_identity(set_context, wrong);
    attach_identity(get_context, wrong);
    v1::StoreSetRequest set;
    set.set_key("key");
    v1::StoreSetReply set_reply;
    CHECK(f.stub->StoreSet(&set_context, set, &set_reply).error_code() ==
          grpc::StatusCode::FAILED_PRECONDITION);
    v1::StoreGetRequest get;
    get.set_key("key");
    v1::StoreGetReply get_reply;
    CHECK(f.stub->StoreGet(&get_context, get, &get_reply).error_code() ==
          grpc::StatusCode::FAILED_PRECONDITION);
  }
  // Without any identity at all.
  grpc::ClientContext bare;
  v1::StoreSetReply reply;
  CHECK(f.stub->StoreSet(&bare, v1::StoreSetRequest(), &reply).error_code() ==
        grpc::StatusCode::FAILED_PRECONDITION);
  // None of these was taken for a loss.
  CHECK(f.losses().empty());
}

TEST_CASE("only a registered worker attaches, and only once") {
  Fixture f;
  Attachment unknown(*f.stub, v1::POOL_ROLLOUT, 0);
  CHECK_FALSE(unknown.read());
  CHECK(contains(unknown.finish().error_message(), "rollout/0 is not registered"));

  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 0, 41).ok());
  Attachment first(*f.stub, v1::POOL_ROLLOUT, 0);
  REQUIRE(first.read());
  CHECK_FALSE(first.event.shut_down());
  Attachment second(*f.stub, v1::POOL_ROLLOUT, 0);
  CHECK_FALSE(second.read());
  CHECK(contains(second.finish().error_message(), "attached already"));
  CHECK(f.losses().empty());
}

TEST_CASE("the wait for workers ends with all of them, or names the missing ones") {
  Fixture f;
  const auto go_on = [] { return absl::OkStatus(); };
  REQUIRE(f.register_as(v1::POOL_TRAINER, 0, 40).ok());
  Attachment trainer(*f.stub, v1::POOL_TRAINER, 0);
  REQUIRE(trainer.read());
  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 0, 41).ok());  // registers, but never attaches

  const auto missing = f.server->wait_registered(50ms, go_on);
  REQUIRE_FALSE(missing.ok());
  CHECK(exit_code(missing.status()) == ExitCode::kWorkerLost);
  CHECK(contains(text_of(missing.status()), "rollout/0, rollout/1"));
  CHECK_FALSE(contains(text_of(missing.status()), "trainer/0"));

  const auto given_up = f.server->wait_registered(60s, [] { return unavailable_error("a child died"); });
  REQUIRE_FALSE(given_up.ok());
  CHECK(text_of(given_up.status()) == "a child died");

  Attachment first(*f.stub, v1::POOL_ROLLOUT, 0);
  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 1, 42).ok());
  Attachment second(*f.stub, v1::POOL_ROLLOUT, 1);
  const auto members = f.server->wait_registered(60s, go_on);
  REQUIRE(members.ok());
  CHECK(members->size() == 3);
  CHECK(members->at("rollout/1").pid == 42);
  CHECK(members->at("rollout/1").address == "127.0.0.1:42");
}

TEST_CASE("a worker that leaves before the run began may be replaced") {
  Fixture f;
  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 0, 41).ok());
  {
    Attachment leaves(*f.stub, v1::POOL_ROLLOUT, 0);
    REQUIRE(leaves.read());
    CHECK_FALSE(f.register_as(v1::POOL_ROLLOUT, 0, 51).ok());
  }
  REQUIRE(eventually([&] { return f.register_as(v1::POOL_ROLLOUT, 0, 51).ok(); }));
  CHECK(f.losses().empty());
  CHECK(f.state.snapshot().workers[0].pid == 51);
  // The first one coming back is the duplicate now.
  Attachment late(*f.stub, v1::POOL_ROLLOUT, 0);
  CHECK_FALSE(late.read());
  Attachment second(*f.stub, v1::POOL_ROLLOUT, 0, kIdentity, 51);
  CHECK(second.read());
}

TEST_CASE("a worker that registers and never attaches blocks its place for a while only") {
  controller::RunState state;
  ControlServer::Options options = options_of();
  options.attach_within = 300ms;
  auto server = ControlServer::start(options, state, [](const std::string&) {});
  REQUIRE(server.ok());
  const auto stub = v1::Control::NewStub(make_channel((*server)->address()));
  const auto register_as = [&](int64_t pid) {
    v1::RegisterRequest request;
    request.set_pool(v1::POOL_ROLLOUT);
    request.set_pid(pid);
    request.set_address("127.0.0.1:" + std::to_string(pid));
    request.set_build("build-1");
    v1::RegisterReply reply;
    grpc::ClientContext context;
    return stub->Register(&context, request, &reply).ok();
  };
  REQUIRE(register_as(41));
  CHECK_FALSE(register_as(51));
  CHECK(eventually([&] { return register_as(51); }));
  CHECK_FALSE(register_as(41));
}

TEST_CASE("weights are verified by the loop and the answer goes to whoever asked") {
  Fixture f;
  const auto ask = [&] {
    return std::async(std::launch::async, [&] { return verify_weights(f.server->address()); });
  };
  CHECK_FALSE(f.state.weight_check_requested());
  auto asked = ask();
  REQUIRE(eventually([&] { return f.state.weight_check_requested().has_value(); }));
  controller::WeightCheck check;
  check.version = 7;
  check.workers = 3;
  check.tensors = 45;
  check.differences = {{"rollout/1", "lm_head.weight", "aa", "bb"}};
  f.state.answer_weight_check(*f.state.weight_check_requested(), check);
  const auto answer = asked.get();
  REQUIRE(answer.ok());
  CHECK(answer->version == 7);
  CHECK(answer->workers == 3);
  CHECK(answer->tensors == 45);
  REQUIRE(answer->differences.size() == 1);
  CHECK(answer->differences[0].worker == "rollout/1");
  CHECK(answer->differences[0].tensor == "lm_head.weight");
  CHECK(answer->differences[0].ledger == "aa");
  CHECK(answer->differences[0].held == "bb");
  CHECK_FALSE(f.state.weight_check_requested());

  auto failed = ask();
  REQUIRE(eventually([&] { return f.state.weight_check_requested().has_value(); }));
  f.state.answer_weight_check(*f.state.weight_check_requested(), data_error("ledger.jsonl: is gone"));
  CHECK(contains(text_of(failed.get().status()), "ledger.jsonl: is gone"));

  auto late = ask();
  REQUIRE(eventually([&] { return f.state.weight_check_requested().has_value(); }));
  f.state.finish();
  const Status ended = late.get().status();
  CHECK(exit_code(ended) == ExitCode::kUnavailable);
  CHECK(contains(text_of(ended), "the run ended"));
}

TEST_CASE("a connection that ends is a loss, once, until the workers are told to leave") {
  Fixture f;
  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 0, 41).ok());
  REQUIRE(f.register_as(v1::POOL_ROLLOUT, 1, 42).ok());
  REQUIRE(f.register_as(v1::POOL_TRAINER, 0, 40).ok());
  Attachment stays(*f.stub, v1::POOL_ROLLOUT, 1);
  REQUIRE(stays.read());
  Attachment trainer(*f.stub, v1::POOL_TRAINER, 0);
  REQUIRE(trainer.read());
  {
    Attachment leaves(*f.stub, v1::POOL_ROLLOUT, 0);
    REQUIRE(leaves.read());
    REQUIRE(f.server->wait_registered(60s, [] { return absl::OkStatus(); }).ok());
    CHECK(f.losses().empty());
  }
  REQUIRE(eventually([&] { return !f.losses().empty(); }));
  CHECK(f.losses() == std::vector<std::string>{"rollout/0"});
  CHECK(f.state.snapshot().workers[0].state == "lost");

  f.server->shut_down_workers("enough");
  bool told = false;
  while (!told && stays.read()) {
    told = stays.event.shut_down();
  }
  CHECK(told);
  CHECK(stays.event.reason() == "enough");
  CHECK_FALSE(stays.read());
  CHECK(stays.finish().ok());
  CHECK(f.losses().size() == 1);
}

TEST_CASE("the store hands out what was set, waits for what was not, and limits sizes") {
  Fixture f;
  GrpcStore a, b;
  a.connect(f.server->address(), kIdentity);
  b.connect(f.server->address(), kIdentity);
  const std::string value("bytes\0with a zero", 17);
  REQUIRE(a.set("weights/0", value).ok());
  const auto got = b.get("weights/0", Deadline::after(10s));
  REQUIRE(got.ok());
  CHECK(*got == value);

  auto waiting = std::async(std::launch::async, [&] { return b.get("weights/1", Deadline::after(20s)); });
  CHECK(waiting.wait_for(50ms) == std::future_status::timeout);
  REQUIRE(a.set("weights/1", "late").ok());
  const auto late = waiting.get();
  REQUIRE(late.ok());
  CHECK(*late == "late");

  const auto never = b.get("weights/2", Deadline::after(50ms));
  CHECK(exit_code(never.status()) == ExitCode::kUnavailable);
  CHECK(contains(text_of(never.status()), "weights/2"));
  CHECK(exit_code(a.set("big", std::string((1 << 20) + 1, 'x'))) == ExitCode::kBadData);
}

TEST_CASE("only loopback addresses are listened on") {
  for (const char* address :
       {"0.0.0.0:0", "192.168.1.1:5000", "[::]:0", "example.org:1", "127.0.0.1", ":0", ""}) {
    CAPTURE(address);
    CHECK(exit_code(check_loopback(address)) == ExitCode::kUsage);
    controller::RunState state;
    const auto started = ControlServer::start(options_of(address), state, [](const std::string&) {});
    REQUIRE_FALSE(started.ok());
    CHECK(exit_code(started.status()) == ExitCode::kUsage);
    CHECK(contains(text_of(started.status()), "loopback"));
  }
  for (const char* address : {"127.0.0.1:0", "127.0.0.2:80", "localhost:0", "[::1]:0"}) {
    CAPTURE(address);
    CHECK(check_loopback(address).ok());
  }
}

TEST_CASE("a port in use is an error, not shared") {
  Fixture f;
  controller::RunState state;
  const auto second = ControlServer::start(options_of(f.server->address()), state, [](const std::string&) {});
  REQUIRE_FALSE(second.ok());
  CHECK(exit_code(second.status()) == ExitCode::kUnavailable);
  CHECK(contains(text_of(second.status()), f.server->address()));
}

TEST_CASE("status, watch and stop see the run as it is") {
  Fixture f;
  f.state.describe("demo", "run-a", 3, "runs/demo", 10);
  f.state.set_phase("rollout");
  f.state.commit({1, {{"train/loss", 0.25}}});
  f.state.warn("something");
  for (const char* name : {"trainer/0", "rollout/10", "rollout/2"}) {
    f.state.set_worker({name, "127.0.0.1:1", 7, "ready", 1});
  }
  const Wait wait(&f.state.waits(), "Train of step 2 on trainer/0", Deadline::after(100s));

  const auto info = get_status(f.server->address());
  REQUIRE(info.ok());
  CHECK(info->run.run == "demo");
  CHECK(info->run.epoch == 3);
  CHECK(info->run.phase == "rollout");
  CHECK(info->run.step == 1);
  CHECK(info->run.steps == 10);
  CHECK(info->build == "build-1");
  REQUIRE(info->run.workers.size() == 3);
  CHECK(info->run.workers[0].name == "rollout/2");
  CHECK(info->run.workers[1].name == "rollout/10");
  CHECK(info->run.workers[2].name == "trainer/0");
  CHECK(info->run.warnings == std::vector<std::string>{"something"});
  REQUIRE(info->waits.size() == 1);
  CHECK(info->waits[0].reason == "Train of step 2 on trainer/0");
  CHECK(info->waits[0].deadline_seconds == Approx(100.0).margin(1.0));

  std::vector<uint64_t> steps;
  auto watching = std::async(std::launch::async, [&] {
    return watch(f.server->address(),
                 [&](const controller::StepRecord& record) { steps.push_back(record.step); });
  });
  f.state.commit({2, {{"train/loss", 0.125}}});
  CHECK_FALSE(f.state.stop_requested());
  const auto last = stop(f.server->address(), "enough", false);
  REQUIRE(last.ok());
  CHECK(*last == 3);
  REQUIRE(f.state.stop_requested());
  CHECK(f.state.stop_requested()->reason == "enough");
  f.state.commit({3, {{"train/loss", 0.0625}}});
  f.state.finish();
  CHECK(watching.get().ok());
  CHECK(steps == std::vector<uint64_t>{1, 2, 3});
}

TEST_CASE("nobody at an address is unavailable, and said so") {
  std::string address;
  {
    Fixture f;
    address = f.server->address();
  }
  const Status status = get_status(address).status();
  CHECK(exit_code(status) == ExitCode::kUnavailable);
  CHECK(contains(text_of(status), address));
}

}  // namespace accord::rpc
