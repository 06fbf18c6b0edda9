#include "rollout/engine.hpp"

#include <algorithm>
#include <deque>
#include <limits>
#include <new>
#include <utility>

#include "rollout/page_pool.hpp"
#include "rollout/policy.hpp"
#include "rollout/request_check.hpp"
#include "rollout/sampler.hpp"
#include "rollout/scheduler.hpp"
#include "rollout/stopwatch.hpp"

namespace accord::rollout {
namespace {

Status check_options(const EngineOptions& options) {
  if (options.max_batch_rows < 1 || options.prefill_chunk < 1 || options.kv_cache_tokens < 1) {
    return usage_error(
        "rollout: max_batch_rows ({}), prefill_chunk ({}) and kv_cache_tokens ({}) must be at least 1",
        options.max_batch_rows, options.prefill_chunk, options.kv_cache_tokens);
  }
  if (options.kv_cache_tokens > std::numeric_limits<int32_t>::max() - model::kPageSize) {
    return usage_error("rollout: kv_cache_tokens is {}: at most {} rows can be addressed",
                       options.kv_cache_tokens, std::numeric_limits<int32_t>::max() - model::kPageSize);
  }
  return absl::OkStatus();
}

}  // namespace

// What the scheduler said of a step that is under way.
struct SubmittedStep {
  std::vector<Scheduler::Scheduled> scheduled;
  std::vector<Scheduler::Draw> draws;
  bool record = false;
};

struct Engine::Impl {
  Impl(std::unique_ptr<Policy> policy_in, const EngineOptions& options_in, Detokenize detokenize_in)
      : policy(std::move(policy_in)),
        options(options_in),
        detokenize(std::move(detokenize_in)),
        pages(static_cast<int32_t>((options.kv_cache_tokens + model::kPageSize - 1) / model::kPageSize)) {
    reset_stats();
  }

  Status reserve() {
    return policy->reserve(int64_t{pages.num_pages()} * model::kPageSize, options.max_batch_rows);
  }

  void reset_stats() {
    stats = {};
    pages.reset_peak();
    stats.cache_rows = int64_t{pages.num_pages()} * model::kPageSize;
  }

  std::vector<Sequence> make_sequences(std::span<const Request> requests) const;
  Status run(std::vector<Sequence>& sequences, const Callbacks& callbacks, const std::stop_token& stop);
  Status submit(Scheduler& scheduler, const model::Batch& batch, std::span<const Sequence> sequences,
                bool record);
  Status collect(Scheduler& scheduler, std::vector<Sequence>& sequences, const Callbacks& callbacks);
  void keep_routing(const SubmittedStep& step, std::vector<Sequence>& sequences) const;
  Status check_drawn(const SubmittedStep& step, std::span<const Sequence> sequences) const;
  bool append(const DrawnToken& drawn, Sequence& seq, const Callbacks& callbacks);

