// xxh3.hpp: sums of blocks of 1024 bytes (128 words: 32 lanes of a warp, two vectors of two words each), the
// chain over the sums of an input (64 bytes a step) and its end.
#include <cuda_pipeline.h>

#include <algorithm>

#include "kernels/cuda/launch.cuh"
#include "kernels/digest/digest_cuda.hpp"

namespace accord::kernels::cuda {
namespace {

using gpu::kFullMask;
using gpu::kWarp;
using xxh3::kBlock;
using xxh3::kLanes;

constexpr int kThreads = 256;
constexpr int kWarps = kThreads / kWarp;
// Of the multiprocessors: enough for several times the speed of any link between devices. Transfers that run
// at the same time need free ones to start on.
constexpr int kShareOfDevice = 2;
constexpr int kAtOnce = 4;   // blocks whose loads a warp has under way
constexpr int kVectors = 2;  // of 16 bytes, per thread and block
constexpr int kGroup = 32;   // steps of a chain whose sums are fetched together
constexpr int kStages = 8;   // groups under way, and the one in use

__constant__ xxh3::Secret secret = xxh3::kSecret;

struct Words {
  uint64_t x, y;
};

// Where block `at` lies in one piece of memory from which vectors can be loaded; null: it does not.
__device__ const ulonglong2* vectors_of(const std::byte* base, const DigestInput& input, int64_t at) {
  int64_t offset = at * kBlock;
  for (int part = 0; part < DigestInput::kParts; ++part) {
    if (offset < input.bytes[part]) {
      const std::byte* p = base + input.begin[part] + offset;
      const bool whole = offset + kBlock <= input.bytes[part];
      return whole && reinterpret_cast<uintptr_t>(p) % sizeof(ulonglong2) == 0
                 ? reinterpret_cast<const ulonglong2*>(p)
                 : nullptr;
    }
    offset -= input.bytes[part];
  }
  return nullptr;
}

// Thread t has the words 2 (32 j + t) and the next one of every block, for j of kVectors: of stripe
// (32 j + t) / 4, for the lanes 2 (t % 4) and the next one.
__global__ void __launch_bounds__(kThreads)
    blocks_kernel(const std::byte* base, const DigestInput* inputs, const DigestBlocks* pieces,
                  int64_t num_pieces, uint64_t* sums) {
  const int t = static_cast<int>(threadIdx.x) % kWarp;
  Words keys[kVectors];
  for (int j = 0; j < kVectors; ++j) {
    const int byte = 8 * ((kWarp * j + t) / 4 + 2 * (t % 4));
    keys[j] = {xxh3::secret_word(secret, byte), xxh3::secret_word(secret, byte + 8)};
  }
  const int64_t step = static_cast<int64_t>(gridDim.x) * kWarps;
  for (int64_t p = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp; p < num_pieces;
       p += step) {
    const DigestBlocks piece = pieces[p];
    const DigestInput& input = inputs[piece.input];
    for (int begin = 0; begin < piece.count; begin += kAtOnce) {
      Words words[kAtOnce][kVectors];
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        if (begin + b >= piece.count) continue;
        const int64_t block = piece.first + begin + b;
        const ulonglong2* vectors = vectors_of(base, input, block);
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          if (vectors != nullptr) {
            const ulonglong2 v = __ldcs(vectors + kWarp * j + t);
            words[b][j] = {v.x, v.y};
          } else {
            const int64_t at = block * kBlock + 16 * (kWarp * j + t);
            words[b][j] = {digest_word(base, input, at), digest_word(base, input, at + 8)};
          }
        }
      }
#pragma unroll
      for (int b = 0; b < kAtOnce; ++b) {
        if (begin + b >= piece.count) continue;
        uint64_t even = 0;
        uint64_t odd = 0;
#pragma unroll
        for (int j = 0; j < kVectors; ++j) {
          even += xxh3::lane_term(words[b][j].x, words[b][j].y, keys[j].x);
          odd += xxh3::lane_term(words[b][j].y, words[b][j].x, keys[j].y);
        }
        for (int away = kWarp / 2; away >= kLanes / 2; away /= 2) {
          even += __shfl_xor_sync(kFullMask, even, away);
          odd += __shfl_xor_sync(kFullMask, odd, away);
        }
        if (t < kLanes / 2) {
          ulonglong2* const out = reinterpret_cast<ulonglong2*>(sums + (piece.at + begin + b) * kLanes);
          out[t] = make_ulonglong2(even, odd);
        }
      }
    }
  }
}

