#include "fixture.hpp"

#include <algorithm>
#include <cstring>
#include <numeric>

#include "base/philox.hpp"
#include "checkpoint/safetensors.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/formats/nvfp4.hpp"
#include "support/catch.hpp"

namespace accord::model::testing {
namespace {

constexpr int64_t kMaxLength = 1100;

int64_t aligned(int64_t bytes) { return (bytes + 255) / 256 * 256; }

bool is_projection(ParamRole role) {
  return role != ParamRole::kEmbedding && role != ParamRole::kLmHead && role != ParamRole::kNorm &&
         role != ParamRole::kRouter;
}

WeightManifest lay_out(const ModelConfig& config, WeightFormat format) {
  WeightManifest manifest;
  int64_t offset = 0;
  const auto place = [&](int64_t bytes) {
    const int64_t at = offset;
    offset += aligned(bytes);
    return at;
  };
  for (const ParamSpec& spec : parameter_specs(config)) {
    WeightEntry e;
    e.name = spec.name;
    e.shape = spec.shape;
    e.format = is_projection(spec.role) ? format : WeightFormat::kBF16;
    const int64_t n = spec.numel();
    e.data_bytes = e.format == WeightFormat::kBF16 ? 2 * n : e.format == WeightFormat::kMXFP8 ? n : n / 2;
    e.data_offset = place(e.data_bytes);
    if (e.format != WeightFormat::kBF16) {
      e.scale_bytes = e.format == WeightFormat::kMXFP8 ? n / 32 : n / 16;
      e.scale_offset = place(e.scale_bytes);
    }
    if (e.format == WeightFormat::kNVFP4) {
      e.outer_bytes = 4;
      e.outer_offset = place(4);
    }
    manifest.entries.push_back(e);
  }
  manifest.arena_bytes = offset;
  return manifest;
}

void store(TestWeights& weights, const WeightEntry& e, std::vector<BF16> values) {
  auto* arena = weights.arena.as<uint8_t>();
  if (e.format == WeightFormat::kBF16) {
    std::memcpy(arena + e.data_offset, values.data(), values.size() * sizeof(BF16));
    return;
  }
  const MatrixView view = matrix_view(values.data(), e.shape[0], e.shape[1]);
  if (e.format == WeightFormat::kMXFP8) {
    formats::quantize_mxfp8_rows(view, arena + e.data_offset, arena + e.scale_offset,
                                 formats::Element::kE4M3);
  } else {
    formats::quantize_nvfp4(
        view, {},
        {arena + e.data_offset, arena + e.scale_offset, reinterpret_cast<float*>(arena + e.outer_offset)});
  }
}

TestWeights empty_weights(const ModelConfig& config, WeightFormat format) {
  TestWeights weights;
  weights.manifest = lay_out(config, format);
  weights.arena.ensure(static_cast<size_t>(weights.manifest.arena_bytes));
  std::memset(weights.arena.data(), 0, static_cast<size_t>(weights.manifest.arena_bytes));
  return weights;
}

}  // namespace

TestWeights random_weights(const ModelConfig& config, WeightFormat format, uint64_t seed) {
  TestWeights weights = empty_weights(config, format);
  PhiloxStream random(seed, 0);
  for (const WeightEntry& e : weights.manifest.entries) {
    const bool norm = e.shape.size() == 1;
    size_t count = 1;
    for (const int64_t d : e.shape) count *= static_cast<size_t>(d);
    std::vector<BF16> values(count);
    for (BF16& v : values) {
      v = to_bf16(static_cast<float>(norm ? 1.0 + 0.1 * random.next_normal() : 0.15 * random.next_normal()));
    }
    store(weights, e, std::move(values));
  }
  return weights;
}

TestWeights checkpoint_weights(const ModelConfig& config, const std::string& dir, WeightFormat format) {
  TestWeights weights = empty_weights(config, format);
  const auto file = checkpoint::SafetensorsFile::open(dir + "/model.safetensors");
  REQUIRE(file.ok());
  for (const WeightEntry& e : weights.manifest.entries) {
    const auto tensor = file->require(e.name, Dtype::kBF16, e.shape);
    REQUIRE(tensor.ok());
    std::vector<BF16> values(static_cast<size_t>((*tensor)->numel()));
    std::memcpy(values.data(), (*tensor)->data, values.size() * sizeof(BF16));
    store(weights, e, std::move(values));
  }
  return weights;
}

ModelConfig small_config(bool moe) {
  ModelConfig c;
  c.architecture = moe ? Architecture::kQwen3Moe : Architecture::kLlama;
  c.vocab_size = 203;
  c.hidden_size = 96;
  c.num_layers = 2;
  c.num_heads = 6;
  c.num_kv_heads = 2;
  c.head_dim = moe ? 32 : 16;
  c.intermediate_size = 160;
  c.layer_is_moe = {moe, moe};
  c.qk_norm = moe;
  c.tie_word_embeddings = !moe;
  c.max_position_embeddings = 2048;
  if (moe) {
    c.num_experts = 8;
    c.num_experts_per_token = 3;
    c.moe_intermediate_size = 64;
  } else {
    c.rope_scaling = {8.0, 1.0, 4.0, 64};
  }
  return c;
}

std::unique_ptr<Model> make_model(const ModelConfig& config, const TestWeights& weights, Dtype dtype,
                                  ThreadPool& pool) {
  auto bound = bind_weights(config, weights.manifest, weights.arena.data());
  REQUIRE(bound.ok());
  auto model = Model::create(config, *bound, dtype, pool);
  REQUIRE(model.ok());
  return std::move(*model);
}

Runner::Runner(Model& model, std::vector<std::vector<int32_t>> sequences, uint64_t page_seed)
    : model_(model), sequences_(std::move(sequences)) {
  const ModelConfig& c = model.config();
  const auto pages_each = static_cast<int32_t>((kMaxLength + kPageSize - 1) / kPageSize);
  const int32_t total = pages_each * static_cast<int32_t>(sequences_.size());
  std::vector<int32_t> order(static_cast<size_t>(total));
  std::iota(order.begin(), order.end(), 0);
  PhiloxStream random(page_seed, 1);
  for (size_t i = order.size() - 1; page_seed != 0 && i > 0; --i) {
    std::swap(order[i], order[random.next_below(i + 1)]);
  }
  for (int32_t s = 0; s < static_cast<int32_t>(sequences_.size()); ++s) {
    std::vector<int32_t> pages;
    for (int32_t i = 0; i < pages_each; ++i) {
      pages.push_back(order[static_cast<size_t>(s * pages_each + i)] * kPageSize);
    }
    pages_.push_back(std::move(pages));
  }
  cache_rows_ = int64_t{total} * kPageSize;
  logits_.resize(sequences_.size());
  const int64_t width = c.num_kv_heads * c.head_dim;
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (std::vector<Buffer>* cache : {&keys_, &values_}) {
      cache->emplace_back();
      const MatrixView view = cache->back().matrix(model.compute_dtype(), cache_rows_, width);
      // NaN everywhere: whatever reads a position that nobody wrote shows.
      std::memset(view.data, 0xff, static_cast<size_t>(cache_rows_ * width * size_of(view.dtype)));
    }
  }
}

