// The policy over model::CudaModel: the KV cache, the residual stream, logits and the sampler on the device.
//
// A step puts everything into the model's stream and waits once, for the drawn tokens (and before them for
// the expert ids, where they are recorded). Steps that draw nothing, such as a long prompt's, do not wait.
//
// A forward whose rows all decode, and the logits of up to a batch of rows, run as captured graphs, of as
// many rows as graph_rows says. Rows beyond the batch's repeat its last one, and write their keys and values
// behind the cache: as every row's bits are its own, nothing else notices them. All that differs between two
// such steps lies in the batch's and the tasks' memory.
#include <algorithm>
#include <bit>
#include <functional>
#include <utility>

#include "device/device_buffer.hpp"
#include "device/memory.hpp"
#include "device/stream.hpp"
#include "kernels/copy/copy_cuda.hpp"
#include "kernels/sampler/sampler_cuda.hpp"
#include "model/cuda_model.hpp"
#include "rollout/graph_cache.hpp"
#include "rollout/policy.hpp"
#include "rollout/stopwatch.hpp"

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

  Status begin() override { return device().make_current(); }
  Status end() override { return stream().synchronize(); }
  void copy_rows(int32_t from, int32_t to, int32_t count) override;
  Status forward(const model::Batch& batch, std::vector<int32_t>* routing) override;
  Status draw(std::span<const DrawTask> tasks, std::span<StatusOr<DrawnToken>> drawn,
              DrawSeconds& seconds) override;
  GraphCounts take_graph_counts() override { return graphs_.take_counts(); }

 private:
  struct Interval {
    Event start, end;
  };

  const Device& device() const { return model_.device(); }
  const Stream& stream() const { return model_.stream(); }
  int64_t layer_rows() const { return cache_rows_ + kFillRows; }
  int64_t layer_elements() const { return layer_rows() * (widths_.k + widths_.v); }

  Status allocate_cache();
  model::Batch filled(const model::Batch& batch);
  Status launch_layers(bool record);
  Status run(const GraphKey& key, const std::function<Status()>& launches);
  Status read_routing(int64_t num_rows, std::vector<int32_t>& routing);
  int64_t task_rows(int64_t num_tasks) const;
  Status reserve_tasks(int64_t num_tasks);
  Status send_tasks(std::span<const DrawTask> tasks, int64_t rows);
  Status launch_draws(int64_t num_tasks, size_t& num_pieces);
  StatusOr<DrawnToken> outcome(const DrawTask& task, int64_t index);
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
  DeviceBuffer routing_, routing_host_;  // [MoE layers][T, K]
  // Of one draw(), which waits for all of it. Tasks: the requests, then the rows.
  int64_t logits_rows_ = 0;
  DeviceBuffer logits_;
  DeviceBuffer tasks_, tasks_host_;
  DeviceBuffer results_, results_host_;
  const int32_t* rows_ = nullptr;    // in tasks_
  std::vector<Interval> intervals_;  // of each piece's sampling
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
  ACCORD_RETURN_IF_ERROR(reserve_tasks(max_batch_rows));
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

Status CudaPolicy::forward(const model::Batch& batch, std::vector<int32_t>* routing) {
  const bool decodes = static_cast<int64_t>(batch.segments.size()) == batch.num_rows();
  const bool graph = use_graphs_ && decodes && batch.num_rows() > 0;
  const model::Batch launched = graph ? filled(batch) : batch;
  ACCORD_RETURN_IF_ERROR(model_.set_batch(launched));
  const bool record = routing != nullptr && routing_width() > 0;
  if (record) {
    const size_t bytes = static_cast<size_t>(max_batch_rows_ * routing_width()) * sizeof(int32_t);
    ACCORD_RETURN_IF_ERROR(routing_.ensure(device(), bytes));
    ACCORD_RETURN_IF_ERROR(routing_host_.ensure(device(), bytes, MemoryKind::kPinned));
  }
  x_TH_ = x_.matrix(Dtype::kBF16, launched.num_rows(), config_.hidden_size);
  const auto launches = [&] { return launch_layers(record); };
  if (graph) {
    const GraphKey key{GraphKey::Part::kForward, launched.num_rows(), model_.decode_splits(), record};
    ACCORD_RETURN_IF_ERROR(run(key, launches));
  } else {
    ACCORD_RETURN_IF_ERROR(launches());
  }
  return record ? read_routing(batch.num_rows(), *routing) : absl::OkStatus();
}