// A warp per run; thread t has lane t % 8 of the state. A step takes some ten nanoseconds, and a load from
// memory as long as many steps: the sums come ahead, in groups, through a ring in shared memory.
__global__ void __launch_bounds__(kWarp)
    chain_kernel(const DigestBlocks* runs, const uint64_t* sums, uint64_t* states) {
  constexpr int kWords = kGroup * kLanes;  // of a group
  constexpr int kWordsPerCopy = 2;         // of one thread: 16 bytes
  __shared__ alignas(16) uint64_t ring[kStages * kWords];
  const DigestBlocks run = runs[blockIdx.x];
  const int t = static_cast<int>(threadIdx.x);
  const int lane = t % kLanes;
  const uint64_t key = xxh3::secret_word(secret, xxh3::kScrambleSecret + 8 * lane);
  uint64_t* const state = states + static_cast<int64_t>(run.input) * kLanes;
  uint64_t v = run.first == 0 ? xxh3::initial_lane(lane) : state[lane];

  const uint64_t* from = sums + run.at * kLanes + t * kWordsPerCopy;  // of the next group
  int left = run.count * kLanes - t * kWordsPerCopy;                  // words from there on
  const auto fetch = [&](int stage) {
    uint64_t* const to = ring + stage * kWords + t * kWordsPerCopy;
#pragma unroll
    for (int word = 0; word < kWords; word += kWarp * kWordsPerCopy) {
      if (word < left) __pipeline_memcpy_async(to + word, from + word, kWordsPerCopy * sizeof(uint64_t));
    }
    __pipeline_commit();
    from += kWords;
    left -= kWords;
  };
#pragma unroll 1
  for (int stage = 0; stage < kStages - 1; ++stage) fetch(stage);

  int stage = 0;
#pragma unroll 1
  for (int count = run.count; count > 0; count -= kGroup, stage = (stage + 1) % kStages) {
    __pipeline_wait_prior(kStages - 2);
    __syncwarp();  // everybody's part of this group has come, and nobody reads the one before any more
    fetch((stage + kStages - 1) % kStages);
    const uint64_t* const now = ring + stage * kWords + lane;
    if (count >= kGroup) {
#pragma unroll
      for (int b = 0; b < kGroup; ++b) v = xxh3::scramble(v + now[b * kLanes], key);
    } else {
#pragma unroll 1
      for (int b = 0; b < count; ++b) v = xxh3::scramble(v + now[b * kLanes], key);
    }
  }
  if (t < kLanes) state[lane] = v;
}

// A warp per input; threads 0 to 7 have the lanes.
__global__ void __launch_bounds__(kThreads)
    finish_kernel(const std::byte* base, const DigestInput* inputs, int64_t num_inputs,
                  const uint64_t* states, xxh3::Digest* digests, uint8_t* short_bytes) {
  const int64_t i = static_cast<int64_t>(blockIdx.x) * kWarps + threadIdx.x / kWarp;
  if (i >= num_inputs) return;
  const int t = static_cast<int>(threadIdx.x) % kWarp;
  const DigestInput& input = inputs[i];
  if (input.short_slot >= 0) {
    for (int64_t at = t; at < input.length; at += kWarp) {
      short_bytes[input.short_slot * xxh3::kLongestShort + at] = digest_byte(base, input, at);
    }
    return;
  }
  const int lane = t % kLanes;
  const int64_t full = xxh3::num_full_blocks(input.length);
  uint64_t v = full == 0 ? xxh3::initial_lane(lane) : states[i * kLanes + lane];
  const auto add = [&](int64_t stripe, int secret_byte) {
    const uint64_t x = digest_word(base, input, stripe + 8 * lane);
    const uint64_t neighbour = __shfl_xor_sync(kFullMask, x, 1);
    v += xxh3::lane_term(x, neighbour, xxh3::secret_word(secret, secret_byte + 8 * lane));
  };
  const int64_t begin = full * kBlock;
  const int stripes = static_cast<int>((input.length - begin - 1) / xxh3::kStripe);
  for (int s = 0; s < stripes; ++s) add(begin + s * xxh3::kStripe, 8 * s);
  add(input.length - xxh3::kStripe, xxh3::kLastStripeSecret);
  uint64_t lanes[kLanes];
  for (int j = 0; j < kLanes; ++j) lanes[j] = __shfl_sync(kFullMask, v, j);
  if (t == 0) digests[i] = xxh3::merge_lanes(lanes, secret, input.length);
}

}  // namespace

void digest_blocks(const std::byte* base, const DigestInput* inputs, const DigestBlocks* pieces,
                   int64_t num_pieces, uint64_t* sums, StreamHandle stream) {
  if (num_pieces == 0) return;
  const auto grid = static_cast<unsigned>(std::min<int64_t>(
      gpu::ceil_div(num_pieces, kWarps), std::max(num_multiprocessors() / kShareOfDevice, 1)));
  blocks_kernel<<<grid, kThreads, 0, stream>>>(base, inputs, pieces, num_pieces, sums);
  check_launch("digest_blocks");
}

void digest_chain(const DigestBlocks* runs, int64_t num_runs, const uint64_t* sums, uint64_t* states,
                  StreamHandle stream) {
  if (num_runs == 0) return;
  chain_kernel<<<static_cast<unsigned>(num_runs), kWarp, 0, stream>>>(runs, sums, states);
  check_launch("digest_chain");
}

void digest_finish(const std::byte* base, const DigestInput* inputs, int64_t num_inputs,
                   const uint64_t* states, xxh3::Digest* digests, uint8_t* short_bytes, StreamHandle stream) {
  if (num_inputs == 0) return;
  const auto grid = static_cast<unsigned>(gpu::ceil_div(num_inputs, kWarps));
  finish_kernel<<<grid, kThreads, 0, stream>>>(base, inputs, num_inputs, states, digests, short_bytes);
  check_launch("digest_finish");
}

}  // namespace accord::kernels::cuda
