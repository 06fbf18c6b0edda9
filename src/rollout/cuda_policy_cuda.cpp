// The policy over model::CudaModel: the KV cache, the residual stream, logits and the sampler on the device.
//
// submit() puts a whole step into the model's stream and does not wait; collect() waits for what the oldest
// one drew. One step may be submitted while another runs: tokens that the host does not know yet go from the
// one's results into the other's batch on the device. What the host writes and reads lies there twice.
//
// A forward whose rows all decode, and the logits of up to a batch of rows, run as captured graphs, of as
// many rows as graph_rows says. Rows beyond the batch's repeat its last one, and write their keys and values
// behind the cache: as every row's bits are its own, nothing else notices them. All that differs between two
// such steps lies in the batch's and the tasks' memory.
#include <algorithm>
#include <array>
#include <bit>
#include <functional>
#include <utility>

#include "device/device_buffer.hpp"
#include "device/launch.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/sampler/sampler_cuda.hpp"
#include "model/cuda_model.hpp"
#include "rollout/graph_cache.hpp"
#include "rollout/policy.hpp"

namespace accord::rollout {
namespace {

namespace cuda = kernels::cuda;
using cuda::DrawRequest;
using cuda::DrawResult;

// Logits are computed in pieces of about this size: one piece for every usual batch and vocabulary.
constexpr int64_t kLogitsBytes = int64_t{256} << 20;
constexpr int64_t kMinLogitsRows = 16;
constexpr int64_t kElementBytes = sizeof(BF16);
// Rows of the cache behind the scheduler's, for rows that only fill a graph.
constexpr int64_t kFillRows = 4 * model::kPageSize;

class CudaPolicy final : public Policy {
 public:
  CudaPolicy(model::CudaModel& model, bool graphs)
      : model_(model),
        use_graphs_(graphs),
        graphs_(model.stream()),
        config_(model.config()),
        widths_(kv_widths(model.config())),
        moe_slot_(moe_slots(model.config())) {}

  int64_t vocab_size() const override { return config_.vocab_size; }
  int64_t max_positions() const override { return config_.max_position_embeddings; }
  int64_t routing_width() const override { return accord::routing_width(config_); }
  int64_t num_experts() const override { return config_.num_experts; }
  int64_t cache_row_bytes() const override { return kv_row_bytes(config_, kElementBytes); }

  Status reserve(int64_t cache_rows, int64_t max_batch_rows) override;
  std::span<std::byte> cache_memory() override { return {}; }
  std::span<std::byte> device_cache_memory() override { return {cache_.as<std::byte>(), cache_.bytes()}; }

  Status begin() override;
  Status end() override { return stream().synchronize(); }
  void copy_rows(int32_t from, int32_t to, int32_t count) override;
  size_t max_steps_ahead() const override { return kSlots - 1; }
  Status submit(const Step& step) override;
  Status collect(StepResult& result) override;
  GraphCounts take_graph_counts() override { return graphs_.take_counts(); }

 private:
  static constexpr size_t kSlots = 2;

  struct Interval {
    Event start, end;
  };
  // A step that is under way.
  struct Slot {
    DeviceBuffer tasks;         // pinned: requests, their rows, then token_tasks
    DeviceBuffer results;       // DrawResult per task
    DeviceBuffer results_host;  // pinned
    DeviceBuffer routing_host;  // pinned: [MoE layers][graph's rows, K]
    Event done;
    std::vector<Interval> intervals;  // of each piece's sampling
    size_t num_pieces = 0;
    int64_t num_rows = 0;
    int64_t graph_rows = 0;
    bool record = false;
    std::vector<float> temperatures;  // per task
  };

  const Device& device() const { return model_.device(); }
  const Stream& stream() const { return model_.stream(); }
  int64_t layer_rows() const { return cache_rows_ + kFillRows; }
  int64_t layer_elements() const { return layer_rows() * (widths_.k + widths_.v); }

  Status allocate_cache();
  model::Batch filled(const model::Batch& batch);
  Status forward(const Step& step, Slot& slot);
  Status launch_layers(bool record);
  Status run(const GraphKey& key, const std::function<Status()>& launches);
  void read_routing(const Slot& slot, std::vector<int32_t>& routing) const;
  int64_t task_rows(int64_t num_tasks) const;
  Status reserve_tasks(Slot& slot, int64_t num_tasks, int64_t num_rows);
  Status send_tasks(const Step& step, Slot& slot);
  Status launch_draws(int64_t num_tasks, Slot& slot);
  StatusOr<DrawnToken> outcome(const Slot& slot, size_t index) const;
  MatrixView logits_view(int64_t rows) const { return logits_.matrix(Dtype::kF32, rows, config_.vocab_size); }

