#include "bench/rollout.hpp"

#include <fmt/format.h>

#include <algorithm>
#include <chrono>
#include <memory>
#include <optional>
#include <set>
#include <utility>

#include "base/philox.hpp"
#include "bench/failure.hpp"
#include "bench/rollout_policy.hpp"

namespace accord::bench {
namespace {

using Clock = std::chrono::steady_clock;

constexpr int64_t kWarmSteps = 4;       // decode steps before the timed ones: graphs are captured in them
constexpr int64_t kPrefillRows = 8192;  // of one forward on a device
constexpr int64_t kCpuPrefillRows = 256;
constexpr double kMemoryShare = 0.92;    // of what is free, for weights, cache and activations
constexpr double kActivationBytes = 16;  // per row, layer width and expert slot: generous

// A run of one batch size: `batch` prompts of their own, so that no cache is shared. All sequences are
// prefilled, then decode together for `steps` steps; the first ones have decoded while others were prefilled.
struct Schedule {
  int64_t prefill_steps = 0;
  int64_t prompt = 0;
  int64_t new_tokens = 0;
};

int64_t prefill_rows(const Device& device, int64_t context) {
  const int64_t most = device.is_cuda() && !cuda_is_emulated() ? kPrefillRows : kCpuPrefillRows;
  return std::max(most, context);
}

StatusOr<Schedule> schedule_of(const RolloutOptions& options, int32_t batch) {
  Schedule s;
  // In the last timed step an average sequence has `context` positions.
  const int64_t rows = prefill_rows(options.device, options.context);
  s.prefill_steps = (batch * options.context + rows - 1) / rows;
  s.new_tokens = s.prefill_steps + kWarmSteps + options.steps + 1;
  s.prompt = options.context - s.prefill_steps / 2 - kWarmSteps - options.steps;
  if (s.prompt < 1) {
    return usage_error(
        "--context: {} positions are too few for {} timed steps of {} sequences, which need more than {}",
        options.context, options.steps, batch, options.steps + kWarmSteps + s.prefill_steps / 2);
  }
  return s;
}

// Marks the steps of a batch by the tokens as they are drawn.
class Window {
 public:
  Window(const rollout::Engine& engine, int32_t batch, int64_t steps)
      : engine_(engine), batch_(batch), steps_(steps) {}

  rollout::Callbacks callbacks() {
    rollout::Callbacks calls;
    calls.on_token = [this](const SampleKey& key, int32_t, float) { token(key); };
    return calls;
  }

  void fill(RolloutResult& result, int64_t prompt) const {
    if (!begin_ || !end_) must(internal_error("bench: a rollout ended before its timed steps"));
    result.steps = steps_;
    result.seconds = seconds_between(begin_->time, end_->time);
    result.forward_seconds = end_->forward - begin_->forward;
    result.sampling_seconds = end_->sampling - begin_->sampling;
    result.prompt_seconds = seconds_between(start_, *prefilled_);
    // Positions before each timed step: the prompt, what was drawn while others were prefilled, and the
    // steps.
    result.mean_context = static_cast<double>(prompt) +
                          static_cast<double>(drawn_before_) / static_cast<double>(batch_) +
                          static_cast<double>(steps_ - 1) / 2.0;
  }

 private:
  struct Mark {
    Clock::time_point time;
    double forward = 0.0, sampling = 0.0;
  };

  static double seconds_between(Clock::time_point from, Clock::time_point to) {
    return std::chrono::duration<double>(to - from).count();
  }
  Mark mark() const {
    const rollout::EngineStats& stats = engine_.stats();
    return {Clock::now(), stats.forward_seconds, stats.sample_seconds};
  }

  void token(const SampleKey& key) {
    if (begin_) {
      if (!end_ && ++timed_ == steps_ * batch_) end_ = mark();
      return;
    }
    ++drawn_before_;
    if (prefilled_) {
      if (++warm_ == kWarmSteps * batch_) begin_ = mark();
      return;
    }
    // The step in which the last sequence draws its first token is the last that prefills; it draws one token
    // of every sequence, in their order, so the last sequence's comes last.
    started_.insert(key.prompt_id);
    if (started_.size() == static_cast<size_t>(batch_) &&
        key.prompt_id + 1 == static_cast<uint64_t>(batch_)) {
      prefilled_ = Clock::now();
    }
  }

