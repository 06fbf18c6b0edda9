// dlogits_j = (dlogprob (1[j = token] - p_j) - dentropy p_j (log p_j + entropy)) / temperature, log p = (z -
// max)
// - log(sum exp(z - max)), z = logit / temperature: logits [rows, vocab] fp32 -> bf16, one block a row
// (cuda/softmax.cuh), the operations of logprob_backward.cpp. The last pass runs from the row's end, which
// the sum has read last.
#include "kernels/cuda/softmax.cuh"
#include "kernels/cuda/values.cuh"
#include "kernels/logprob/logprob_backward_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

constexpr int kWide = gpu::kVector<BF16>;

struct Gradients {
  const float* temperatures;
  const int32_t* tokens;
  const float* entropies;
  const float* dlogprobs;
  const float* dentropies;
};

template <int kWidth>
__global__ void __launch_bounds__(gpu::kSoftmaxThreads, 2)
    logprob_backward_kernel(const float* __restrict__ logits, int64_t stride, int64_t vocab, Gradients of,
                            BF16* __restrict__ dlogits) {
  __shared__ gpu::SoftmaxStorage<false> shared;
  const int64_t row = blockIdx.x;
  const float* in = logits + row * stride;
  BF16* out = dlogits + row * vocab;
  const float temperature = of.temperatures[row];
  const gpu::SoftmaxSums sums = gpu::softmax_sums(
      in, vocab, temperature, shared, [](float) {}, [](int) {});
  const float log_sum = log_scalar(sums.sum);
  const float entropy = of.entropies[row];
  const float base = -of.dlogprobs[row] / temperature;
  const float slope = -of.dentropies[row] / temperature;
  const float at_token = of.dlogprobs[row] / temperature;
  const int64_t token = of.tokens[row];
  const auto gradient = [&](float logit) {
    const float log_p = (gpu::tempered(logit, temperature) - sums.max) - log_sum;
    return exp_scalar(log_p) * __fmaf_rn(slope, log_p + entropy, base);
  };
  const int64_t vectors = vocab / kWidth;
#pragma unroll 2
  for (int64_t i = vectors - 1 - threadIdx.x; i >= 0; i -= gpu::kSoftmaxThreads) {
    float x[kWidth];
    gpu::load_floats(in + i * kWidth, x);
#pragma unroll
    for (int j = 0; j < kWidth; ++j) {
      x[j] = gradient(x[j]);
      if (i * kWidth + j == token) {
        x[j] = x[j] + at_token;
      }
    }
    if constexpr (kWidth == 1) {
      out[i] = from_float<BF16>(x[0]);
    } else {
      __stcs(reinterpret_cast<uint4*>(out + i * kWidth), gpu::pack<BF16>(x));  // does not displace logits
    }
  }
}

}  // namespace

void logprob_backward(MatrixView logits, const float* temperatures, const int32_t* tokens,
                      const float* entropies, const float* dlogprobs, const float* dentropies, BF16* dlogits,
                      StreamHandle stream) {
  require(logits.dtype == Dtype::kF32, "logits.dtype == Dtype::kF32");
  if (logits.rows == 0 || logits.cols == 0) {
    return;
  }
  const bool vector = gpu::is_vectorizable(logits) && logits.cols % kWide == 0 && gpu::is_aligned16(dlogits);
  const Gradients of{temperatures, tokens, entropies, dlogprobs, dentropies};
  const auto run = [&](auto kernel) {
    kernel<<<static_cast<unsigned>(logits.rows), gpu::kSoftmaxThreads, 0, stream>>>(
        static_cast<const float*>(logits.data), logits.stride, logits.cols, of, dlogits);
  };
  vector ? run(logprob_backward_kernel<kWide>) : run(logprob_backward_kernel<1>);
  check_launch("logprob_backward");
}

}  // namespace accord::kernels::cuda
