#include "rpc/reward_client.hpp"

#include <fmt/ranges.h>

#include <cmath>
#include <limits>
#include <nlohmann/json.hpp>

#include "accord/v1/reward.grpc.pb.h"
#include "base/strict_json.hpp"
#include "reward/child_process.hpp"
#include "reward/process_scorer.hpp"
#include "reward/score_lines.hpp"
#include "rpc/identity.hpp"

namespace accord::rpc {
namespace {

void fill(const reward::ScoreRequest& from, v1::RewardSample& to) {
  to.set_set(std::string(from.set));
  to.set_step(from.step);
  to.set_prompt_id(from.prompt_id);
  to.set_sample_index(from.sample_index);
  to.set_prompt(reward::whole_characters(from.prompt));
  for (const auto& message : nlohmann::json::parse(from.messages)) {
    v1::RewardMessage& added = *to.add_messages();
    added.set_role(message.at("role").get<std::string>());
    added.set_content(message.at("content").get<std::string>());
  }
  to.set_response(reward::whole_characters(from.response));
  to.set_label(std::string(from.label));
  to.set_metadata_json(std::string(from.metadata));
  to.set_truncated(from.truncated);
}

// Without the pings of make_channel: servers of other programs close connections that ping more often than
// they like. The deadline of each call finds a peer that is gone.
std::shared_ptr<grpc::Channel> make_reward_channel(const std::string& address) {
  grpc::ChannelArguments arguments;
  arguments.SetMaxReceiveMessageSize(kMaxMessageBytes);
  arguments.SetMaxSendMessageSize(-1);  // what a server takes is its own choice
  arguments.SetInt(GRPC_ARG_USE_LOCAL_SUBCHANNEL_POOL, 1);
  arguments.SetInt(GRPC_ARG_ENABLE_HTTP_PROXY, 0);
  return grpc::CreateCustomChannel(address, grpc::InsecureChannelCredentials(), arguments);
}

class RewardClient : public reward::Transport {
 public:
  RewardClient(const std::string& address, Canceller& canceller)
      : name_("reward server " + address),
        canceller_(canceller),
        stub_(v1::RewardService::NewStub(make_reward_channel(address))) {}

  Status start(const Deadline& deadline) override {
    const Status status = attempt({}, deadline).status();
    return status.ok() ? status : annotate(status, "reward.address");
  }

  StatusOr<std::vector<reward::Reward>> attempt(std::span<const reward::ScoreRequest> batch,
                                                const Deadline& deadline) override {
    v1::ScoreRequest request;
    for (const reward::ScoreRequest& sample : batch) {
      fill(sample, *request.add_samples());
    }
    grpc::ClientContext context;
    const Canceller::Scope scope(canceller_, context);
    context.set_deadline(std::chrono::system_clock::now() + deadline.remaining());
    context.set_wait_for_ready(batch.empty());  // at the start it may still be coming up
    v1::ScoreReply reply;
    const grpc::Status status = stub_->Score(&context, request, &reply);
    if (!status.ok()) {
      return error_of(status);
    }
    StatusOr<std::vector<reward::Reward>> rewards = read(reply, batch.size());
    return rewards.ok() ? std::move(rewards) : annotate(rewards.status(), name_);
  }

  int32_t concurrency() const override { return kRewardCalls; }

 private:
  Status error_of(const grpc::Status& status) const {
    if (canceller_.cancelled()) {
      return annotate(reward::cancelled_error(), name_);
    }
    switch (status.error_code()) {
      case grpc::StatusCode::DEADLINE_EXCEEDED:
        return unavailable_error("{}: no reply in time (reward.deadline_s): {}", name_,
                                 status.error_message());
      case grpc::StatusCode::UNIMPLEMENTED:
        return unavailable_error("{}: does not offer accord.v1.RewardService ({})", name_,
                                 status.error_message());
      default:
        return unavailable_error("{}: status {}: {}", name_, static_cast<int>(status.error_code()),
                                 printable(status.error_message()));
    }
  }

  static StatusOr<std::vector<reward::Reward>> read(const v1::ScoreReply& reply, size_t count) {
    if (static_cast<size_t>(reply.rewards_size()) != count) {
      return data_error("it gave {} rewards for {} samples", reply.rewards_size(), count);
    }
    std::vector<reward::Reward> rewards;
    for (const v1::RewardValue& value : reply.rewards()) {
      if (value.index() != rewards.size()) {
        return data_error("reward {} of its reply is for sample {} (one per sample, in their order)",
                          rewards.size(), value.index());
      }
      if (!std::isfinite(value.score())) {
        return data_error("reward {} of its reply is {}; it must be a finite number", value.index(),
                          value.score());
      }
      const Status extra = reward::check_extra(value.extra_json());
      if (!extra.ok()) {
        return annotate(extra, fmt::format("extra_json of reward {}", value.index()));
      }
      reward::Reward& reward = rewards.emplace_back();
      reward.score = value.score();
      reward.extra = value.extra_json();
      if (value.has_pred()) {
        reward.pred = value.pred();
      }
    }
    return rewards;
  }

  const std::string name_;
  Canceller& canceller_;
  const std::unique_ptr<v1::RewardService::Stub> stub_;
};

}  // namespace

std::unique_ptr<reward::Transport> make_reward_transport(const std::string& address, Canceller& canceller) {
  return std::make_unique<RewardClient>(address, canceller);
}

Status check_reward(const recipe::RewardPart& reward, bool allow_exec) {
  if (!reward.external || reward.external->command.empty()) {
    return absl::OkStatus();
  }
  const std::vector<std::string>& command = reward.external->command;
  if (!allow_exec) {
    return usage_error(
        "reward.command: the recipe asks to execute '{}' on this machine; read that program, and give "
        "--allow-exec if it may run with your rights",
        fmt::join(command, " "));
  }
  const Status found = reward::ChildProcess::find_program(command.front()).status();
  return found.ok() ? found : annotate(found, "reward.command");
}

StatusOr<std::unique_ptr<reward::BatchScorer>> make_scorer(const recipe::RewardPart& reward,
                                                           const ScorerOptions& options,
                                                           Canceller& canceller) {
  if (!reward.external) {
    return reward::make_batch_scorer(reward.type);
  }
  ACCORD_RETURN_IF_ERROR(check_reward(reward, options.allow_exec));
  const recipe::ExternalReward& external = *reward.external;
  reward::ExternalOptions external_options;
  external_options.batch_size = external.batch_size;
  external_options.deadline = std::chrono::seconds(external.deadline_s);
  external_options.retries = external.retries;
  external_options.failure_score = external.failure_score;
  if (external.drops()) {
    external_options.failure_score = std::numeric_limits<double>::quiet_NaN();
  }
  external_options.total_deadline = std::chrono::seconds(external.total_deadline_s);
  external_options.cancelled = [&canceller] { return canceller.cancelled(); };
  external_options.waits = options.waits;
  return reward::make_external_scorer(
      external.address
          ? make_reward_transport(*external.address, canceller)
          : reward::make_process_transport({external.command, options.log_path, external_options.cancelled}),
      external_options);
}

}  // namespace accord::rpc