  const rollout::Engine& engine_;
  const int64_t batch_;
  const int64_t steps_;
  const Clock::time_point start_ = Clock::now();
  std::set<uint64_t> started_;
  std::optional<Clock::time_point> prefilled_;
  int64_t warm_ = 0;
  int64_t drawn_before_ = 0;
  int64_t timed_ = 0;
  std::optional<Mark> begin_, end_;
};

std::vector<rollout::Request> requests_of(const ModelConfig& config, int32_t batch,
                                          const Schedule& schedule) {
  std::vector<rollout::Request> requests(static_cast<size_t>(batch));
  for (size_t i = 0; i < requests.size(); ++i) {
    rollout::Request& request = requests[i];
    request.prompt.id = i;
    PhiloxStream random(7, i);
    for (int64_t t = 0; t < schedule.prompt; ++t) {
      request.prompt.tokens.push_back(
          static_cast<int32_t>(random.next_below(static_cast<uint32_t>(config.vocab_size))));
    }
    request.sampling.max_new_tokens = static_cast<int32_t>(schedule.new_tokens);
  }
  return requests;
}

rollout::EngineOptions engine_options(const RolloutOptions& options, int32_t batch,
                                      const Schedule& schedule) {
  rollout::EngineOptions engine;
  engine.prefill_chunk =
      static_cast<int32_t>(std::min(prefill_rows(options.device, options.context), batch * schedule.prompt));
  engine.max_batch_rows = batch + engine.prefill_chunk;
  const int64_t longest = schedule.prompt + schedule.new_tokens + model::kPageSize;
  engine.kv_cache_tokens = batch * longest;
  return engine;
}

class RolloutRun {
 public:
  RolloutRun(const RolloutOptions& options, const Print& print, Shape shape, RolloutReport& report)
      : options_(options),
        print_(print),
        shape_(std::move(shape)),
        report_(report),
        place_(options.device.is_cuda() ? device_place(options.device) : cpu_place(options.threads)) {}

  void run() {
    choose_layers();
    report_.ceilings = place_->bandwidth();
    header();
    for (const std::string& format : options_.formats) {
      const RandomPolicy policy = must(planned_policy(config_, format));
      place_->load(policy);
      const StepBytes bytes = must(step_bytes(policy.config, policy.manifest, sizeof(BF16)));
      for (const int32_t batch : options_.batches) measure(policy, format, batch, bytes);
    }
  }

 private:
  void choose_layers() {
    report_.all_layers = shape_.config.num_layers;
    int64_t layers = options_.layers > 0 ? std::min(options_.layers, report_.all_layers) : report_.all_layers;
    if (options_.layers == 0) {
      const auto room = static_cast<double>(place_->free_bytes()) * kMemoryShare;
      while (layers > 1 && needed(layers) > room) --layers;
    }
    report_.layers = layers;
    config_ = with_layers(shape_.config, layers);
  }

  // Bytes of the largest policy, cache and activations, about.
  double needed(int64_t layers) const {
    const ModelConfig config = with_layers(shape_.config, layers);
    double arena = 0.0;
    for (const std::string& format : options_.formats) {
      arena = std::max(arena, static_cast<double>(must(planned_policy(config, format)).manifest.arena_bytes));
    }
    const int32_t batch = *std::max_element(options_.batches.begin(), options_.batches.end());
    const Schedule schedule = must(schedule_of(options_, batch));
    const rollout::EngineOptions engine = engine_options(options_, batch, schedule);
    const double cache =
        static_cast<double>(engine.kv_cache_tokens) * static_cast<double>(kv_row_bytes(config, sizeof(BF16)));
    const int64_t widths =
        config.hidden_size + config.q_width() +
        std::max(config.intermediate_size, std::max<int64_t>(1, config.num_experts_per_token) *
                                               (config.hidden_size + config.moe_intermediate_size));
    const double activations = kActivationBytes * static_cast<double>(engine.max_batch_rows * widths);
    return arena + cache + activations;
  }

