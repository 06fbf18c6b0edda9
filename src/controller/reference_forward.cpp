#include "controller/reference_forward.hpp"

#include <algorithm>
#include <utility>

#include "device/buffer.hpp"
#include "kernels/logprob/logprob.hpp"

namespace accord::controller {
namespace {

constexpr int64_t kLogitsElements = int64_t{1} << 24;  // of one chunk: 64 MiB of fp32

class CpuReference final : public ReferenceForward {
 public:
  explicit CpuReference(std::unique_ptr<LocalModel> local) : local_(std::move(local)) {}

  Status logprobs(const trainer::PackedBatch& packed, std::span<const float> temperatures,
                  std::span<float> logprobs) override {
    model::Model& model = local_->model();
    const ModelConfig& c = local_->config();
    const int64_t rows = packed.num_rows();
    const MatrixView x_TH = x_.matrix(model.compute_dtype(), rows, c.hidden_size);
    // A layer is done before the next one begins: one layer's cache serves all.
    const model::KvLayer kv = model::kv_layer(c, model.compute_dtype(), rows, k_, v_);
    model.embed(packed.batch(), x_TH);
    for (int64_t layer = 0; layer < c.num_layers; ++layer) {
      ACCORD_RETURN_IF_ERROR(model.layer_forward(layer, packed.batch(), kv, x_TH, {}, nullptr));
    }
    const auto count = static_cast<int64_t>(logprobs.size());
    const int64_t chunk = reference_chunk(c.vocab_size);
    for (int64_t begin = 0; begin < count; begin += chunk) {
      const int64_t n = std::min(chunk, count - begin);
      const MatrixView logits = logits_.matrix(Dtype::kF32, n, c.vocab_size);
      model.logits(x_TH, packed.response_rows().subspan(static_cast<size_t>(begin), static_cast<size_t>(n)),
                   logits);
      local_->pool().parallel_for(n, [&](int64_t i) {
        const auto token = static_cast<size_t>(begin + i);
        logprobs[token] = kernels::token_logprob(logits.row<float>(i), c.vocab_size,
                                                 packed.response_tokens()[token], temperatures[token]);
      });
    }
    return absl::OkStatus();
  }

 private:
  const std::unique_ptr<LocalModel> local_;
  Buffer x_, k_, v_, logits_;
};

}  // namespace

int64_t reference_chunk(int64_t vocab_size) { return std::max<int64_t>(kLogitsElements / vocab_size, 1); }

std::unique_ptr<ReferenceForward> make_cpu_reference(std::unique_ptr<LocalModel> model) {
  return std::make_unique<CpuReference>(std::move(model));
}

}  // namespace accord::controller
