// The steps of the trainer: micro-batches, records, update.
#include <algorithm>
#include <cmath>
#include <utility>

#include "trainer/batch_stats.hpp"
#include "trainer/objective.hpp"
#include "trainer/optimizer.hpp"
#include "trainer/samples.hpp"
#include "trainer/token_objective.hpp"
#include "trainer/trainer_impl.hpp"

namespace accord::trainer {

namespace {

StepSequences sequences_of(std::span<const TrainSample> samples, int64_t tokens_per_microbatch) {
  StepSequences out;
  for (const TrainSample& s : samples) out.add(s.tokens, s.prompt_length, s.temperature);
  out.pack(tokens_per_microbatch);
  return out;
}

StepSequences sequences_of(std::span<const SftSample> samples, int64_t tokens_per_microbatch) {
  StepSequences out;
  for (const SftSample& s : samples) out.add(s.tokens, s.prompt_length, 1.0F);
  out.pack(tokens_per_microbatch);
  return out;
}

StepFacts facts_of(const StepSequences& sequences, uint64_t step, int64_t optimizer_steps) {
  StepFacts facts;
  facts.step = step;
  facts.optimizer_steps = optimizer_steps;
  facts.num_samples = static_cast<int64_t>(sequences.sequences.size());
  facts.num_tokens = sequences.num_tokens;
  facts.num_micro_batches = static_cast<int64_t>(sequences.micro_batches.size());
  return facts;
}

// How many of the experts chosen by score the samples' routing knows, on one rank.
struct ExpertOverlap {
  double common = 0.0;
  double chosen = 0.0;
};

}  // namespace

void StepSequences::add(std::span<const int32_t> tokens, int32_t prompt_length, float temperature) {
  sequences.push_back({tokens, prompt_length});
  temperatures.push_back(temperature);
  first_token.push_back(num_tokens);
  lengths.push_back(sequences.back().num_responses());
  num_tokens += lengths.back();
}

void StepSequences::pack(int64_t tokens_per_microbatch) {
  std::vector<int64_t> rows;
  for (const Sequence& s : sequences) rows.push_back(s.num_rows());
  micro_batches = pack_sequences(rows, tokens_per_microbatch);
}

Status Trainer::Impl::check_ready() const {
  if (!backend->bound()) return internal_error("trainer: bind_arena was not called before the first step");
  if (options.expert_parallel > 1 && !experts_connected) {
    return internal_error("trainer: connect_experts was not called before the first step");
  }
  return absl::OkStatus();
}

Status Trainer::Impl::check_samples(std::span<const TrainSample> samples, bool needs_logprobs) const {
  ACCORD_RETURN_IF_ERROR(check_ready());
  if (samples.empty() && !group.alone()) return absl::OkStatus();
  return validate_samples(samples, config, needs_logprobs);
}

Status Trainer::Impl::check_step(std::span<const TrainSample> samples,
                                 std::span<const int64_t> places) const {
  ACCORD_RETURN_IF_ERROR(check_samples(samples, true));
  return check_places(places, samples.size());
}

Status Trainer::Impl::check_step(std::span<const SftSample> samples, std::span<const int64_t> places) const {
  ACCORD_RETURN_IF_ERROR(check_ready());
  if (!samples.empty() || group.alone()) ACCORD_RETURN_IF_ERROR(validate_samples(samples, config));
  return check_places(places, samples.size());
}

Status Trainer::Impl::check_places(std::span<const int64_t> places, size_t num_samples) const {
  if (places.size() == num_samples || (places.empty() && group.alone())) return absl::OkStatus();
  return internal_error("trainer: {} samples with {} places in the step", num_samples, places.size());
}

Status Trainer::Impl::run_micro_batches(const StepSequences& step, int64_t rounds,
                                        std::span<const TrainSample> routed, bool backward,
                                        const LossFn& loss, RecordedRouting& recorded, Deadline deadline) {
  ACCORD_RETURN_IF_ERROR(backend->begin_passes(deadline));
  const std::vector<int32_t> none;
  PackedBatch packed;
  for (int64_t round = 0; round < rounds; ++round) {
    const size_t r = static_cast<size_t>(round);
    const std::vector<int32_t>& members = r < step.micro_batches.size() ? step.micro_batches[r] : none;
    std::vector<Sequence> sequences;
    std::vector<float> temperatures;
    std::vector<int64_t> first;  // packed index of each member's first response token
    int64_t count = 0;
    for (int32_t m : members) {
      sequences.push_back(step.sequences[static_cast<size_t>(m)]);
      temperatures.push_back(step.temperatures[static_cast<size_t>(m)]);
      first.push_back(count);
      count += sequences.back().num_responses();
    }
    packed.build(sequences);
    recorded.build(routed, members);
    PassRouting routing;
    if (!recorded.ids().empty()) {
      if (options.algorithm.routing_replay) routing.replay = recorded.ids();
      routing.observe = [&](int64_t layer, const float* probs_TE, const float* bias_E) {
        recorded.compare(layer, probs_TE, bias_E);
      };
    }
    const TokenLossFn token_loss = [&](int64_t token, const TokenValue& value) {
      const size_t s = static_cast<size_t>(packed.response_sequences()[static_cast<size_t>(token)]);
      return loss(static_cast<size_t>(members[s]), token - first[s], value);
    };
    ACCORD_RETURN_IF_ERROR(backward ? backend->forward_backward(packed, temperatures, routing, token_loss)
                                    : backend->forward(packed, temperatures, routing, token_loss));
  }
  return absl::OkStatus();
}

StatusOr<Metrics> Trainer::Impl::update(const std::string& what, Deadline deadline) {
  if (!group.alone()) {
    ACCORD_ASSIGN_OR_RETURN(Communicator* const communicator, group.communicator());
    ACCORD_RETURN_IF_ERROR(backend->reduce_gradients(*communicator, deadline));
  }
  struct Part {
    double squares = 0.0;
    int64_t non_finite = -1;
  };
  Part mine;
  ACCORD_ASSIGN_OR_RETURN(mine.squares, backend->gradient_squares());
  if (!std::isfinite(mine.squares)) {
    ACCORD_ASSIGN_OR_RETURN(mine.non_finite, backend->first_non_finite_gradient());
  }
  ACCORD_ASSIGN_OR_RETURN(const std::vector<Part> parts, group.gather(mine, deadline));
  double squares = 0.0;
  int64_t non_finite = -1;
  for (const Part& part : parts) {
    squares += part.squares;
    if (part.non_finite >= 0 && (non_finite < 0 || part.non_finite < non_finite))
      non_finite = part.non_finite;
  }
  const double norm = std::sqrt(squares);
  if (!std::isfinite(norm)) {
    return data_error("{}: the gradient of {} is not finite (global norm {}); the weights were not changed",
                      what, non_finite < 0 ? "no single tensor" : parameters.spec(non_finite).name, norm);
  }
  const double lr = learning_rate(options.optimizer, options.total_steps, optimizer_steps);
  ACCORD_RETURN_IF_ERROR(backend->update(options.optimizer, norm, lr, optimizer_steps + 1));
  ++optimizer_steps;
  return Metrics{{"train/grad_norm", norm}, {"train/learning_rate", lr}};
}

StatusOr<StepReport> Trainer::train_step(std::span<const TrainSample> samples, uint64_t step,
                                         BatchTotals totals, std::span<const int64_t> places,
                                         Deadline deadline) {
  Impl& t = *impl_;
  const Status valid = t.check_step(samples, places);
  const StepSequences sequences =
      valid.ok() ? sequences_of(samples, t.options.tokens_per_microbatch) : StepSequences{};
  StepFacts facts = facts_of(sequences, step, t.optimizer_steps);
  if (valid.ok() && !samples.empty()) {
    facts.reference = !samples[0].ref_logprobs.empty();
    facts.old = !samples[0].old_logprobs.empty();
    facts.routing = !samples[0].routing.empty();
  }
  ACCORD_ASSIGN_OR_RETURN(const StepScope scope,
                          agree_on_step(t.group, t.parameters.shards(), valid, facts, totals, deadline));
  const recipe::AlgorithmPart& algorithm = t.options.algorithm;
  if (algorithm.kl_coefficient != 0.0 && !scope.reference) {
    return data_error(
        "step {}: algorithm.kl_coefficient is set, but the samples carry no reference log-probs", step);
  }
  const bool corrected = algorithm.importance_correction != recipe::ImportanceCorrection::kNone;
  if (corrected && !scope.old) {
    return data_error(
        "step {}: algorithm.importance_correction is set, but the samples carry no log-probs of the trainer",
        step);
  }

  std::vector<TokenRecord> records(static_cast<size_t>(sequences.num_tokens));
  const auto loss = [&](size_t s, int64_t offset, const TokenValue& value) {
    const TrainSample& sample = samples[s];
    const size_t o = static_cast<size_t>(offset);
    TokenContext context;
    context.rollout_logprob = sample.rollout_logprobs[o];
    context.old_logprob = sample.old_logprobs.empty() ? context.rollout_logprob : sample.old_logprobs[o];
    if (scope.reference) context.ref_logprob = sample.ref_logprobs[o];
    context.advantage = sample.advantage;
    context.weight = token_weight(algorithm.aggregate, sample.response_length(), scope.totals.num_tokens,
                                  scope.totals.num_samples);
    return token_objective(algorithm, context, value,
                           records[static_cast<size_t>(sequences.first_token[s]) + o]);
  };
  RecordedRouting recorded(t.config);
  Status ran = t.backend->clear_gradients();
  if (ran.ok()) ran = t.run_micro_batches(sequences, scope.rounds, samples, true, loss, recorded, deadline);
  StepReport report;
  for (size_t s = 0; s < samples.size() && ran.ok(); ++s) {
    const auto mine = std::span(records).subspan(static_cast<size_t>(sequences.first_token[s]),
                                                 static_cast<size_t>(samples[s].response_length()));
    report.logprobs.emplace_back();
    for (size_t o = 0; o < mine.size() && ran.ok(); ++o) {
      report.logprobs.back().push_back(mine[o].logprob);
      if (!std::isfinite(mine[o].loss)) {
        ran = data_error(
            "step {}: the loss of {} is not finite at response token {} (log-prob {}, rollout {}); the "
            "weights were not changed",
            step, describe(samples[s].key), o, mine[o].logprob, mine[o].rollout_logprob);
      }
    }
  }
  ACCORD_RETURN_IF_ERROR(t.group.agree(ran, deadline));

  ACCORD_ASSIGN_OR_RETURN(const std::vector<TokenRange> order,
                          step_order(t.group, scope, places, sequences.lengths, deadline));
  ACCORD_ASSIGN_OR_RETURN(
      const std::vector<TokenRecord> all,
      in_step_order(t.group, scope, order, std::span<const TokenRecord>(records), deadline));
  double total_loss = 0.0;
  for (const TokenRecord& record : all) total_loss += record.loss;
  report.num_tokens = scope.totals.num_tokens;
  report.metrics = token_metrics(all, scope.reference, corrected);
  report.metrics["train/loss"] = total_loss;
  report.metrics["train/microbatches"] = static_cast<double>(scope.num_micro_batches);
  if (scope.routing) {
    ACCORD_ASSIGN_OR_RETURN(const std::vector<ExpertOverlap> overlaps,
                            t.group.gather(ExpertOverlap{recorded.common(), recorded.chosen()}, deadline));
    ExpertOverlap sum;
    for (const ExpertOverlap& o : overlaps) sum = {sum.common + o.common, sum.chosen + o.chosen};
    if (sum.chosen > 0.0) report.metrics["mismatch/expert_overlap"] = sum.common / sum.chosen;
  }
  ACCORD_ASSIGN_OR_RETURN(const Metrics update, t.update(fmt::format("step {}", step), deadline));
  report.metrics.insert(update.begin(), update.end());
  return report;
}

StatusOr<SftReport> Trainer::sft_step(std::span<const SftSample> samples, uint64_t step, BatchTotals totals,
                                      std::span<const int64_t> places, Deadline deadline) {
  Impl& t = *impl_;
  const Status valid = t.check_step(samples, places);
  const StepSequences sequences =
      valid.ok() ? sequences_of(samples, t.options.tokens_per_microbatch) : StepSequences{};
  ACCORD_ASSIGN_OR_RETURN(const StepScope scope,
                          agree_on_step(t.group, t.parameters.shards(), valid,
                                        facts_of(sequences, step, t.optimizer_steps), totals, deadline));
  const double weight = 1.0 / static_cast<double>(scope.totals.num_tokens);
  std::vector<double> losses(static_cast<size_t>(sequences.num_tokens));
  const auto loss = [&](size_t s, int64_t offset, const TokenValue& value) {
    losses[static_cast<size_t>(sequences.first_token[s] + offset)] =
        -static_cast<double>(value.logprob) * weight;
    return TokenGradient{-weight, 0.0};
  };
  RecordedRouting recorded(t.config);  // none
  Status ran = t.backend->clear_gradients();
  if (ran.ok()) ran = t.run_micro_batches(sequences, scope.rounds, {}, true, loss, recorded, deadline);
  ACCORD_RETURN_IF_ERROR(t.group.agree(ran, deadline));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<TokenRange> order,
                          step_order(t.group, scope, places, sequences.lengths, deadline));
  ACCORD_ASSIGN_OR_RETURN(const std::vector<double> all,
                          in_step_order(t.group, scope, order, std::span<const double>(losses), deadline));
  double total_loss = 0.0;
  for (double value : all) total_loss += value;
  if (!std::isfinite(total_loss)) {
    return data_error("supervised step {}: the loss is {}; the weights were not changed", step, total_loss);
  }
  ACCORD_ASSIGN_OR_RETURN(Metrics metrics, t.update(fmt::format("supervised step {}", step), deadline));
  metrics["train/loss"] = total_loss;
  return SftReport{std::move(metrics)};
}