Status CudaPolicy::launch_layers(bool record) {
  const int64_t layer_ids = x_TH_.rows * config_.num_experts_per_token;
  model_.embed(x_TH_);
  for (int64_t layer = 0; layer < config_.num_layers; ++layer) {
    const int64_t slot = moe_slot_[static_cast<size_t>(layer)];
    int32_t* ids = record && slot >= 0 ? routing_.as<int32_t>() + slot * layer_ids : nullptr;
    model_.layer_forward(layer, kv_[static_cast<size_t>(layer)], x_TH_, {.record = ids, .replay = nullptr},
                         nullptr);
  }
  return absl::OkStatus();
}

Status CudaPolicy::run(const GraphKey& key, const std::function<Status()>& launches) {
  addresses_.clear();
  model_.addresses(addresses_);
  for (const DeviceBuffer* b : {&x_, &routing_, &logits_, &tasks_}) b->add_bounds(addresses_);
  return graphs_.run(key, addresses_, launches);
}

// [MoE layers][T, K] on the device -> routing [num_rows][MoE layers, K], num_rows <= T
Status CudaPolicy::read_routing(int64_t num_rows, std::vector<int32_t>& routing) {
  const int64_t top_k = config_.num_experts_per_token;
  const int64_t num_slots = routing_width() / top_k;
  routing.resize(static_cast<size_t>(num_rows * routing_width()));
  ACCORD_RETURN_IF_ERROR(stream().copy(routing_host_.data(), routing_.data(),
                                       static_cast<size_t>(x_TH_.rows * routing_width()) * sizeof(int32_t)));
  ACCORD_RETURN_IF_ERROR(stream().synchronize());
  for (int64_t slot = 0; slot < num_slots; ++slot) {
    const int32_t* from = routing_host_.as<int32_t>() + slot * x_TH_.rows * top_k;
    for (int64_t t = 0; t < num_rows; ++t, from += top_k) {
      std::copy_n(from, top_k, routing.data() + t * routing_width() + slot * top_k);
    }
  }
  return absl::OkStatus();
}

// ---- drawing -----------------------------------------------------------------------------------

// Each task has logits of its own: those of a prompt's samples, which share a row, are the same bits, and
// rare.
Status CudaPolicy::draw(std::span<const DrawTask> tasks, std::span<StatusOr<DrawnToken>> drawn,
                        DrawSeconds& seconds) {
  if (tasks.empty()) {
    return absl::OkStatus();
  }
  double total = 0.0;
  size_t num_pieces = 0;
  {
    const Stopwatch watch(total);
    const auto num_tasks = static_cast<int64_t>(tasks.size());
    ACCORD_RETURN_IF_ERROR(send_tasks(tasks, task_rows(num_tasks)));
    ACCORD_RETURN_IF_ERROR(launch_draws(num_tasks, num_pieces));
    ACCORD_RETURN_IF_ERROR(
        stream().copy(results_host_.data(), results_.data(), tasks.size() * sizeof(DrawResult)));
    ACCORD_RETURN_IF_ERROR(stream().synchronize());
    for (int64_t i = 0; i < num_tasks; ++i) {
      drawn[static_cast<size_t>(i)] = outcome(tasks[static_cast<size_t>(i)], i);
    }
  }
  double sampling = 0.0;
  for (size_t piece = 0; piece < num_pieces; ++piece) {
    ACCORD_ASSIGN_OR_RETURN(const double milliseconds,
                            intervals_[piece].end.milliseconds_since(intervals_[piece].start));
    sampling += milliseconds * 1e-3;
  }
  seconds.sampling += sampling;
  seconds.logits += std::max(total - sampling, 0.0);
  return absl::OkStatus();
}

// Rows whose logits are computed for so many tasks: a graph's, or just theirs.
int64_t CudaPolicy::task_rows(int64_t num_tasks) const {
  return use_graphs_ && num_tasks <= logits_rows_ ? graph_rows(num_tasks, logits_rows_) : num_tasks;
}