  std::unique_ptr<Policy> policy;
  EngineOptions options;
  Detokenize detokenize;
  PagePool pages;
  uint64_t version = 0;
  EngineStats stats;
  std::deque<SubmittedStep> under_way;  // oldest first
  // Reused between steps.
  std::vector<DrawTask> tasks;
  StepResult result;
};

std::vector<Sequence> Engine::Impl::make_sequences(std::span<const Request> requests) const {
  std::vector<Sequence> sequences;
  for (const Request& request : requests) {
    const auto leader = static_cast<int32_t>(sequences.size());
    for (int32_t i = 0; i < request.num_samples; ++i) {
      Sequence& seq = sequences.emplace_back();
      seq.request = &request;
      seq.leader = leader;
      seq.sample.key = {.step = request.step,
                        .prompt_id = request.prompt.id,
                        .sample_index = request.first_sample_index + static_cast<uint32_t>(i)};
      seq.sample.weight_version = version;
      seq.sample.prompt_length = static_cast<int32_t>(request.prompt.tokens.size());
    }
  }
  return sequences;
}

Status Engine::Impl::run(std::vector<Sequence>& sequences, const Callbacks& callbacks,
                         const std::stop_token& stop) {
  Scheduler scheduler(
      sequences, pages, {.max_batch_rows = options.max_batch_rows, .prefill_chunk = options.prefill_chunk},
      [this](int32_t from, int32_t to, int32_t count) { policy->copy_rows(from, to, count); }, stats);
  const bool record = options.record_routing && policy->routing_width() > 0 && callbacks.on_sample;
  const size_t ahead = options.steps_ahead ? policy->max_steps_ahead() : 0;
  under_way.clear();
  while (!scheduler.done() || !under_way.empty()) {
    if (stop.stop_requested()) {
      return make_error(absl::StatusCode::kCancelled, ExitCode::kDrained, "generation was cancelled");
    }
    const model::Batch batch = scheduler.next_batch();
    if (batch.num_rows() > 0) {
      ACCORD_RETURN_IF_ERROR(submit(scheduler, batch, sequences, record));
      if (under_way.size() <= ahead) continue;
    } else if (under_way.empty()) {
      return internal_error("rollout: nothing can run, and nothing is under way");
    }
    ACCORD_RETURN_IF_ERROR(collect(scheduler, sequences, callbacks));
  }
  return absl::OkStatus();
}

Status Engine::Impl::submit(Scheduler& scheduler, const model::Batch& batch,
                            std::span<const Sequence> sequences, bool record) {
  const auto draws = scheduler.complete_batch();
  tasks.clear();
  for (const Scheduler::Draw& draw : draws) {
    const Sequence& seq = sequences[static_cast<size_t>(draw.sequence)];
    tasks.push_back({.row = draw.row,
                     .sampling = &seq.request->sampling,
                     .random = token_random(options.run_seed, seq.sample.key, draw.position)});
  }
  const auto scheduled = scheduler.scheduled();
  under_way.push_back({{scheduled.begin(), scheduled.end()}, {draws.begin(), draws.end()}, record});
  const Stopwatch watch(stats.forward_seconds);
  return policy->submit(
      {.batch = batch, .token_tasks = scheduler.token_draws(), .tasks = tasks, .record_routing = record});
}

// Takes what the oldest step under way has drawn.
Status Engine::Impl::collect(Scheduler& scheduler, std::vector<Sequence>& sequences,
                             const Callbacks& callbacks) {
  const SubmittedStep step = std::move(under_way.front());
  under_way.pop_front();
  {
    const Stopwatch watch(stats.forward_seconds);
    ACCORD_RETURN_IF_ERROR(policy->collect(result));
  }
  // Drawing of a step that ran while the host did something else is no time of ours.
  const double sampling = std::min(result.sampling_seconds, stats.forward_seconds);
  stats.forward_seconds -= sampling;
  stats.sample_seconds += sampling;
  if (step.record) {
    keep_routing(step, sequences);
  }
  ACCORD_RETURN_IF_ERROR(check_drawn(step, sequences));
  for (size_t i = 0; i < step.draws.size(); ++i) {
    const int32_t index = step.draws[i].sequence;
    Sequence& seq = sequences[static_cast<size_t>(index)];
    if (seq.finished) continue;  // by the token before, which was not known then
    scheduler.take_token(index, result.drawn[i]->token);
    if (append(*result.drawn[i], seq, callbacks)) {
      scheduler.finish(index);
    }
  }
  return absl::OkStatus();
}

void Engine::Impl::keep_routing(const SubmittedStep& step, std::vector<Sequence>& sequences) const {
  const auto width = static_cast<size_t>(policy->routing_width());
  for (const Scheduler::Scheduled& item : step.scheduled) {
    Sequence& seq = sequences[static_cast<size_t>(item.sequence)];
    if (seq.finished) continue;
    store_expert_ids(
        std::span(result.routing)
            .subspan(static_cast<size_t>(item.row_begin) * width, static_cast<size_t>(item.num_rows) * width),
        policy->num_experts(), static_cast<size_t>(item.first_position) * width, seq.routing);
  }
  for (const Scheduler::Draw& draw : step.draws) {
    if (!draw.fanned_out) continue;
    Sequence& seq = sequences[static_cast<size_t>(draw.sequence)];
    seq.routing = sequences[static_cast<size_t>(seq.leader)].routing;
  }
}

// The first token that could not be drawn.
Status Engine::Impl::check_drawn(const SubmittedStep& step, std::span<const Sequence> sequences) const {
  for (size_t i = 0; i < step.draws.size(); ++i) {
    const Sequence& seq = sequences[static_cast<size_t>(step.draws[i].sequence)];
    if (!result.drawn[i].ok() && !seq.finished) {
      const SampleKey& key = seq.sample.key;
      return annotate(
          result.drawn[i].status(),
          fmt::format("rollout: step {}, prompt {}, sample {}, position {}, weight version {}", key.step,
                      key.prompt_id, key.sample_index, step.draws[i].position, version));
    }
  }
  return absl::OkStatus();
}

// The sample's tokens have this one already. True when the sample ends with it.
bool Engine::Impl::append(const DrawnToken& token, Sequence& seq, const Callbacks& callbacks) {
  const SamplingParams& params = seq.request->sampling;
  Sample& sample = seq.sample;
  sample.logprobs.push_back(token.logprob);
  sample.sampling_logprobs.push_back(token.sampling_logprob);
  ++stats.generated_tokens;
  if (callbacks.on_token) {
    callbacks.on_token(sample.key, token.token, token.logprob);
  }
  const auto response =
      std::span<const int32_t>(sample.tokens).subspan(static_cast<size_t>(sample.prompt_length));
  const bool stopped =
      std::find(params.stop_tokens.begin(), params.stop_tokens.end(), token.token) !=
          params.stop_tokens.end() ||
      (!params.stop_strings.empty() && hits_stop_string(detokenize, response, params.stop_strings, seq.stop));
  if (!stopped && sample.response_length() < params.max_new_tokens) {
    return false;
  }
  sample.finish = stopped ? FinishReason::kStop : FinishReason::kLength;
  if (callbacks.on_sample) {
    Sample finished = sample;
    finished.routing = std::move(seq.routing);
    callbacks.on_sample(std::move(finished));
  }
  return true;
}

// ---- the engine --------------------------------------------------------------------------------

Engine::Engine(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Engine::~Engine() = default;

StatusOr<std::unique_ptr<Engine>> Engine::create(model::Model& model, const EngineOptions& options,
                                                 ThreadPool& pool, Detokenize detokenize) {
  return create(make_model_policy(model, pool), options, std::move(detokenize));
}

StatusOr<std::unique_ptr<Engine>> Engine::create(model::CudaModel& model, const EngineOptions& options,
                                                 Detokenize detokenize) {
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<Policy> policy, make_cuda_policy(model, options.cuda_graphs));
  return create(std::move(policy), options, std::move(detokenize));
}

StatusOr<std::unique_ptr<Engine>> Engine::create(std::unique_ptr<Policy> policy, const EngineOptions& options,
                                                 Detokenize detokenize) {
  ACCORD_RETURN_IF_ERROR(check_options(options));
  const int64_t cache_bytes = options.kv_cache_tokens * policy->cache_row_bytes();
  try {
    auto impl = std::make_unique<Impl>(std::move(policy), options, std::move(detokenize));
    ACCORD_RETURN_IF_ERROR(impl->reserve());
    return std::unique_ptr<Engine>(new Engine(std::move(impl)));
  } catch (const std::bad_alloc&) {
    return unavailable_error(
        "rollout: no memory for a KV cache of {} tokens ({} bytes); lower kv_cache_tokens",
        options.kv_cache_tokens, cache_bytes);
  }
}

StatusOr<std::vector<Sample>> Engine::generate(std::span<const Request> requests, const Callbacks& callbacks,
                                               const std::stop_token& stop) {
  Impl& impl = *impl_;
  const RequestLimits limits{.vocab_size = impl.policy->vocab_size(),
                             .max_positions = impl.policy->max_positions(),
                             .cache_rows = impl.stats.cache_rows,
                             .can_detokenize = impl.detokenize != nullptr};
  for (const Request& request : requests) {
    ACCORD_RETURN_IF_ERROR(check_request(request, limits));
  }
  const Stopwatch watch(impl.stats.total_seconds);
  std::vector<Sequence> sequences = impl.make_sequences(requests);
  ACCORD_RETURN_IF_ERROR(impl.policy->begin());
  Status status = impl.run(sequences, callbacks, stop);
  const Status ended = impl.policy->end();
  if (status.ok()) {
    status = ended;
  }
  const GraphCounts graphs = impl.policy->take_graph_counts();
  impl.stats.graph_captures += graphs.captures;
  impl.stats.graph_replays += graphs.replays;
  impl.stats.peak_cache_rows = int64_t{impl.pages.peak_used()} * model::kPageSize;
  ACCORD_RETURN_IF_ERROR(status);
  std::vector<Sample> samples;
  samples.reserve(sequences.size());
  for (Sequence& seq : sequences) {
    samples.push_back(std::move(seq.sample));
  }
  return samples;
}

void Engine::set_weight_version(uint64_t version) { impl_->version = version; }
uint64_t Engine::weight_version() const { return impl_->version; }
std::span<std::byte> Engine::cache_memory() { return impl_->policy->cache_memory(); }
std::span<std::byte> Engine::device_cache_memory() { return impl_->policy->device_cache_memory(); }
const EngineStats& Engine::stats() const { return impl_->stats; }
void Engine::reset_stats() { impl_->reset_stats(); }

}  // namespace accord::rollout