void Runner::run(const std::vector<Piece>& pieces, LayerTape* tape) {
  const ModelConfig& c = model_.config();
  std::vector<int32_t> tokens, positions, kv_rows, rows;
  std::vector<Segment> segments;
  for (const Piece& p : pieces) {
    const auto s = static_cast<size_t>(p.sequence);
    segments.push_back({static_cast<int32_t>(tokens.size()), p.count, p.first, pages_[s].data()});
    for (int32_t i = p.first; i < p.first + p.count; ++i) {
      rows.push_back(static_cast<int32_t>(tokens.size()));
      tokens.push_back(sequences_[s][static_cast<size_t>(i)]);
      positions.push_back(i);
      kv_rows.push_back(pages_[s][static_cast<size_t>(i / kPageSize)] + i % kPageSize);
    }
  }
  const Batch batch{tokens, positions, kv_rows, segments};
  REQUIRE(model_.check(batch, cache_rows_).ok());
  const int64_t n = batch.num_rows();
  const MatrixView x = x_.matrix(model_.compute_dtype(), n, c.hidden_size);
  const int64_t width = c.num_kv_heads * c.head_dim;
  model_.embed(batch, x);
  expert_ids_.assign(static_cast<size_t>(c.num_layers), {});
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const KvLayer kv{{keys_[l].data(), model_.compute_dtype(), cache_rows_, width, width},
                     {values_[l].data(), model_.compute_dtype(), cache_rows_, width, width}};
    REQUIRE(model_.layer_forward(layer, batch, kv, x, {&expert_ids_[l], {}}, tape).ok());
  }
  const MatrixView out = out_.matrix(Dtype::kF32, n, c.vocab_size);
  model_.logits(x, rows, out);
  int64_t row = 0;
  for (const Piece& p : pieces) {
    std::vector<float>& all = logits_[static_cast<size_t>(p.sequence)];
    for (int32_t i = p.first; i < p.first + p.count; ++i, ++row) {
      const auto at = static_cast<size_t>(int64_t{i} * c.vocab_size);
      all.resize(std::max(all.size(), at + static_cast<size_t>(c.vocab_size)));
      std::copy_n(out.row<float>(row), c.vocab_size, all.begin() + static_cast<std::ptrdiff_t>(at));
    }
  }
}

}  // namespace accord::model::testing
