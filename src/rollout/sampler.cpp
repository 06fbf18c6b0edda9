#include "rollout/sampler.hpp"

#include <algorithm>
#include <bit>
#include <cassert>
#include <cmath>

#include "base/philox.hpp"
#include "kernels/logprob/logprob.hpp"
#include "kernels/math/math.hpp"

namespace accord::rollout {
namespace {

__extension__ using Uint128 = unsigned __int128;

constexpr int kRadixBits = 11;
constexpr size_t kRadixSize = size_t{1} << kRadixBits;

// One of the sorted radix passes over a 32-bit key, most significant first: 11 + 11 + 10 bits.
struct RadixPass {
  int shift;
  uint32_t digits;
};
constexpr RadixPass kPasses[] = {{21, 0x7ff}, {10, 0x7ff}, {0, 0x3ff}};

// The boundary of a kept set: keys above `key` stay, and of those equal to it the first `ties` ids.
struct Cut {
  uint32_t key = 0;
  uint64_t ties = 0;
};

bool all_finite(std::span<const float> logits) {
  uint32_t bad = 0;
  for (const float x : logits) {
    bad |= static_cast<uint32_t>((std::bit_cast<uint32_t>(x) & 0x7f800000u) == 0x7f800000u);
  }
  return bad == 0;
}

Status not_finite(std::span<const float> logits) {
  const auto it = std::find_if(logits.begin(), logits.end(), [](float x) { return !std::isfinite(x); });
  return logit_not_finite(it - logits.begin(), *it);
}

// Ascending with the logit; -0 and +0 are one value.
uint32_t order_key(float logit) {
  const uint32_t bits = std::bit_cast<uint32_t>(logit + 0.0F);
  return (bits & 0x80000000u) != 0 ? ~bits : bits | 0x80000000u;
}

// The smallest set of largest keys whose weights sum to at least `need` (at most the sum of all weights).
// Elements of equal key have equal weight, or 0 from some id on.
template <class Weight>
Cut select_cut(const std::vector<uint32_t>& keys, uint64_t need, std::vector<uint64_t>& histogram,
               Weight weight) {
  uint32_t prefix = 0;
  uint32_t prefix_mask = 0;
  for (const RadixPass& pass : kPasses) {
    histogram.assign(kRadixSize, 0);
    for (size_t i = 0; i < keys.size(); ++i) {
      if ((keys[i] & prefix_mask) == prefix) {
        histogram[(keys[i] >> pass.shift) & pass.digits] += weight(i);
      }
    }
    uint32_t digit = pass.digits;
    while (histogram[digit] < need) {
      need -= histogram[digit];
      --digit;
    }
    prefix |= digit << pass.shift;
    prefix_mask |= pass.digits << pass.shift;
  }
  uint64_t each = 0;
  for (size_t i = 0; i < keys.size() && each == 0; ++i) {
    each = keys[i] == prefix ? weight(i) : 0;
  }
  return {.key = prefix, .ties = (need + each - 1) / each};
}

void drop_below(const Cut& cut, const std::vector<uint32_t>& keys, std::vector<uint64_t>& masses) {
  uint64_t ties = cut.ties;
  for (size_t i = 0; i < keys.size(); ++i) {
    if (keys[i] < cut.key || (keys[i] == cut.key && ties == 0)) {
      masses[i] = 0;
    } else if (keys[i] == cut.key) {
      --ties;
    }
  }
}

uint64_t sum_of(const std::vector<uint64_t>& masses) {
  uint64_t sum = 0;
  for (const uint64_t q : masses) {
    sum += q;
  }
  return sum;
}

// round(w * 2^40) for w in [0, 1]: adding 2^52 leaves the integer in the low bits of the double.
void to_masses(const std::vector<float>& weights, std::vector<uint64_t>& masses) {
  constexpr double kMagic = 0x1p52;
  masses.resize(weights.size());
  for (size_t i = 0; i < weights.size(); ++i) {
    masses[i] = std::bit_cast<uint64_t>(static_cast<double>(weights[i]) * 0x1p40 + kMagic) -
                std::bit_cast<uint64_t>(kMagic);
  }
}

// ceil(p * total), at least 1.
uint64_t top_p_mass(float top_p, uint64_t total) {
  const auto p = static_cast<Uint128>(std::ceil(static_cast<double>(top_p) * 0x1p40));
  const auto mass = static_cast<uint64_t>((p * total + ((uint64_t{1} << 40) - 1)) >> 40);
  return std::clamp<uint64_t>(mass, 1, total);
}

void truncate(std::span<const float> logits, const SamplingParams& params, SamplerScratch& scratch) {
  scratch.keys.resize(logits.size());
  std::transform(logits.begin(), logits.end(), scratch.keys.begin(), order_key);
  if (params.top_k > 0 && static_cast<size_t>(params.top_k) < logits.size()) {
    const Cut cut = select_cut(scratch.keys, static_cast<uint64_t>(params.top_k), scratch.histogram,
                               [](size_t) -> uint64_t { return 1; });
    drop_below(cut, scratch.keys, scratch.masses);
  }
  if (params.top_p < 1.0F) {
    const uint64_t need = top_p_mass(params.top_p, sum_of(scratch.masses));
    const Cut cut = select_cut(scratch.keys, need, scratch.histogram,
                               [&](size_t i) -> uint64_t { return scratch.masses[i]; });
    drop_below(cut, scratch.keys, scratch.masses);
  }
}

int32_t inverse_cdf(const std::vector<uint64_t>& masses, uint64_t total, uint64_t random) {
  auto target = static_cast<uint64_t>((static_cast<Uint128>(random) * total) >> 64);
  size_t id = 0;
  while (target >= masses[id]) {
    target -= masses[id];
    ++id;
  }
  return static_cast<int32_t>(id);
}

DrawnToken greedy(std::span<const float> logits) {
  const auto size = static_cast<int64_t>(logits.size());
  const auto token = static_cast<int32_t>(std::max_element(logits.begin(), logits.end()) - logits.begin());
  return {.token = token, .logprob = kernels::token_logprob(logits.data(), size, token, 1.0F)};
}

}  // namespace

Status logit_not_finite(int64_t token, float logit) {
  return internal_error("the logit of token {} is {}", token, logit);
}

Status tempered_logits_overflow(float temperature) {
  return internal_error("the logits divided by the temperature {} overflow", temperature);
}

StatusOr<DrawnToken> draw_token(std::span<const float> logits, const SamplingParams& params, uint64_t random,
                                SamplerScratch& scratch) {
  if (!all_finite(logits)) {
    return not_finite(logits);
  }
  if (params.temperature == 0.0F) {
    return greedy(logits);
  }
  const float temperature = params.temperature;
  const auto size = static_cast<int64_t>(logits.size());
  const kernels::SoftmaxStats stats = kernels::softmax_stats(logits.data(), size, temperature);
  if (!std::isfinite(stats.max) || !std::isfinite(stats.sum)) {
    return tempered_logits_overflow(temperature);
  }
  scratch.weights.resize(logits.size());
  kernels::softmax_weights(logits.data(), size, temperature, stats, scratch.weights.data());
  to_masses(scratch.weights, scratch.masses);
  const uint64_t total = sum_of(scratch.masses);
  truncate(logits, params, scratch);
  const uint64_t kept = sum_of(scratch.masses);

  DrawnToken drawn;
  drawn.token = inverse_cdf(scratch.masses, kept, random);
  drawn.logprob = kernels::token_logprob(stats, logits[static_cast<size_t>(drawn.token)], temperature);
  drawn.sampling_logprob = drawn.logprob;
  if (kept != total) {
    const double share = static_cast<double>(kept) / static_cast<double>(total);
    drawn.sampling_logprob = drawn.logprob - kernels::log_f32(static_cast<float>(share));
  }
  return drawn;
}

uint64_t token_random(uint64_t run_seed, const SampleKey& key, int32_t position) {
  const PhiloxBlock block =
      sample_random(run_seed, key.step, key.prompt_id, key.sample_index, static_cast<uint32_t>(position));
  return (static_cast<uint64_t>(block[0]) << 32) | block[1];
}

}  // namespace accord::rollout
