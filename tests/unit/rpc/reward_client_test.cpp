// A RewardService of another program: order, lengths, deadlines, cancellation.
#include "rpc/reward_client.hpp"

#include <grpcpp/grpcpp.h>

#include <atomic>
#include <chrono>
#include <cmath>
#include <functional>
#include <string>
#include <thread>

#include "accord/v1/reward.grpc.pb.h"
#include "support/catch.hpp"

namespace accord::rpc {
namespace {

using namespace std::chrono_literals;
using Answer = std::function<grpc::Status(grpc::ServerContext&, const v1::ScoreRequest&, v1::ScoreReply&)>;

class Service : public v1::RewardService::Service {
 public:
  explicit Service(Answer answer) : answer_(std::move(answer)) {
    grpc::ServerBuilder builder;
    builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port_);
    builder.RegisterService(this);
    server_ = builder.BuildAndStart();
    REQUIRE(server_ != nullptr);
  }
  ~Service() override { server_->Shutdown(std::chrono::system_clock::now()); }
  std::string address() const { return "127.0.0.1:" + std::to_string(port_); }

 private:
  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                     v1::ScoreReply* reply) override {
    return request->samples().empty() ? grpc::Status::OK : answer_(*context, *request, *reply);
  }
  const Answer answer_;
  int port_ = 0;
  std::unique_ptr<grpc::Server> server_;
};

grpc::Status lengths(grpc::ServerContext&, const v1::ScoreRequest& request, v1::ScoreReply& reply) {
  for (const v1::RewardSample& sample : request.samples()) {
    v1::RewardValue& value = *reply.add_rewards();
    value.set_index(static_cast<uint32_t>(reply.rewards_size() - 1));
    value.set_score(std::stod(sample.response()));
    value.set_pred(sample.label() + sample.messages(0).content() + sample.metadata_json());
  }
  return grpc::Status::OK;
}

StatusOr<std::vector<reward::Reward>> score(const std::string& address, reward::ExternalOptions options,
                                            Canceller& canceller, size_t count = 30) {
  std::vector<std::string> texts;
  for (size_t i = 0; i < count; ++i) texts.push_back(std::to_string(i));
  std::vector<reward::ScoreRequest> requests(count);
  for (size_t i = 0; i < count; ++i) {
    requests[i].set = "train";
    requests[i].response = texts[i];
    requests[i].label = "L";
    requests[i].messages = R"([{"role":"user","content":"q"}])";
    requests[i].metadata = R"({"a":1})";
  }
  ACCORD_ASSIGN_OR_RETURN(auto scorer,
                          make_external_scorer(make_reward_transport(address, canceller), options));
  return scorer->score(requests);
}

reward::ExternalOptions quick() {
  reward::ExternalOptions options;
  options.batch_size = 4;
  options.retries = 1;
  options.pause = 1ms;
  return options;
}

}  // namespace

TEST_CASE("a reward service scores batches at once and in order") {
  std::atomic<int> calls{0};
  const Service service([&](auto& context, const auto& request, auto& reply) {
    std::this_thread::sleep_for(std::chrono::milliseconds(40 - 5 * (calls++ % 8)));
    return lengths(context, request, reply);
  });
  Canceller canceller;
  const auto rewards = score(service.address(), quick(), canceller);
  INFO((rewards.ok() ? std::string() : std::string(message_of(rewards.status()))));
  REQUIRE(rewards.ok());
  for (size_t i = 0; i < 30; ++i) {
    CHECK(((*rewards)[i] == reward::Reward{static_cast<double>(i), "Lq{\"a\":1}", "", false}));
  }
  CHECK(calls == 8);
}

TEST_CASE("replies of a reward service that do not fit are errors") {
  const std::vector<std::function<void(v1::ScoreReply&)>> mistakes = {
      [](v1::ScoreReply& reply) { reply.mutable_rewards()->RemoveLast(); },
      [](v1::ScoreReply& reply) { reply.add_rewards()->set_index(4); },
      [](v1::ScoreReply& reply) { reply.mutable_rewards()->SwapElements(0, 1); },
      [](v1::ScoreReply& reply) { reply.mutable_rewards(1)->set_score(std::nan("")); },
      [](v1::ScoreReply& reply) { reply.mutable_rewards(1)->set_extra_json("[1]"); },
  };
  for (const auto& mistake : mistakes) {
    const Service service([&](auto& context, const auto& request, auto& reply) {
      const grpc::Status status = lengths(context, request, reply);
      mistake(reply);
      return status;
    });
    Canceller canceller;
    CHECK(exit_code(score(service.address(), quick(), canceller, 4).status()) == ExitCode::kBadData);
  }
}

TEST_CASE("a flaky reward service is asked again and a broken one scores by the policy") {
  std::atomic<int> calls{0};
  const Service service([&](auto& context, const auto& request, auto& reply) {
    return calls++ % 2 == 0 ? grpc::Status(grpc::StatusCode::UNAVAILABLE, "busy")
                            : lengths(context, request, reply);
  });
  Canceller canceller;
  const auto again = score(service.address(), quick(), canceller, 4);
  REQUIRE(again.ok());
  CHECK((*again)[3].score == 3.0);
  auto options = quick();
  options.retries = 0;
  options.failure_score = -1.0;
  const auto failed = score(service.address(), options, canceller, 4);
  REQUIRE(failed.ok());
  CHECK((*failed)[3].failed);
  CHECK((*failed)[3].score == -1.0);
}

TEST_CASE("a reward service that hangs ends at the deadline or with the run") {
  const Service service([](auto& context, const auto&, auto&) {
    while (!context.IsCancelled()) std::this_thread::sleep_for(5ms);
    return grpc::Status::OK;
  });
  auto options = quick();
  options.deadline = 2s;
  options.retries = 0;
  Canceller canceller;
  const auto late = score(service.address(), options, canceller, 4);
  CHECK(exit_code(late.status()) == ExitCode::kUnavailable);
  CHECK(std::string(message_of(late.status())).find("reward.deadline_s") != std::string::npos);

  options.deadline = 600s;
  options.failure_score = 0.0;
  std::thread loss([&] {
    std::this_thread::sleep_for(500ms);
    canceller.cancel_all();
  });
  CHECK(absl::IsCancelled(score(service.address(), options, canceller, 4).status()));
  loss.join();
}

TEST_CASE("a reward service that is not there is found at the start") {
  auto options = quick();
  options.deadline = 500ms;
  Canceller canceller;
  const auto rewards = score("127.0.0.1:1", options, canceller, 1);
  CHECK(exit_code(rewards.status()) == ExitCode::kUnavailable);
  CHECK(std::string(message_of(rewards.status())).find("reward.address") == 0);
}

TEST_CASE("a command runs with consent only") {
  recipe::RewardPart part{"external", recipe::ExternalReward{}};
  part.external->command = {"sh", "-c", "cat"};
  CHECK(exit_code(check_reward(part, false)) == ExitCode::kUsage);
  CHECK(check_reward(part, true).ok());
  part.external->command = {"/nonexistent"};
  CHECK(exit_code(check_reward(part, true)) == ExitCode::kBadRecipe);
}

}  // namespace accord::rpc