StatusOr<std::vector<std::vector<float>>> Trainer::logprobs(std::span<const TrainSample> samples,
                                                            Deadline deadline) {
  Impl& t = *impl_;
  std::vector<std::vector<float>> out;
  for (const TrainSample& s : samples)
    out.emplace_back(static_cast<size_t>(std::max(s.response_length(), 0)));
  const auto visit = [&](size_t s, int64_t offset, const TokenValue& value) {
    out[s][static_cast<size_t>(offset)] = value.logprob;
    return TokenGradient{};
  };
  RecordedRouting recorded(t.config);
  const Status valid = t.check_samples(samples, false);
  const StepSequences sequences =
      valid.ok() ? sequences_of(samples, t.options.tokens_per_microbatch) : StepSequences{};
  int64_t rounds = static_cast<int64_t>(sequences.micro_batches.size());
  if (t.options.expert_parallel == 1) {
    ACCORD_RETURN_IF_ERROR(valid);
    ACCORD_RETURN_IF_ERROR(t.run_micro_batches(sequences, rounds, samples, false, visit, recorded, deadline));
    return out;
  }
  ACCORD_ASSIGN_OR_RETURN(const StepScope scope,
                          agree_on_step(t.group, t.parameters.shards(), valid,
                                        facts_of(sequences, 0, t.optimizer_steps), {}, deadline));
  ACCORD_RETURN_IF_ERROR(t.group.agree(
      t.run_micro_batches(sequences, scope.rounds, samples, false, visit, recorded, deadline), deadline));
  return out;
}

}  // namespace accord::trainer
