#include <algorithm>
#include <array>
#include <utility>

#include "device/launch.hpp"
#include "kernels/embedding/embedding_cuda.hpp"
#include "kernels/gemm/fragments.hpp"
#include "kernels/gemm/fragments_cuda.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "kernels/rmsnorm/rmsnorm_cuda.hpp"
#include "kernels/rope/rope_cuda.hpp"
#include "kernels/router/router_cuda.hpp"
#include "model/batch_check.hpp"
#include "model/cuda_impl.hpp"
#include "model/cuda_model.hpp"

namespace accord::model {
namespace {

namespace cuda = kernels::cuda;
using cuda::GemmWeight;

constexpr std::array kExpertParts = {&MlpWeights::gate, &MlpWeights::up, &MlpWeights::down};

GemmWeight gemm_weight(const LinearWeight& w) { return {w.data, w.scales, w.outer}; }

int64_t fragment_bytes(const LinearWeight& w) {
  return kernels::takes_fragments(w.format, w.n, w.k) ? kernels::fragments_bytes(w.format, w.n, w.k) : 0;
}

struct NamedWeight {
  std::string name;
  const LinearWeight* weight;
};

// The linears of a layer that a config has, by their canonical names (without ".weight").
std::vector<NamedWeight> linears_of(const LayerWeights& w, int64_t layer) {
  std::vector<NamedWeight> out;
  const auto add = [&](std::string_view part, const LinearWeight& linear) {
    if (linear.n > 0) out.push_back({fmt::format("model.layers.{}.{}", layer, part), &linear});
  };
  const auto add_mlp = [&](const std::string& prefix, const MlpWeights& mlp) {
    add(prefix + "gate_proj", mlp.gate);
    add(prefix + "up_proj", mlp.up);
    add(prefix + "down_proj", mlp.down);
  };
  add("self_attn.q_proj", w.q);
  add("self_attn.k_proj", w.k);
  add("self_attn.v_proj", w.v);
  add("self_attn.q_a_proj", w.q_a);
  add("self_attn.q_b_proj", w.q_b);
  add("self_attn.kv_a_proj_with_mqa", w.kv_a);
  add("self_attn.kv_b_proj", w.kv_b);
  add("self_attn.o_proj", w.o);
  add("mlp.gate", w.router);
  for (size_t e = 0; e < w.mlp.size(); ++e) {
    add_mlp(w.router.n > 0 ? fmt::format("mlp.experts.{}.", e) : "mlp.", w.mlp[e]);
  }
  add_mlp("mlp.shared_experts.", w.shared);
  return out;
}

bool same_kind(const LinearWeight& a, const LinearWeight& b) {
  return a.format == b.format && a.scaling == b.scaling && a.activations == b.activations;
}

Status check_linear(const NamedWeight& named) {
  const LinearWeight& w = *named.weight;
  cuda::GemmForward g;
  g.format = w.format;
  g.m = 1;
  g.n = w.n;
  g.k = w.k;
  g.lda = w.k;
  if (cuda::gemm_forward_takes(g)) return absl::OkStatus();
  return recipe_error(
      "{}.weight [{}, {}]: the CUDA kernels need a contracted size that is a multiple of 8 (MXFP8: 32, "
      "NVFP4: 16), "
      "and a linear's format (use device: cpu)",
      named.name, w.n, w.k);
}

}  // namespace

CudaModel::CudaModel(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
CudaModel::~CudaModel() = default;

StatusOr<std::unique_ptr<CudaModel>> CudaModel::create(const ModelConfig& config, PolicyWeights weights,
                                                       const Device& device, const Stream& stream) {
  ACCORD_RETURN_IF_ERROR(validate(config));
  if (weights.layers.size() != static_cast<size_t>(config.num_layers)) {
    return internal_error("weights of {} layers for a model of {}", weights.layers.size(), config.num_layers);
  }
  auto impl = std::make_unique<Impl>(config, std::move(weights), device, stream);
  ACCORD_RETURN_IF_ERROR(impl->check_shapes());
  ACCORD_RETURN_IF_ERROR(impl->upload_experts(false));
  ACCORD_RETURN_IF_ERROR(impl->find_block_scaled());
  ACCORD_ASSIGN_OR_RETURN(impl->batch.copied, Event::create(device));
  return std::unique_ptr<CudaModel>(new CudaModel(std::move(impl)));
}

Status CudaModel::Impl::check_shapes() const {
  const cuda::AttentionDims dims = attention_dims();
  if (!cuda::attention_takes(dims)) {
    return recipe_error(
        "attention heads of {} (values of {}): the CUDA kernels take 16, 32, 64 and 128, and latent "
        "attention of "
        "48/32, 192/128 and 576/512 (use device: cpu)",
        dims.head_dim, dims.v_head_dim);
  }
  if (config.num_experts > cuda::kMaxRouterExperts) {
    return recipe_error("{} experts: the CUDA kernels take at most {} (use device: cpu)", config.num_experts,
                        cuda::kMaxRouterExperts);
  }
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const LayerWeights& w = weights.layers[layer];
    for (const NamedWeight& named : linears_of(w, static_cast<int64_t>(layer))) {
      ACCORD_RETURN_IF_ERROR(check_linear(named));
    }
    for (size_t e = 1; w.router.n > 0 && e < w.mlp.size(); ++e) {
      if (same_kind(w.mlp[e].gate, w.mlp[0].gate) && same_kind(w.mlp[e].up, w.mlp[0].up) &&
          same_kind(w.mlp[e].down, w.mlp[0].down)) {
        continue;
      }
      return recipe_error(
          "model.layers.{}.mlp.experts: experts 0 and {} have different formats; on CUDA the experts of a "
          "layer are "
          "multiplied together and need one format per projection (change the matchers, or use device: cpu)",
          layer, e);
    }
  }
  return check_linear({"lm_head", &weights.lm_head});
}

Status CudaModel::Impl::upload_experts(bool fragments) {
  experts.resize(weights.layers.size());
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    const LayerWeights& w = weights.layers[layer];
    if (w.router.n == 0) continue;
    const size_t count = w.mlp.size();
    CudaExperts& e = experts[layer];
    std::vector<GemmWeight> table;
    int64_t bytes = 0;
    for (const auto part : kExpertParts) {
      const int64_t each = fragments ? fragment_bytes(w.mlp[0].*part) : 0;
      for (const MlpWeights& mlp : w.mlp) table.push_back(gemm_weight(mlp.*part));
      bytes += each * static_cast<int64_t>(count);
    }
    if (bytes > 0) {
      const Status allocated = e.fragments.ensure(device, static_cast<size_t>(bytes));
      if (!allocated.ok()) {
        return unavailable_error(
            "model.layers.{}: no memory for a second copy of its experts ({} bytes); set "
            "rollout.expert_fragments: false to do without: {}",
            layer, bytes, message_of(allocated));
      }
    }
    auto* at = e.fragments.as<std::byte>();
    for (size_t part = 0; part < kExpertParts.size(); ++part) {
      const int64_t each = fragments ? fragment_bytes(w.mlp[0].*kExpertParts[part]) : 0;
      for (size_t i = 0; each > 0 && i < count; ++i, at += each) table[part * count + i].fragments = at;
    }
    const size_t table_bytes = table.size() * sizeof(GemmWeight);
    ACCORD_RETURN_IF_ERROR(e.weights.ensure(device, table_bytes));
    ACCORD_RETURN_IF_ERROR(stream.copy(e.weights.data(), table.data(), table_bytes));
    ACCORD_RETURN_IF_ERROR(stream.synchronize());
    e.gate = e.weights.as<GemmWeight>();
    e.up = e.gate + count;
    e.down = e.up + count;
  }
  return absl::OkStatus();
}

