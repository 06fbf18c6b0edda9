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
         role != ParamRole::kRouter && role != ParamRole::kRouterBias;
}

WeightFormat format_of(const ParamSpec& spec, WeightFormat format, WeightFormat kv_b) {
  if (spec.role == ParamRole::kRouterBias) return WeightFormat::kF32;
  if (spec.role == ParamRole::kKvB) return kv_b;
  return is_projection(spec.role) && !spec.shared ? format : WeightFormat::kBF16;
}

int64_t bytes_of(WeightFormat format, int64_t numel) {
  switch (format) {
    case WeightFormat::kF32:
      return 4 * numel;
    case WeightFormat::kBF16:
      return 2 * numel;
    case WeightFormat::kMXFP8:
      return numel;
    case WeightFormat::kNVFP4:
      break;
  }
  return numel / 2;
}

WeightManifest lay_out(const ModelConfig& config, WeightFormat format,
                       WeightFormat kv_b = WeightFormat::kBF16) {
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
    e.format = format_of(spec, format, kv_b);
    const int64_t n = spec.numel();
    e.data_bytes = bytes_of(e.format, n);
    e.data_offset = place(e.data_bytes);
    if (e.format == WeightFormat::kMXFP8 || e.format == WeightFormat::kNVFP4) {
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
  if (e.format == WeightFormat::kF32) {
    std::transform(values.begin(), values.end(), reinterpret_cast<float*>(arena + e.data_offset),
                   [](BF16 x) { return to_float(x); });
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

TestWeights empty_weights(const ModelConfig& config, WeightFormat format,
                          WeightFormat kv_b = WeightFormat::kBF16) {
  TestWeights weights;
  weights.manifest = lay_out(config, format, kv_b);
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

TestWeights with_kv_b(const ModelConfig& config, const TestWeights& weights, WeightFormat format) {
  TestWeights out = empty_weights(config, WeightFormat::kBF16, format);
  for (size_t i = 0; i < out.manifest.entries.size(); ++i) {
    const WeightEntry& from = weights.manifest.entries[i];
    const WeightEntry& to = out.manifest.entries[i];
    const auto* source = weights.arena.as<uint8_t>() + from.data_offset;
    if (from.format == to.format) {
      REQUIRE(from.data_bytes == to.data_bytes);
      std::memcpy(out.arena.as<uint8_t>() + to.data_offset, source, static_cast<size_t>(to.data_bytes));
      continue;
    }
    const int64_t rows = to.shape[0], cols = to.shape[1];
    std::vector<BF16> values(static_cast<size_t>(rows * cols));
    if (from.format == WeightFormat::kMXFP8) {
      std::vector<float> decoded(values.size());
      formats::dequantize_mxfp8(source, weights.arena.as<uint8_t>() + from.scale_offset, rows, cols,
                                formats::Axis::kRow, formats::Element::kE4M3, decoded.data());
      std::transform(decoded.begin(), decoded.end(), values.begin(), to_bf16);
    } else {
      REQUIRE(from.format == WeightFormat::kBF16);
      std::memcpy(values.data(), source, values.size() * sizeof(BF16));
    }
    store(out, to, std::move(values));
  }
  return out;
}

ModelConfig latent_config(MlaForm form) {
  ModelConfig c = small_config(true);
  c.architecture = Architecture::kDeepseekV3;
  c.qk_norm = false;
  c.num_layers = 3;
  c.layer_is_moe = {false, true, true};
  c.num_heads = 5;
  c.num_kv_heads = 5;
  c.head_dim = 16;
  c.mla = {32, 64, 24, 16, 32, true, form};
  c.router_scoring = RouterScoring::kSigmoid;
  c.router_bias = true;
  c.num_expert_groups = 4;
  c.num_chosen_groups = 2;
  c.routed_scaling_factor = 2.5;
  c.num_shared_experts = 1;
  c.rope_scaling.kind = RopeKind::kYarn;
  c.rope_scaling.factor = 4.0;
  c.rope_scaling.original_max_position = 64;
  c.rope_scaling.mscale = 1.0;
  c.rope_scaling.mscale_all_dim = 0.7;
  return c;
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
    c.rope_scaling = {RopeKind::kLlama3, 8.0, 1.0, 4.0, 64};
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
  const KvWidths widths = kv_widths(c);
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    for (auto [cache, width] : {std::pair{&keys_, widths.k}, {&values_, widths.v}}) {
      cache->emplace_back();
      const MatrixView view = cache->back().matrix(model.compute_dtype(), cache_rows_, width);
      if (width == 0) continue;
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
  model_.embed(batch, x);
  expert_ids_.assign(static_cast<size_t>(c.num_layers), {});
  for (int64_t layer = 0; layer < c.num_layers; ++layer) {
    const auto l = static_cast<size_t>(layer);
    const KvLayer kv = kv_layer(c, model_.compute_dtype(), cache_rows_, keys_[l].data(), values_[l].data());
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