  void header() {
    if (report_.layers < report_.all_layers) {
      report_.note = fmt::format("{} of {} layers{}: tokens per second are of these alone", report_.layers,
                                 report_.all_layers, options_.layers > 0 ? "" : ", as many as fit");
    }
    if (cuda_is_emulated() && options_.device.is_cuda()) {
      report_.note += report_.note.empty() ? "" : "; ";
      report_.note += "the device is emulated: times are the host's and mean nothing";
    }
    if (!options_.device.is_cuda()) {
      report_.note += report_.note.empty() ? "" : "; ";
      report_.note += "timings of a CPU are noisy; bandwidth is of one thread";
    }
    print_(fmt::format("{}, {} layers, on {}: copy {}/s, read {}/s\n{}{}", report_.shape, report_.layers,
                       report_.device, bytes_text(report_.ceilings.copy), bytes_text(report_.ceilings.read),
                       report_.note, report_.note.empty() ? "" : "\n"));
    print_(
        "\n| format | batch | context | tokens/s | roofline | share | step | forward | sampling | host | "
        "prefill "
        "| peak memory |\n|---|---|---|---|---|---|---|---|---|---|---|---|\n");
  }

  void measure(const RandomPolicy& policy, const std::string& format, int32_t batch, const StepBytes& bytes) {
    const Schedule schedule = must(schedule_of(options_, batch));
    const std::unique_ptr<rollout::Engine> engine = place_->engine(engine_options(options_, batch, schedule));
    RolloutResult result;
    result.format = format;
    result.batch = batch;
    result.prompt_tokens = batch * schedule.prompt;
    const std::vector<rollout::Request> requests = requests_of(policy.config, batch, schedule);
    Window window(*engine, batch, options_.steps);
    must(engine->generate(requests, window.callbacks()));
    window.fill(result, schedule.prompt);
    result.step_bytes = bytes.total(batch, result.mean_context);
    result.roofline_tokens_per_second =
        bytes.tokens_per_second(batch, result.mean_context, report_.ceilings.read);
    result.peak_bytes = place_->peak_bytes();
    row(result);
    report_.results.push_back(std::move(result));
  }

  void row(const RolloutResult& r) {
    const double step = r.seconds / static_cast<double>(r.steps);
    const auto part = [&](double seconds) {
      return microseconds_text(seconds / static_cast<double>(r.steps));
    };
    print_(
        fmt::format("| {} | {} | {:.0f} | {:.0f} | {:.0f} | {:.1f} % | {} | {} | {} | {} | {:.2f} s, {:.0f} "
                    "tokens/s | {} |\n",
                    r.format, r.batch, r.mean_context, r.tokens_per_second(), r.roofline_tokens_per_second,
                    100.0 * r.tokens_per_second() / r.roofline_tokens_per_second, microseconds_text(step),
                    part(r.forward_seconds), part(r.sampling_seconds),
                    part(std::max(0.0, r.seconds - r.forward_seconds - r.sampling_seconds)), r.prompt_seconds,
                    static_cast<double>(r.prompt_tokens) / r.prompt_seconds,
                    bytes_text(static_cast<double>(r.peak_bytes))));
  }

  const RolloutOptions& options_;
  const Print& print_;
  const Shape shape_;
  RolloutReport& report_;
  const std::unique_ptr<RolloutPlace> place_;
  ModelConfig config_;
};

Status check(const RolloutOptions& options, const Shape& shape) {
  const int64_t most = shape.config.max_position_embeddings;
  if (most > 0 && options.context > most) {
    return usage_error("--context: {} positions, {} has at most {}", options.context, shape.name, most);
  }
  for (const int32_t batch : options.batches) {
    ACCORD_RETURN_IF_ERROR(schedule_of(options, batch).status());
  }
  // Formats are checked before anything is measured.
  for (const std::string& format : options.formats) {
    ACCORD_RETURN_IF_ERROR(planned_policy(with_layers(shape.config, 1), format).status());
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<RolloutReport> run_rollout(const RolloutOptions& options, const Print& print) {
  ACCORD_ASSIGN_OR_RETURN(Shape shape, find_shape(options.shape));
  ACCORD_RETURN_IF_ERROR(check(options, shape));
  RolloutReport report;
  report.shape = shape.name;
  ACCORD_ASSIGN_OR_RETURN(report.device, options.device.describe());
  return guarded([&]() -> StatusOr<RolloutReport> {
    RolloutRun(options, print, std::move(shape), report).run();
    return std::move(report);
  });
}

}  // namespace accord::bench
