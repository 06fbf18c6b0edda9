#include "tiny_model.hpp"

#include <cstring>
#include <numeric>

#include "base/philox.hpp"
#include "checkpoint/hf_config.hpp"
#include "checkpoint/safetensors.hpp"
#include "kernels/formats/mxfp8.hpp"
#include "kernels/logprob/logprob.hpp"
#include "support/catch.hpp"

namespace accord::rollout::testing {
namespace {

constexpr int64_t kAlignment = 256;

int64_t aligned(int64_t bytes) { return (bytes + kAlignment - 1) / kAlignment * kAlignment; }

bool is_projection(ParamRole role) {
  switch (role) {
    case ParamRole::kQ:
    case ParamRole::kK:
    case ParamRole::kV:
    case ParamRole::kO:
    case ParamRole::kGate:
    case ParamRole::kUp:
    case ParamRole::kDown:
      return true;
    default:
      return false;
  }
}

}  // namespace

ModelConfig tiny_config(Architecture architecture) {
  ModelConfig config;
  config.architecture = architecture;
  config.vocab_size = 211;
  config.hidden_size = 64;
  config.num_layers = 3;
  config.num_heads = 4;
  config.num_kv_heads = 2;
  config.head_dim = 16;
  config.intermediate_size = 96;
  config.layer_is_moe.assign(3, false);
  config.qk_norm = architecture != Architecture::kLlama;
  config.tie_word_embeddings = architecture == Architecture::kLlama;
  if (architecture == Architecture::kQwen3Moe) {
    config.num_experts = 8;
    config.num_experts_per_token = 2;
    config.moe_intermediate_size = 64;
    config.layer_is_moe.assign(3, true);
  }
  config.max_position_embeddings = 2048;
  return config;
}

TinyModel::TinyModel(const ModelConfig& config, WeightFormat format, Dtype compute_dtype, int threads,
                     uint64_t seed)
    : config_(config), pool_(threads) {
  lay_out(format);
  fill_random(seed);
  bind(compute_dtype);
}

TinyModel::TinyModel(const std::string& checkpoint, Dtype compute_dtype, int threads) : pool_(threads) {
  const auto read = checkpoint::read_hf_config(checkpoint);
  REQUIRE(read.ok());
  config_ = read->model;
  lay_out(WeightFormat::kBF16);
  fill_from(checkpoint + "/model.safetensors");
  bind(compute_dtype);
}

void TinyModel::lay_out(WeightFormat format) {
  int64_t offset = 0;
  for (const ParamSpec& spec : parameter_specs(config_)) {
    WeightEntry entry;
    entry.name = spec.name;
    entry.format = is_projection(spec.role) ? format : WeightFormat::kBF16;
    entry.shape = spec.shape;
    entry.data_offset = offset;
    entry.data_bytes = spec.numel() * (entry.format == WeightFormat::kBF16 ? 2 : 1);
    offset += aligned(entry.data_bytes);
    if (entry.format == WeightFormat::kMXFP8) {
      entry.scale_offset = offset;
      entry.scale_bytes = spec.numel() / formats::kMxfp8Block;
      offset += aligned(entry.scale_bytes);
    }
    manifest_.entries.push_back(entry);
  }
  manifest_.arena_bytes = offset;
  arena_.ensure(static_cast<size_t>(offset));
  std::memset(arena_.data(), 0, static_cast<size_t>(offset));
}

void TinyModel::store(const WeightEntry& entry, const std::vector<BF16>& values) {
  auto* data = arena_.as<uint8_t>() + entry.data_offset;
  if (entry.format == WeightFormat::kBF16) {
    std::memcpy(data, values.data(), values.size() * sizeof(BF16));
    return;
  }
  const MatrixView view = {const_cast<BF16*>(values.data()), Dtype::kBF16, entry.shape[0], entry.shape[1],
                           entry.shape[1]};
  formats::quantize_mxfp8_rows(view, data, arena_.as<uint8_t>() + entry.scale_offset,
                               formats::Element::kE4M3);
}

void TinyModel::fill_random(uint64_t seed) {
  PhiloxStream random(seed, 0);
  for (const WeightEntry& entry : manifest_.entries) {
    const bool norm = entry.shape.size() == 1;
    size_t count = 1;
    for (const int64_t d : entry.shape) count *= static_cast<size_t>(d);
    std::vector<BF16> values(count);
    for (BF16& x : values) {
      x = to_bf16(static_cast<float>(norm ? 1.0 + 0.1 * random.next_normal() : 0.2 * random.next_normal()));
    }
    store(entry, values);
  }
}

void TinyModel::fill_from(const std::string& file) {
  const auto tensors = checkpoint::SafetensorsFile::open(file);
  REQUIRE(tensors.ok());
  for (const WeightEntry& entry : manifest_.entries) {
    const auto tensor = tensors->require(entry.name, Dtype::kBF16, entry.shape);
    REQUIRE(tensor.ok());
    std::memcpy(arena_.as<uint8_t>() + entry.data_offset, (*tensor)->data,
                static_cast<size_t>((*tensor)->bytes));
  }
}

void TinyModel::bind(Dtype compute_dtype) {
  auto weights = model::bind_weights(config_, manifest_, arena_.data());
  REQUIRE(weights.ok());
  auto created = model::Model::create(config_, *weights, compute_dtype, pool_);
  REQUIRE(created.ok());
  model_ = std::move(*created);
}

std::vector<float> sequence_logprobs(model::Model& model, const std::vector<int32_t>& tokens,
                                     float temperature) {
  const ModelConfig& config = model.config();
  const auto num_rows = static_cast<int64_t>(tokens.size());
  const int64_t num_pages = (num_rows + model::kPageSize - 1) / model::kPageSize;
  std::vector<int32_t> positions(tokens.size());
  std::iota(positions.begin(), positions.end(), 0);
  std::vector<int32_t> pages;
  for (int64_t p = 0; p < num_pages; ++p) pages.push_back(static_cast<int32_t>(p * model::kPageSize));
  const model::Segment segment = {
      .row_begin = 0, .num_rows = static_cast<int32_t>(num_rows), .first_position = 0, .pages = pages.data()};
  const model::Batch batch = {
      .tokens = tokens, .positions = positions, .kv_rows = positions, .segments = std::span(&segment, 1)};

  const Dtype dtype = model.compute_dtype();
  const int64_t kv_cols = config.num_kv_heads * config.head_dim;
  Buffer x, k, v, logits;
  const MatrixView x_TH = x.matrix(dtype, num_rows, config.hidden_size);
  const model::KvLayer kv = {k.matrix(dtype, num_pages * model::kPageSize, kv_cols),
                             v.matrix(dtype, num_pages * model::kPageSize, kv_cols)};
  model.embed(batch, x_TH);
  for (int64_t layer = 0; layer < config.num_layers; ++layer) {
    REQUIRE(model.layer_forward(layer, batch, kv, x_TH, {}, nullptr).ok());
  }
  const MatrixView logits_TV = logits.matrix(Dtype::kF32, num_rows, config.vocab_size);
  model.logits(x_TH, positions, logits_TV);
  std::vector<float> logprobs;
  for (int64_t t = 0; t + 1 < num_rows; ++t) {
    logprobs.push_back(kernels::token_logprob(logits_TV.row<float>(t), config.vocab_size,
                                              tokens[static_cast<size_t>(t) + 1], temperature));
  }
  return logprobs;
}

}  // namespace accord::rollout::testing
