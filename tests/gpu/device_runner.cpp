#include "device_runner.hpp"

#include <algorithm>
#include <numeric>
#include <utility>

#include "base/philox.hpp"

namespace gpu_test {

using namespace accord;

namespace {

constexpr uint8_t kNanByte = 0xff;  // whatever reads a position that nobody wrote shows

}  // namespace

std::vector<int32_t> random_tokens(int64_t vocab, int32_t length, uint64_t seed) {
  PhiloxStream random(seed, 5);
  std::vector<int32_t> out;
  for (int32_t i = 0; i < length; ++i) {
    out.push_back(static_cast<int32_t>(random.next_below(static_cast<uint64_t>(vocab))));
  }
  return out;
}

DeviceRunner::DeviceRunner(const Gpu& gpu, model::CudaModel& model,
                           std::vector<std::vector<int32_t>> sequences, uint64_t page_seed)
    : gpu_(gpu), model_(model), sequences_(std::move(sequences)) {
  const ModelConfig& c = model.config();
  std::vector<int32_t> order;
  for (const auto& sequence : sequences_) {
    const size_t count = sequence.size() / model::kPageSize + 1;
    pages_.emplace_back(count);
    order.resize(order.size() + count);
  }
  std::iota(order.begin(), order.end(), 0);
  PhiloxStream random(page_seed, 1);
  for (size_t i = order.size() - 1; page_seed != 0 && i > 0; --i) {
    std::swap(order[i], order[random.next_below(i + 1)]);
  }
  auto next = order.begin();
  for (auto& pages : pages_) {
    for (int32_t& page : pages) page = *next++ * model::kPageSize;
  }
  cache_rows_ = static_cast<int64_t>(order.size()) * model::kPageSize;
  logits_.resize(sequences_.size());
  const KvWidths widths = kv_widths(c);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (auto [cache, width] : {std::pair{&keys_, widths.k}, {&values_, widths.v}}) {
      const size_t bytes = static_cast<size_t>(cache_rows_ * width) * sizeof(BF16);
      cache->push_back(gpu.allocate(bytes));
      must(gpu.stream().fill(cache->back().data(), kNanByte, bytes));
    }
  }
}

void DeviceRunner::run(const std::vector<Piece>& pieces, bool tape,
                       const std::vector<std::vector<int32_t>>* replay) {
  const ModelConfig& c = model_.config();
  std::vector<int32_t> tokens, positions, kv_rows, rows;
  std::vector<model::Segment> segments;
  for (const Piece& p : pieces) {
    const auto s = static_cast<size_t>(p.sequence);
    segments.push_back({static_cast<int32_t>(tokens.size()), p.count, p.first, pages_[s].data()});
    for (int32_t i = p.first; i < p.first + p.count; ++i) {
      rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(sequences_[s][static_cast<size_t>(i)]);
      positions.push_back(i);
      kv_rows.push_back(pages_[s][static_cast<size_t>(i / model::kPageSize)] + i % model::kPageSize);
    }
  }
  const model::Batch batch{tokens, positions, kv_rows, segments};
  must(model_.check(batch, cache_rows_));
  must(model_.set_batch(batch));
  const int64_t n = batch.num_rows();
  const Memory x_memory = gpu_.allocate(static_cast<size_t>(n * c.hidden_size) * sizeof(BF16));
  const MatrixView x{x_memory.data(), Dtype::kBF16, n, c.hidden_size, c.hidden_size};
  model_.embed(x);
  expert_ids_.assign(static_cast<size_t>(c.num_layers), {});
  const size_t num_ids = static_cast<size_t>(n * std::max<int64_t>(c.num_experts_per_token, 1));
  const Memory ids = gpu_.allocate(num_ids * sizeof(int32_t));
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const model::KvLayer kv =
        model::kv_layer(c, Dtype::kBF16, cache_rows_, keys_[l].data(), values_[l].data());
    model::CudaLayerTape own;
    if (tape) must(own.reserve(model_.device(), c, layer, n));
    const bool moe = c.layer_is_moe[l];
    model::CudaRouting routing{moe ? ids.as<int32_t>() : nullptr, nullptr};
    Memory replayed;
    if (moe && replay != nullptr) {
      replayed = gpu_.upload((*replay)[l]);
      routing.replay = replayed.as<int32_t>();
    }
    model_.layer_forward(layer, kv, x, routing, tape ? &own : nullptr);
    if (moe) expert_ids_[l] = gpu_.download<int32_t>(ids, num_ids);
    gpu_.synchronize();  // own goes
  }
  const Memory row_memory = gpu_.upload(rows);
  const Memory out_memory = gpu_.allocate(static_cast<size_t>(n * c.vocab_size) * sizeof(float));
  must(model_.logits(x, row_memory.as<int32_t>(), n,
                     {out_memory.data(), Dtype::kF32, n, c.vocab_size, c.vocab_size}));
  const std::vector<float> out = gpu_.download<float>(out_memory, static_cast<size_t>(n * c.vocab_size));
  auto row = out.begin();
  for (const Piece& p : pieces) {
    std::vector<float>& all = logits_[static_cast<size_t>(p.sequence)];
    const size_t end = static_cast<size_t>((p.first + p.count) * c.vocab_size);
    all.resize(std::max(all.size(), end));
    std::copy_n(row, p.count * c.vocab_size, all.begin() + p.first * c.vocab_size);
    row += p.count * c.vocab_size;
  }
}

}  // namespace gpu_test
