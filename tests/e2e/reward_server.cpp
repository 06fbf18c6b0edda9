// A RewardService of another program, for external_reward_test.py: TYPE [FAULT [STEP]]. It scores as the
// built-in TYPE does; from STEP on it has the FAULT: hang, crash, nan, short (a reply too few), swap, refuse,
// once (refuses each batch once). It prints its address, and ends when its standard input does.
#include <grpcpp/grpcpp.h>
#include <unistd.h>

#include <cstdio>
#include <cstdlib>
#include <limits>
#include <memory>
#include <mutex>
#include <set>
#include <string>
#include <thread>
#include <tuple>

#include "accord/v1/reward.grpc.pb.h"
#include "reward/reward.hpp"

namespace {

namespace v1 = accord::v1;

class Service : public v1::RewardService::Service {
 public:
  Service(std::unique_ptr<accord::reward::Scorer> scorer, std::string fault, uint64_t first_step)
      : scorer_(std::move(scorer)), fault_(std::move(fault)), first_step_(first_step) {}

 private:
  grpc::Status Score(grpc::ServerContext* context, const v1::ScoreRequest* request,
                     v1::ScoreReply* reply) override {
    for (const v1::RewardSample& sample : request->samples()) {
      const accord::reward::Score score = scorer_->score(sample.response(), sample.label());
      v1::RewardValue& value = *reply->add_rewards();
      value.set_index(static_cast<uint32_t>(reply->rewards_size() - 1));
      value.set_score(score.score);
      if (score.pred) {
        value.set_pred(*score.pred);
      }
    }
    if (request->samples().empty() || request->samples(0).step() < first_step_) {
      return grpc::Status::OK;
    }
    return spoil(*context, request->samples(0), *reply);
  }

  grpc::Status spoil(const grpc::ServerContext& context, const v1::RewardSample& first,
                     v1::ScoreReply& reply) {
    if (fault_ == "hang") {
      while (!context.IsCancelled()) {
        std::this_thread::sleep_for(std::chrono::milliseconds(5));
      }
    } else if (fault_ == "crash") {
      std::_Exit(1);
    } else if (fault_ == "nan") {
      reply.mutable_rewards(0)->set_score(std::numeric_limits<double>::quiet_NaN());
    } else if (fault_ == "short") {
      reply.mutable_rewards()->RemoveLast();
    } else if (fault_ == "swap") {
      reply.mutable_rewards()->SwapElements(0, reply.rewards_size() - 1);
    } else if (fault_ == "refuse" || (fault_ == "once" && is_new(first))) {
      return {grpc::StatusCode::RESOURCE_EXHAUSTED, "not now"};
    }
    return grpc::Status::OK;
  }

  bool is_new(const v1::RewardSample& first) {
    const std::lock_guard lock(mutex_);
    return seen_.insert({first.step(), first.prompt_id(), first.sample_index()}).second;
  }

  const std::unique_ptr<accord::reward::Scorer> scorer_;
  const std::string fault_;
  const uint64_t first_step_;
  std::mutex mutex_;
  std::set<std::tuple<uint64_t, uint64_t, uint32_t>> seen_;
};

}  // namespace

int main(int argc, char** argv) {
  auto scorer = accord::reward::make_scorer(argc > 1 ? argv[1] : "");
  if (!scorer.ok()) {
    std::fprintf(stderr, "usage: accord_reward_server TYPE [FAULT [STEP]]\n");
    return 64;
  }
  Service service(*std::move(scorer), argc > 2 ? argv[2] : "",
                  argc > 3 ? std::strtoull(argv[3], nullptr, 10) : 0);
  int port = 0;
  grpc::ServerBuilder builder;
  builder.AddListeningPort("127.0.0.1:0", grpc::InsecureServerCredentials(), &port);
  builder.RegisterService(&service);
  const std::unique_ptr<grpc::Server> server = builder.BuildAndStart();
  if (!server) {
    return 1;
  }
  std::printf("127.0.0.1:%d\n", port);
  std::fflush(stdout);
  char byte = 0;
  while (read(STDIN_FILENO, &byte, 1) > 0) {
  }
  server->Shutdown(std::chrono::system_clock::now());
  return 0;
}