  model::CudaModel& model_;
  const bool use_graphs_;
  GraphCache graphs_;
  std::vector<const void*> addresses_;
  const ModelConfig& config_;
  const KvWidths widths_;
  const std::vector<int64_t> moe_slot_;  // per layer: its place among the MoE layers, or -1
  int64_t cache_rows_ = 0;
  int64_t max_batch_rows_ = 0;
  Memory cache_;  // per layer its keys, then its values
  std::vector<model::KvLayer> kv_;
  std::vector<int32_t> tokens_, positions_, kv_rows_;  // of a batch that is filled up
  std::vector<model::Segment> segments_;
  DeviceBuffer x_;
  MatrixView x_TH_;
  DeviceBuffer routing_;  // [MoE layers][T, K]
  int64_t logits_rows_ = 0;
  DeviceBuffer logits_;
  DeviceBuffer tasks_;
  const int32_t* rows_ = nullptr;         // in tasks_
  const int32_t* token_tasks_ = nullptr;  // in tasks_
  std::array<Slot, kSlots> slots_;
  uint64_t submitted_ = 0;  // since begin(); step i has slot i % kSlots
  uint64_t collected_ = 0;
};

// ---- memory ------------------------------------------------------------------------------------

Status CudaPolicy::reserve(int64_t cache_rows, int64_t max_batch_rows) {
  cache_rows_ = cache_rows;
  max_batch_rows_ = max_batch_rows;
  ACCORD_RETURN_IF_ERROR(device().make_current());
  ACCORD_RETURN_IF_ERROR(x_.ensure_matrix(device(), Dtype::kBF16, max_batch_rows, config_.hidden_size));
  const int64_t row_bytes = vocab_size() * size_of(Dtype::kF32);
  logits_rows_ = std::min(std::max(kLogitsBytes / row_bytes, kMinLogitsRows), max_batch_rows);
  ACCORD_RETURN_IF_ERROR(logits_.ensure(device(), static_cast<size_t>(logits_rows_ * row_bytes)));
  for (Slot& slot : slots_) {
    ACCORD_ASSIGN_OR_RETURN(slot.done, Event::create(device()));
    ACCORD_RETURN_IF_ERROR(reserve_tasks(slot, max_batch_rows, max_batch_rows));
  }
  constexpr int64_t kMaxPositions = 65536;  // the model's tables grow beyond when they must
  const int64_t longest = max_positions() > 0 ? std::min(max_positions(), cache_rows) : cache_rows;
  ACCORD_RETURN_IF_ERROR(model_.reserve(max_batch_rows, std::min(longest, kMaxPositions)));
  return allocate_cache();  // last: what is left is the cache's
}

Status CudaPolicy::allocate_cache() {
  const int64_t bytes = config_.num_layers * layer_elements() * kElementBytes;
  StatusOr<Memory> cache = Memory::allocate(device(), static_cast<size_t>(bytes));
  if (!cache.ok()) {
    return unavailable_error(
        "rollout: no memory for a KV cache of {} tokens ({} bytes) on {}; lower kv_cache_tokens: {}",
        cache_rows_, bytes, to_string(device().id()), message_of(cache.status()));
  }
  cache_ = *std::move(cache);
  BF16* layer = cache_.as<BF16>();
  for (int64_t i = 0; i < config_.num_layers; ++i, layer += layer_elements()) {
    kv_.push_back(
        model::kv_layer(config_, Dtype::kBF16, layer_rows(), layer, layer + layer_rows() * widths_.k));
  }
  return absl::OkStatus();
}

Status CudaPolicy::begin() {
  submitted_ = 0;
  collected_ = 0;
  return device().make_current();
}

void CudaPolicy::copy_rows(int32_t from, int32_t to, int32_t count) {
  if (count == 0) {
    return;
  }
  // The cache as one row per layer.
  const MatrixView layers{cache_.data(), Dtype::kBF16, config_.num_layers, layer_elements(),
                          layer_elements()};
  const auto copy = [&](int64_t first, int64_t width) {
    const cuda::ColumnGroups columns{.groups = 1,
                                     .count = count * width,
                                     .x_first = first + from * width,
                                     .x_stride = 0,
                                     .y_first = first + to * width,
                                     .y_stride = 0};
    cuda::copy_columns(layers, columns, nullptr, layers, stream().handle());
  };
  copy(0, widths_.k);
  if (widths_.v > 0) {  // else the values are part of the keys
    copy(layer_rows() * widths_.k, widths_.v);
  }
}

// ---- forward -----------------------------------------------------------------------------------

// Rows of the graph that takes `rows` of them, at most `most`: few sizes, and at most an eighth more rows
// than needed from 64 on.
int64_t graph_rows(int64_t rows, int64_t most) {
  constexpr int64_t kFine = 8;
  const auto up = [&](int64_t step) { return (rows + step - 1) / step * step; };
  if (rows <= kFine) return std::min(static_cast<int64_t>(std::bit_ceil(static_cast<uint64_t>(rows))), most);
  static_assert(8 * kFine <= kFillRows);
  return std::min(up(rows <= 256 ? kFine : rows <= 512 ? 2 * kFine : 8 * kFine), most);
}

// The batch with rows up to a graph's size.
model::Batch CudaPolicy::filled(const model::Batch& batch) {
  const auto copy = [](auto from, auto& to) { to.assign(from.begin(), from.end()); };
  copy(batch.tokens, tokens_);
  copy(batch.positions, positions_);
  copy(batch.kv_rows, kv_rows_);
  copy(batch.segments, segments_);
  const int64_t rows = batch.num_rows();
  for (int64_t row = rows; row < graph_rows(rows, max_batch_rows_); ++row) {
    tokens_.push_back(tokens_.back());
    positions_.push_back(positions_.back());
    kv_rows_.push_back(static_cast<int32_t>(cache_rows_ + row - rows));
    segments_.push_back(segments_.back());
    segments_.back().row_begin = static_cast<int32_t>(row);
  }
  return {tokens_, positions_, kv_rows_, segments_};
}

// Also sends the tasks: token_tasks are among them.
Status CudaPolicy::forward(const Step& step, Slot& slot) {
  const model::Batch& batch = step.batch;
  const bool decodes = static_cast<int64_t>(batch.segments.size()) == batch.num_rows();
  const bool graph = use_graphs_ && decodes && batch.num_rows() > 0;
  const model::Batch launched = graph ? filled(batch) : batch;
  ACCORD_RETURN_IF_ERROR(model_.set_batch(launched));
  slot.num_rows = batch.num_rows();
  slot.graph_rows = launched.num_rows();
  slot.record = step.record_routing && routing_width() > 0;
  if (slot.record) {
    const size_t bytes = static_cast<size_t>(max_batch_rows_ * routing_width()) * sizeof(int32_t);
    ACCORD_RETURN_IF_ERROR(routing_.ensure(device(), bytes));
    ACCORD_RETURN_IF_ERROR(slot.routing_host.ensure(device(), bytes, MemoryKind::kPinned));
  }
  ACCORD_RETURN_IF_ERROR(send_tasks(step, slot));
  if (token_tasks_ != nullptr) {
    const Slot& before = slots_[(submitted_ + kSlots - 1) % kSlots];
    cuda::take_tokens(before.results.as<DrawResult>(), token_tasks_, slot.graph_rows, model_.batch_tokens(),
                      stream().handle());
  }
  x_TH_ = x_.matrix(Dtype::kBF16, launched.num_rows(), config_.hidden_size);
  const auto launches = [&] { return launch_layers(slot.record); };
  if (graph) {
    const GraphKey key{GraphKey::Part::kForward, launched.num_rows(), model_.decode_splits(), slot.record};
    ACCORD_RETURN_IF_ERROR(run(key, launches));
  } else {
    ACCORD_RETURN_IF_ERROR(launches());
  }
  if (!slot.record) return absl::OkStatus();
  return stream().copy(slot.routing_host.data(), routing_.data(),
                       static_cast<size_t>(slot.graph_rows * routing_width()) * sizeof(int32_t));
}

Status CudaPolicy::launch_layers(bool record) {
  const int64_t layer_ids = x_TH_.rows * config_.num_experts_per_token;
  model_.embed(x_TH_);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const int64_t slot = moe_slot_[static_cast<size_t>(layer)];
    int32_t* ids = record && slot >= 0 ? routing_.as<int32_t>() + slot * layer_ids : nullptr;
    model_.layer_forward(layer, kv_[static_cast<size_t>(layer)], x_TH_, {.record = ids, .replay = nullptr},
                         nullptr, layer + 1 < config_.num_layers);
  }
  return absl::OkStatus();
}

Status CudaPolicy::run(const GraphKey& key, const std::function<Status()>& launches) {
  addresses_.clear();
  model_.addresses(addresses_);
  for (const DeviceBuffer* b : {&x_, &routing_, &logits_, &tasks_}) b->add_bounds(addresses_);
  return graphs_.run(key, addresses_, launches);
}

// [MoE layers][graph's rows, K] -> routing [rows][MoE layers, K]
void CudaPolicy::read_routing(const Slot& slot, std::vector<int32_t>& routing) const {
  const int64_t top_k = config_.num_experts_per_token;
  const int64_t num_layers = routing_width() / top_k;
  routing.resize(static_cast<size_t>(slot.num_rows * routing_width()));
  for (int64_t layer = 0; layer < num_layers; ++layer) {
    const int32_t* from = slot.routing_host.as<int32_t>() + layer * slot.graph_rows * top_k;
    for (int64_t t = 0; t < slot.num_rows; ++t, from += top_k) {
      std::copy_n(from, top_k, routing.data() + t * routing_width() + layer * top_k);
    }
  }
}

// ---- drawing -----------------------------------------------------------------------------------

// Each task has logits of its own: those of a prompt's samples, which share a row, are the same bits, and
// rare.
Status CudaPolicy::submit(const Step& step) {
  require(submitted_ - collected_ < kSlots, "at most max_steps_ahead() steps under way");
  Slot& slot = slots_[submitted_ % kSlots];
  ACCORD_RETURN_IF_ERROR(forward(step, slot));
  const auto num_tasks = static_cast<int64_t>(step.tasks.size());
  slot.temperatures.clear();
  for (const DrawTask& task : step.tasks) slot.temperatures.push_back(task.sampling->temperature);
  ACCORD_RETURN_IF_ERROR(launch_draws(num_tasks, slot));
  ACCORD_RETURN_IF_ERROR(
      stream().copy(slot.results_host.data(), slot.results.data(), step.tasks.size() * sizeof(DrawResult)));
  ACCORD_RETURN_IF_ERROR(slot.done.record(stream()));
  ++submitted_;
  return absl::OkStatus();
}

Status CudaPolicy::collect(StepResult& result) {
  require(collected_ < submitted_, "a step under way");
  const Slot& slot = slots_[collected_ % kSlots];
  ++collected_;
  ACCORD_RETURN_IF_ERROR(slot.done.synchronize());
  result.drawn.clear();
  for (size_t i = 0; i < slot.temperatures.size(); ++i) result.drawn.push_back(outcome(slot, i));
  result.routing.clear();
  if (slot.record) read_routing(slot, result.routing);
  result.sampling_seconds = 0.0;
  for (size_t piece = 0; piece < slot.num_pieces; ++piece) {
    ACCORD_ASSIGN_OR_RETURN(const double milliseconds,
                            slot.intervals[piece].end.milliseconds_since(slot.intervals[piece].start));
    result.sampling_seconds += milliseconds * 1e-3;
  }
  return absl::OkStatus();
}

// Rows whose logits are computed for so many tasks: a graph's, or just theirs.
int64_t CudaPolicy::task_rows(int64_t num_tasks) const {
  return use_graphs_ && num_tasks > 0 && num_tasks <= logits_rows_ ? graph_rows(num_tasks, logits_rows_)
                                                                   : num_tasks;
}

Status CudaPolicy::reserve_tasks(Slot& slot, int64_t num_tasks, int64_t num_rows) {
  const size_t bytes = static_cast<size_t>(num_tasks) * (sizeof(DrawRequest) + sizeof(int32_t)) +
                       static_cast<size_t>(num_rows) * sizeof(int32_t);
  const size_t result_bytes = static_cast<size_t>(num_tasks) * sizeof(DrawResult);
  ACCORD_RETURN_IF_ERROR(tasks_.ensure(device(), bytes));
  ACCORD_RETURN_IF_ERROR(slot.tasks.ensure(device(), bytes, MemoryKind::kPinned));
  ACCORD_RETURN_IF_ERROR(slot.results.ensure(device(), result_bytes));
  return slot.results_host.ensure(device(), result_bytes, MemoryKind::kPinned);
}

// Requests and the rows that they are about, of as many tasks as task_rows says (the last one repeats), then
// token_tasks, where a token is not known.
Status CudaPolicy::send_tasks(const Step& step, Slot& slot) {
  const std::span<const DrawTask> tasks = step.tasks;
  const int64_t rows = task_rows(static_cast<int64_t>(tasks.size()));
  ACCORD_RETURN_IF_ERROR(reserve_tasks(slot, rows, slot.graph_rows));
  auto* const host = slot.tasks.as<std::byte>();
  auto* request = reinterpret_cast<DrawRequest*>(host);
  auto* const words = reinterpret_cast<int32_t*>(host + static_cast<size_t>(rows) * sizeof(DrawRequest));
  int32_t* word = words;
  for (int64_t i = 0; i < rows; ++i) {
    const DrawTask& task = tasks[std::min(static_cast<size_t>(i), tasks.size() - 1)];
    *request++ = {.random = task.random,
                  .temperature = task.sampling->temperature,
                  .top_p = task.sampling->top_p,
                  .top_k = task.sampling->top_k};
    *word++ = task.row;
  }
  const auto unknown = [](int32_t task) { return task >= 0; };
  token_tasks_ = nullptr;
  if (std::any_of(step.token_tasks.begin(), step.token_tasks.end(), unknown)) {
    word = std::copy(step.token_tasks.begin(), step.token_tasks.end(), word);
    word = std::fill_n(word, slot.graph_rows - slot.num_rows, step.token_tasks.back());
  }
  const auto* const on_device = tasks_.as<std::byte>();
  rows_ = reinterpret_cast<const int32_t*>(on_device + (reinterpret_cast<std::byte*>(words) - host));
  if (word != words + rows) token_tasks_ = rows_ + rows;
  return stream().copy(tasks_.data(), host, static_cast<size_t>(reinterpret_cast<std::byte*>(word) - host));
}

Status CudaPolicy::launch_draws(int64_t num_tasks, Slot& slot) {
  slot.num_pieces = 0;
  for (int64_t begin = 0; begin < num_tasks; begin += logits_rows_) {
    if (slot.num_pieces == slot.intervals.size()) {
      ACCORD_ASSIGN_OR_RETURN(Event start, Event::create(device()));
      ACCORD_ASSIGN_OR_RETURN(Event end, Event::create(device()));
      slot.intervals.push_back({std::move(start), std::move(end)});
    }
    Interval& interval = slot.intervals[slot.num_pieces++];
    const int64_t count = std::min(logits_rows_, num_tasks - begin);
    const MatrixView logits_RV = logits_view(count);
    if (use_graphs_ && num_tasks <= logits_rows_) {
      const int64_t rows = task_rows(num_tasks);
      const MatrixView all = x_.matrix(Dtype::kBF16, max_batch_rows_, config_.hidden_size);
      ACCORD_RETURN_IF_ERROR(run({GraphKey::Part::kHead, rows, 0, false},
                                 [&] { return model_.logits(all, rows_, rows, logits_view(rows)); }));
    } else {
      ACCORD_RETURN_IF_ERROR(model_.logits(x_TH_, rows_ + begin, count, logits_RV));
    }
    ACCORD_RETURN_IF_ERROR(interval.start.record(stream()));
    cuda::draw_tokens(logits_RV, tasks_.as<DrawRequest>() + begin, slot.results.as<DrawResult>() + begin,
                      stream().handle());
    ACCORD_RETURN_IF_ERROR(interval.end.record(stream()));
  }
  return absl::OkStatus();
}

StatusOr<DrawnToken> CudaPolicy::outcome(const Slot& slot, size_t index) const {
  const DrawResult& result = slot.results_host.as<DrawResult>()[index];
  if (result.bad_token >= 0) return logit_not_finite(result.bad_token, result.logprob);
  if (result.overflow != 0) return tempered_logits_overflow(slot.temperatures[index]);
  return DrawnToken{
      .token = result.token, .logprob = result.logprob, .sampling_logprob = result.sampling_logprob};
}

}  // namespace

StatusOr<std::unique_ptr<Policy>> make_cuda_policy(model::CudaModel& model, bool graphs) {
  if (model.config().vocab_size > cuda::kMaxDrawVocab) {
    return recipe_error("a vocabulary of {} tokens: the CUDA sampler takes at most {} (use device: cpu)",
                        model.config().vocab_size, cuda::kMaxDrawVocab);
  }
  return std::make_unique<CudaPolicy>(model, graphs && model.capturable());
}

}  // namespace accord::rollout