void CudaModel::Impl::make_fragments() {
  for (size_t layer = 0; layer < experts.size(); ++layer) {
    const CudaExperts& e = experts[layer];
    if (e.fragments.data() == nullptr) continue;
    const std::vector<MlpWeights>& mlp = weights.layers[layer].mlp;
    const GemmWeight* table = e.gate;
    for (const auto part : kExpertParts) {
      const LinearWeight& any = mlp[0].*part;
      const auto count = static_cast<int32_t>(mlp.size());
      if (fragment_bytes(any) > 0) cuda::to_fragments(any.format, any.n, any.k, table, count, handle());
      table += count;
    }
  }
}

Status CudaModel::keep_expert_fragments() {
  if (impl_->linears.block_scaled() != nullptr) return absl::OkStatus();  // which has an order of its own
  ACCORD_RETURN_IF_ERROR(impl_->device.make_current());
  return impl_->upload_experts(true);
}

Status CudaModel::Impl::find_block_scaled() {
  std::vector<const LinearWeight*> all;
  for (size_t layer = 0; layer < weights.layers.size(); ++layer) {
    for (const NamedWeight& named : linears_of(weights.layers[layer], static_cast<int64_t>(layer))) {
      all.push_back(named.weight);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(std::unique_ptr<CudaBlockScaled> found,
                          CudaBlockScaled::create(device, stream, all));
  linears.use(std::move(found));
  return absl::OkStatus();
}

Status CudaModel::Impl::reserve(int64_t rows) {
  const ModelConfig& c = config;
  const int64_t hidden = c.hidden_size;
  const bool dense = std::find(c.layer_is_moe.begin(), c.layer_is_moe.end(), false) != c.layer_is_moe.end();
  const auto first_of = [&](bool moe) {
    return std::find(c.layer_is_moe.begin(), c.layer_is_moe.end(), moe) - c.layer_is_moe.begin();
  };
  const int64_t sorted = rows * c.num_experts_per_token;
  const int64_t widest = std::max({hidden, c.attention_width(), c.mla.q_lora_rank, c.mla.kv_lora_rank,
                                   dense ? c.intermediate_size : 0, c.shared_width()});
  // Operands of up to so many values: inputs of `k` values to products of at least `n` outputs.
  const auto operand = [&](int64_t k, int64_t n) { return k * CudaLinears::tile_rows(rows, n); };
  const auto mlp_operand = [&](int64_t width) {
    return std::max(operand(hidden, width), operand(width, hidden));
  };
  int64_t elements = std::max(operand(c.attention_width(), hidden), mlp_operand(c.shared_width()));
  elements = std::max(elements, c.has_mla() ? rows * std::max({hidden, c.mla.q_lora_rank, c.mla.kv_lora_rank})
                                            : operand(hidden, c.num_kv_heads * c.head_dim));
  if (dense) {
    ACCORD_RETURN_IF_ERROR(own_tape.reserve(device, c, first_of(false), rows));
    elements = std::max(elements, mlp_operand(c.intermediate_size));
  }
  if (c.num_experts > 0) {
    ACCORD_RETURN_IF_ERROR(own_tape.reserve(device, c, first_of(true), rows));
    ACCORD_RETURN_IF_ERROR(sort_scratch.ensure(
        device, static_cast<size_t>(cuda::sort_scratch(sorted, c.num_experts)) * sizeof(int32_t)));
    elements = std::max({elements, rows * hidden, sorted * c.moe_intermediate_size});
  }
  ACCORD_RETURN_IF_ERROR(linears.reserve(elements, std::max(rows, sorted), widest, sorted, c.num_experts));
  const int64_t kv_width =
      c.has_mla() ? c.num_heads * (c.mla.qk_nope_head_dim + c.mla.v_head_dim) : c.num_kv_heads * c.head_dim;
  ACCORD_RETURN_IF_ERROR(v.ensure_matrix(device, Dtype::kBF16, rows, kv_width));
  if (c.qk_norm && !cuda::normalizes_heads(c.head_dim)) {
    ACCORD_RETURN_IF_ERROR(k_normed.ensure_matrix(device, Dtype::kBF16, rows, kv_width));
  }
  if (c.has_mla()) {
    ACCORD_RETURN_IF_ERROR(
        turned.ensure_matrix(device, Dtype::kBF16, rows, c.num_heads * c.mla.qk_rope_head_dim));
  }
  return branch.ensure_matrix(device, Dtype::kBF16, rows, hidden);
}

// What logits() needs.
Status CudaModel::Impl::reserve_head(int64_t rows, bool own_normed) {
  ACCORD_RETURN_IF_ERROR(head_rows.ensure_matrix(device, Dtype::kBF16, rows, config.hidden_size));
  if (own_normed) {
    ACCORD_RETURN_IF_ERROR(head_normed.ensure_matrix(device, Dtype::kBF16, rows, config.hidden_size));
  }
  return linears.reserve(rows * config.hidden_size, rows, config.hidden_size);
}

void CudaModel::Impl::copy_on_device(void* to, const void* from, size_t bytes) {
  // Between device memory a copy fails only where the device is lost, which ends the process.
  const Status status = stream.copy(to, from, bytes);
  require(status.ok(), "a copy on the device");
}

bool CudaModel::capturable() const { return impl_->linears.block_scaled() == nullptr; }

std::string CudaModel::products() const {
  const CudaBlockScaled* const block_scaled = impl_->linears.block_scaled();
  return block_scaled == nullptr ? std::string() : block_scaled->arithmetic();
}

const ModelConfig& CudaModel::config() const { return impl_->config; }
const PolicyWeights& CudaModel::weights() const { return impl_->weights; }
const Device& CudaModel::device() const { return impl_->device; }
const Stream& CudaModel::stream() const { return impl_->stream; }
int64_t CudaModel::num_rows() const { return impl_->batch.rows; }

int32_t CudaModel::decode_splits() const {
  const CudaBatch& b = impl_->batch;
  return b.rows > 0 && b.decode_rows == b.rows ? b.decode_splits : 0;
}

void CudaModel::addresses(std::vector<const void*>& out) const {
  const Impl& m = *impl_;
  m.own_tape.addresses(out);
  m.linears.addresses(out);
  for (const DeviceBuffer* b : {&m.batch.memory, &m.partials, &m.k_normed, &m.v, &m.turned, &m.branch,
                                &m.sort_scratch, &m.head_rows, &m.head_normed}) {
    b->add_bounds(out);
  }
  const cuda::RopeTableView rope = m.rope_view();  // of one block, but the sines' place moves as it grows
  out.push_back(rope.cos);
  out.push_back(rope.sin);
}

const int32_t* CudaModel::tokens() const { return impl_->batch.tokens; }
int32_t* CudaModel::batch_tokens() { return impl_->batch.memory.as<int32_t>(); }
const int32_t* CudaModel::positions() const { return impl_->batch.positions; }
kernels::cuda::RopeTableView CudaModel::rope() const { return impl_->rope_view(); }

CudaModel::ExpertWeights CudaModel::expert_weights(int64_t layer) const {
  const CudaExperts& e = impl_->experts[static_cast<size_t>(layer)];
  return {e.gate, e.up, e.down};
}

Status CudaModel::check(const Batch& batch, int64_t kv_rows) const {
  return check_batch(impl_->config, batch, kv_rows);
}

Status CudaModel::check_replay(std::span<const int32_t> ids, int64_t num_rows) const {
  return model::check_replay(impl_->config, ids, num_rows);
}

Status CudaModel::check_weights() {
  Impl& m = *impl_;
  m.linears.weights_changed();
  m.make_fragments();
  std::vector<NamedWeight> checked;
  for (size_t layer = 0; layer < m.weights.layers.size(); ++layer) {
    for (NamedWeight& named : linears_of(m.weights.layers[layer], static_cast<int64_t>(layer))) {
      if (named.weight->format == WeightFormat::kMXFP8) checked.push_back(std::move(named));
    }
  }
  if (checked.empty()) return absl::OkStatus();
  std::vector<int32_t> flags(checked.size());
  const size_t bytes = flags.size() * sizeof(int32_t);
  ACCORD_RETURN_IF_ERROR(m.flags.ensure(m.device, bytes));
  ACCORD_RETURN_IF_ERROR(m.stream.fill(m.flags.data(), 0, bytes));
  for (size_t i = 0; i < checked.size(); ++i) {
    const LinearWeight& w = *checked[i].weight;
    cuda::check_mxfp8_range(static_cast<const uint8_t*>(w.data), w.scales, w.n, w.k,
                            m.flags.as<int32_t>() + i, m.handle());
  }
  ACCORD_RETURN_IF_ERROR(m.stream.copy(flags.data(), m.flags.data(), bytes));
  ACCORD_RETURN_IF_ERROR(m.stream.synchronize());
  for (size_t i = 0; i < checked.size(); ++i) {
    if (flags[i] == 0) continue;
    return data_error("{}.weight: {}; it cannot be multiplied on CUDA", checked[i].name,
                      (flags[i] & 2) != 0
                          ? "an MXFP8 code is NaN"
                          : "a block's scale lies outside 2^-117 .. 2^119, where BF16 cannot hold "
                            "its values");
  }
  return absl::OkStatus();
}

void CudaModel::embed(MatrixView x_TH) {
  Impl& m = *impl_;
  m.sum_due_in = -1;
  cuda::embed_rows(m.weights.embedding, m.batch.tokens, m.batch.rows, x_TH, m.handle());
}

void CudaModel::layer_forward(int64_t layer, const KvLayer& kv, MatrixView x_TH, CudaRouting routing,
                              CudaLayerTape* tape, bool next_follows) {
  Impl& m = *impl_;
  if (m.batch.rows == 0) return;
  require(m.sum_due_in < 0 || (tape == nullptr && layer == m.sum_due_in), "the layer that was to follow");
  require(!next_follows || (tape == nullptr && layer + 1 < m.config.num_layers), "a layer that can follow");
  run_layer(m, layer, kv, x_TH, routing, tape == nullptr ? m.own_tape : *tape, tape != nullptr, next_follows);
}

Status CudaModel::logits(MatrixView x_TH, const int32_t* rows, int64_t count, MatrixView logits_RV,
                         MatrixView* normed_RH, float* inv_rms) {
  Impl& m = *impl_;
  if (count == 0) return absl::OkStatus();
  require(m.sum_due_in < 0, "x complete");
  const int64_t hidden = m.config.hidden_size;
  const LinearWeight& head = m.weights.lm_head;
  ACCORD_RETURN_IF_ERROR(m.reserve_head(count, normed_RH == nullptr));
  const MatrixView normed =
      normed_RH != nullptr ? *normed_RH : m.head_normed.matrix(Dtype::kBF16, count, hidden);
  const MatrixView gathered = m.head_rows.matrix(Dtype::kBF16, count, hidden);
  cuda::gather_rows(x_TH, rows, gathered, m.handle());
  const CudaOperand operand =
      m.linears.norm_operand(gathered, m.weights.final_norm, static_cast<float>(m.config.rms_norm_eps),
                             normed, inv_rms, head.activation_format(), normed_RH != nullptr);
  m.linears.linear(operand, head, logits_RV);
  return absl::OkStatus();
}

}  // namespace accord::model
