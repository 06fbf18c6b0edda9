// log p = (z - max) - log(sum exp(z - max)), z = logit / temperature: logits [rows, vocab] fp32 -> [rows],
// one block a row (cuda/softmax.cuh). Entropy: log(sum) - sum(exp(z - max) (z - max)) / sum.
#include "kernels/cuda/softmax.cuh"
#include "kernels/logprob/logprob_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

template <bool kEntropy>
__global__ void __launch_bounds__(gpu::kSoftmaxThreads)
    logprob_kernel(const float* logits, int64_t stride, int64_t vocab, const float* temperatures,
                   const int32_t* tokens, float* logprobs, float* entropies) {
  __shared__ gpu::SoftmaxStorage<kEntropy> shared;
  const int64_t row = blockIdx.x;
  const float* in = logits + row * stride;
  const float temperature = temperatures[row];
  const gpu::SoftmaxSums sums = gpu::softmax_sums(
      in, vocab, temperature, shared, [](float) {}, [](int) {});
  if (threadIdx.x == 0) {
    const float log_sum = log_scalar(sums.sum);
    if (logprobs != nullptr) {
      logprobs[row] = (gpu::tempered(in[tokens[row]], temperature) - sums.max) - log_sum;
    }
    if constexpr (kEntropy) {
      entropies[row] = log_sum - sums.weighted / sums.sum;
    }
  }
}

}  // namespace

void token_logprobs(MatrixView logits, const float* temperatures, const int32_t* tokens, float* logprobs,
                    float* entropies, StreamHandle stream) {
  require(logits.dtype == Dtype::kF32, "logits.dtype == Dtype::kF32");
  if (logits.rows == 0 || logits.cols == 0) {
    return;
  }
  const auto grid = static_cast<unsigned>(logits.rows);
  const auto* data = static_cast<const float*>(logits.data);
  if (entropies != nullptr) {
    logprob_kernel<true><<<grid, gpu::kSoftmaxThreads, 0, stream>>>(
        data, logits.stride, logits.cols, temperatures, tokens, logprobs, entropies);
  } else {
    logprob_kernel<false><<<grid, gpu::kSoftmaxThreads, 0, stream>>>(
        data, logits.stride, logits.cols, temperatures, tokens, logprobs, entropies);
  }
  check_launch("token_logprobs");
}

}  // namespace accord::kernels::cuda
