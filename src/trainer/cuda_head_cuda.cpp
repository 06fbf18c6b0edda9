// The head of a micro-batch on CUDA: log-probs, loss and its backward, in chunks of response rows.
#include <algorithm>

#include "kernels/copy/copy_cuda.hpp"
#include "kernels/logprob/logprob_backward_cuda.hpp"
#include "kernels/logprob/logprob_cuda.hpp"
#include "kernels/moe/moe_cuda.hpp"
#include "trainer/cuda_head_parts.hpp"
#include "trainer/cuda_pass.hpp"

namespace accord::trainer {

namespace cuda = kernels::cuda;

namespace {

// Sums over rows run chunk by chunk, so these are part of a gradient's bits.
constexpr int64_t kLogitsElements = int64_t{1} << 27;  // of one chunk: 512 MiB of fp32
constexpr int64_t kMaxChunkRows = 4096;
constexpr int64_t kMinChunkRows = 16;

// Four arrays of `count` values, one after the other.
struct TokenValues {
  TokenValues(float* memory, int64_t count)
      : logprobs(memory),
        entropies(memory + count),
        dlogprobs(memory + 2 * count),
        dentropies(memory + 3 * count) {}
  float *logprobs, *entropies, *dlogprobs, *dentropies;
};

}  // namespace

struct CudaPass::HeadRows {
  const int32_t* rows = nullptr;    // of x
  const int32_t* tokens = nullptr;  // that they predict
  const float* temperatures = nullptr;
  MatrixView logits;  // [n,V]
  MatrixView normed;  // [n,H]
  const float* inv_rms = nullptr;
  const float* entropies = nullptr;
  const float* dlogprobs = nullptr;
  const float* dentropies = nullptr;
};

Status CudaPass::head(const PackedBatch& packed, const TokenLossFn& loss, bool backward) {
  const int64_t vocab = c_.config.vocab_size;
  const int64_t hidden = c_.config.hidden_size;
  const auto count = static_cast<int64_t>(packed.response_rows().size());
  const int64_t chunk = std::min(std::clamp(kLogitsElements / vocab, kMinChunkRows, kMaxChunkRows), count);
  if (count == 0) return absl::OkStatus();
  ACCORD_ASSIGN_OR_RETURN(float* const logits, scratch_.get<float>(kLogits, chunk * vocab));
  ACCORD_ASSIGN_OR_RETURN(BF16* const normed, scratch_.get<BF16>(kNormed, chunk * hidden));
  ACCORD_ASSIGN_OR_RETURN(float* const inv_rms, scratch_.get<float>(kInvRms, chunk));
  ACCORD_ASSIGN_OR_RETURN(float* const on_device, scratch_.get<float>(kTokenValues, 4 * chunk));
  ACCORD_RETURN_IF_ERROR(
      values_.ensure(c_.device, static_cast<size_t>(4 * chunk) * sizeof(float), MemoryKind::kPinned));
  for (int64_t begin = 0; begin < count; begin += chunk) {
    const int64_t n = std::min(chunk, count - begin);
    const TokenValues values(on_device, n);
    const TokenValues host(values_.as<float>(), n);
    HeadRows rows{in_.response_rows + begin,
                  in_.response_tokens + begin,
                  in_.temperatures + begin,
                  matrix_view(logits, n, vocab),
                  matrix_view(normed, n, hidden),
                  inv_rms,
                  values.entropies,
                  values.dlogprobs,
                  values.dentropies};
    ACCORD_RETURN_IF_ERROR(model_.logits(input_of(c_.config.num_layers), rows.rows, n, rows.logits,
                                         backward ? &rows.normed : nullptr, backward ? inv_rms : nullptr));
    cuda::token_logprobs(rows.logits, rows.temperatures, rows.tokens, values.logprobs, values.entropies,
                         c_.handle());
    const size_t half = static_cast<size_t>(2 * n) * sizeof(float);
    ACCORD_RETURN_IF_ERROR(c_.stream.copy(host.logprobs, values.logprobs, half));
    ACCORD_RETURN_IF_ERROR(c_.stream.synchronize());
    pool_.parallel_for(n, [&](int64_t i) {
      const TokenGradient gradient = loss(begin + i, {host.logprobs[i], host.entropies[i]});
      host.dlogprobs[i] = static_cast<float>(gradient.dlogprob);
      host.dentropies[i] = static_cast<float>(gradient.dentropy);
    });
    if (!backward) continue;
    ACCORD_RETURN_IF_ERROR(c_.stream.copy(values.dlogprobs, host.dlogprobs, half));
    ACCORD_RETURN_IF_ERROR(head_backward(rows));
  }
  return absl::OkStatus();
}

Status CudaPass::head_backward(const HeadRows& rows) {
  const int64_t n = rows.logits.rows;
  const int64_t vocab = c_.config.vocab_size;
  const int64_t hidden = c_.config.hidden_size;
  ACCORD_ASSIGN_OR_RETURN(BF16* const dlogits, scratch_.get<BF16>(kHeadDlogits, n * vocab));
  cuda::logprob_backward(rows.logits, rows.temperatures, rows.tokens, rows.entropies, rows.dlogprobs,
                         rows.dentropies, dlogits, c_.handle());
  ACCORD_ASSIGN_OR_RETURN(float* const dnormed, scratch_.get<float>(kDnormed, n * hidden));
  ACCORD_RETURN_IF_ERROR(layer_backward_->linears().run(
      {{c_.params.lm_head, &model_.weights().lm_head, dlogits}}, rows.normed.row<BF16>(0), n, {dnormed}));
  ACCORD_ASSIGN_OR_RETURN(BF16* const x, scratch_.get<BF16>(kHeadX, n * hidden));
  ACCORD_ASSIGN_OR_RETURN(float* const dx, scratch_.get<float>(kHeadDx, n * hidden));
  const MatrixView x_rows = matrix_view(x, n, hidden);
  const MatrixView dx_rows = matrix_view(dx, n, hidden);
  cuda::gather_rows(input_of(c_.config.num_layers), rows.rows, x_rows, c_.handle());
  ACCORD_RETURN_IF_ERROR(layer_backward_->norm_backward(x_rows, rows.inv_rms, model_.weights().final_norm,
                                                        c_.params.final_norm, dnormed, dx_rows, false));
  cuda::scatter_rows(dx_rows, rows.rows, matrix_view(dx_.as<float>(), this->rows(), hidden), c_.handle());
  return absl::OkStatus();
}

}  // namespace accord::trainer
