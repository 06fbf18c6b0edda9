// Tokens drawn on the device against the CPU's sampler, bit for bit.
#include "rollout/sampler.hpp"

#include <bit>
#include <cmath>

#include "gpu.hpp"
#include "kernels/sampler/sampler_cuda.hpp"
#include "support/catch.hpp"

using namespace accord;
using gpu_test::Gpu;
using kernels::cuda::DrawRequest;
using kernels::cuda::DrawResult;

namespace {

uint64_t mix(uint64_t& state) {
  uint64_t z = (state += 0x9e3779b97f4a7c15u);
  z = (z ^ (z >> 30)) * 0xbf58476d1ce4e5b9u;
  z = (z ^ (z >> 27)) * 0x94d049bb133111ebu;
  return z ^ (z >> 31);
}

// Rows of different character: smooth, rounded so that many logits tie, steep, and flat.
std::vector<float> make_logits(int64_t rows, int64_t vocab, uint64_t seed) {
  std::vector<float> logits(static_cast<size_t>(rows * vocab));
  for (int64_t r = 0; r < rows; ++r) {
    for (int64_t i = 0; i < vocab; ++i) {
      const uint64_t bits = mix(seed);
      const float uniform = static_cast<float>(bits >> 40) * 0x1p-24F;
      float v = 12.0F * uniform * uniform * uniform - 4.0F;
      if (r % 4 == 1) v = std::rint(v);
      if (r % 4 == 2) v *= 6.0F;
      if (r % 4 == 3) v = i % 2 == 0 ? 0.0F : -0.0F;
      logits[static_cast<size_t>(r * vocab + i)] = v;
    }
  }
  return logits;
}

}  // namespace

TEST_CASE("sampler: tokens and log-probabilities are the CPU's") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  uint64_t seed = 77;
  for (const int64_t vocab : {1, 5, 511, 4099, 49152, 151936}) {
    const int64_t rows = vocab > 10000 ? 96 : 512;
    const std::vector<float> logits = make_logits(rows, vocab, seed);
    std::vector<DrawRequest> requests;
    std::vector<SamplingParams> params;
    for (int64_t r = 0; r < rows; ++r) {
      SamplingParams p;
      constexpr float kTemperatures[] = {1.0F, 0.7F, 0.0F, 1.3F, 0.05F};
      constexpr float kTopP[] = {1.0F, 0.9F, 0.5F, 1.0F, 0.01F, 0.999F, 1.0F};
      constexpr int32_t kTopK[] = {-1, 50, -1, 1, 0, 7, -1, 100000, 3};
      p.temperature = kTemperatures[r % 5];
      p.top_p = kTopP[r % 7];
      p.top_k = kTopK[r % 9];
      params.push_back(p);
      const uint64_t random = r % 31 == 30 ? ~uint64_t{0} : r % 29 == 28 ? 0 : mix(seed);
      requests.push_back({random, p.temperature, p.top_p, p.top_k});
    }
    const Memory logit_memory = gpu->upload(logits);
    const Memory request_memory = gpu->upload(requests);
    const Memory result_memory = gpu->allocate(static_cast<size_t>(rows) * sizeof(DrawResult));
    const MatrixView view{logit_memory.data(), Dtype::kF32, rows, vocab, vocab};
    kernels::cuda::draw_tokens(view, request_memory.as<DrawRequest>(), result_memory.as<DrawResult>(),
                               gpu->handle());
    const auto results = gpu->download<DrawResult>(result_memory, static_cast<size_t>(rows));
    rollout::SamplerScratch scratch;
    int64_t tokens = 0;
    int64_t bits = 0;
    for (int64_t r = 0; r < rows; ++r) {
      const auto i = static_cast<size_t>(r);
      const auto drawn = rollout::draw_token({logits.data() + r * vocab, static_cast<size_t>(vocab)},
                                             params[i], requests[i].random, scratch);
      REQUIRE(drawn.ok());
      tokens += drawn->token != results[i].token ? 1 : 0;
      bits += std::bit_cast<uint32_t>(drawn->logprob) != std::bit_cast<uint32_t>(results[i].logprob) ? 1 : 0;
      bits += std::bit_cast<uint32_t>(drawn->sampling_logprob) !=
                      std::bit_cast<uint32_t>(results[i].sampling_logprob)
                  ? 1
                  : 0;
    }
    CAPTURE(vocab);
    CHECK(tokens == 0);
    CHECK(bits == 0);
  }
}

TEST_CASE("sampler: what cannot be drawn is named") {
  const auto gpu = Gpu::open();
  if (!gpu) return;
  constexpr int64_t kVocab = 1000;
  std::vector<float> logits(4 * kVocab, 1.0F);
  logits[500] = NAN;
  logits[kVocab + 900] = INFINITY;
  logits[kVocab + 777] = -INFINITY;
  logits[2 * kVocab + 3] = 3.0e38F;
  const std::vector<DrawRequest> requests(4, DrawRequest{1, 0.001F, 1.0F, -1});
  const Memory logit_memory = gpu->upload(logits);
  const Memory request_memory = gpu->upload(requests);
  const Memory result_memory = gpu->allocate(4 * sizeof(DrawResult));
  kernels::cuda::draw_tokens({logit_memory.data(), Dtype::kF32, 4, kVocab, kVocab},
                             request_memory.as<DrawRequest>(), result_memory.as<DrawResult>(), gpu->handle());
  const auto results = gpu->download<DrawResult>(result_memory, 4);
  CHECK(results[0].bad_token == 500);
  CHECK(results[1].bad_token == 777);
  CHECK(results[2].bad_token == -1);
  CHECK(results[2].overflow == 1);
  CHECK(results[3].bad_token == -1);
  CHECK(results[3].overflow == 0);
  CHECK(results[3].token == 0);
}