Status CudaPolicy::reserve_tasks(int64_t num_tasks) {
  const size_t bytes = static_cast<size_t>(num_tasks) * (sizeof(DrawRequest) + sizeof(int32_t));
  const size_t result_bytes = static_cast<size_t>(num_tasks) * sizeof(DrawResult);
  ACCORD_RETURN_IF_ERROR(tasks_.ensure(device(), bytes));
  ACCORD_RETURN_IF_ERROR(tasks_host_.ensure(device(), bytes, MemoryKind::kPinned));
  ACCORD_RETURN_IF_ERROR(results_.ensure(device(), result_bytes));
  return results_host_.ensure(device(), result_bytes, MemoryKind::kPinned);
}

// Requests, then the rows that they are about, of `rows` tasks: the last one repeats.
Status CudaPolicy::send_tasks(std::span<const DrawTask> tasks, int64_t rows) {
  ACCORD_RETURN_IF_ERROR(reserve_tasks(rows));
  const size_t request_bytes = static_cast<size_t>(rows) * sizeof(DrawRequest);
  auto* request = tasks_host_.as<DrawRequest>();
  auto* row = reinterpret_cast<int32_t*>(tasks_host_.as<std::byte>() + request_bytes);
  for (int64_t i = 0; i < rows; ++i) {
    const DrawTask& task = tasks[std::min(static_cast<size_t>(i), tasks.size() - 1)];
    *request++ = {.random = task.random,
                  .temperature = task.sampling->temperature,
                  .top_p = task.sampling->top_p,
                  .top_k = task.sampling->top_k};
    *row++ = task.row;
  }
  rows_ = reinterpret_cast<const int32_t*>(tasks_.as<std::byte>() + request_bytes);
  return stream().copy(tasks_.data(), tasks_host_.data(),
                       request_bytes + static_cast<size_t>(rows) * sizeof(int32_t));
}

Status CudaPolicy::launch_draws(int64_t num_tasks, size_t& num_pieces) {
  for (int64_t begin = 0; begin < num_tasks; begin += logits_rows_, ++num_pieces) {
    if (num_pieces == intervals_.size()) {
      ACCORD_ASSIGN_OR_RETURN(Event start, Event::create(device()));
      ACCORD_ASSIGN_OR_RETURN(Event end, Event::create(device()));
      intervals_.push_back({std::move(start), std::move(end)});
    }
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
    ACCORD_RETURN_IF_ERROR(intervals_[num_pieces].start.record(stream()));
    cuda::draw_tokens(logits_RV, tasks_.as<DrawRequest>() + begin, results_.as<DrawResult>() + begin,
                      stream().handle());
    ACCORD_RETURN_IF_ERROR(intervals_[num_pieces].end.record(stream()));
  }
  return absl::OkStatus();
}

StatusOr<DrawnToken> CudaPolicy::outcome(const DrawTask& task, int64_t index) {
  const DrawResult& result = results_host_.as<DrawResult>()[index];
  if (result.bad_token >= 0) {
    // The error names the logit, which may be overwritten by now.
    const MatrixView logits_RV = logits_view(1);
    float logit = 0.0F;
    ACCORD_RETURN_IF_ERROR(model_.logits(x_TH_, rows_ + index, 1, logits_RV));
    ACCORD_RETURN_IF_ERROR(
        stream().copy(&logit, static_cast<const float*>(logits_RV.data) + result.bad_token, sizeof(logit)));
    ACCORD_RETURN_IF_ERROR(stream().synchronize());
    return logit_not_finite(result.bad_token, logit);
  }
  if (result.overflow != 0) {
    return tempered_logits_overflow(task.sampling->temperature);
  }
  return DrawnToken{
      .token = result.token, .logprob = result.logprob, .sampling_logprob = result.sampling_logprob};
}

}  // namespace

StatusOr<std::unique_ptr<Policy>> make_cuda_policy(model::CudaModel& model, bool graphs) {
  if (model.config().vocab_size > cuda::kMaxDrawVocab) {
    return recipe_error("a vocabulary of {} tokens: the CUDA sampler takes at most {} (use device: cpu)",
                        model.config().vocab_size, cuda::kMaxDrawVocab);
  }
  return std::make_unique<CudaPolicy>(model, graphs);
}

}  // namespace accord::rollout
