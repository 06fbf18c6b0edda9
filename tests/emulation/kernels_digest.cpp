// Digests of device memory (digest_cuda.hpp).
#include "kernels/digest/digest_cuda.hpp"
#include "tests/emulation/launch.hpp"

namespace accord::kernels::cuda {
namespace {

using emulation::Launch;
using xxh3::kBlock;
using xxh3::kLanes;
using xxh3::kSecret;

// The input in host memory: each part is checked to lie on the device.
DigestInput host_input(const Launch& launch, const std::byte* base, const DigestInput& input) {
  DigestInput out = input;
  for (int part = 0; part < DigestInput::kParts; ++part) {
    const void* p = launch.bytes(base + input.begin[part], input.bytes[part]);
    out.begin[part] = static_cast<int64_t>(reinterpret_cast<intptr_t>(p));
  }
  return out;
}

void add_stripe(const DigestInput& input, int64_t at, int secret_byte, uint64_t* lanes) {
  uint64_t x[kLanes];
  for (int i = 0; i < kLanes; ++i) x[i] = digest_word(nullptr, input, at + 8 * i);
  for (int i = 0; i < kLanes; ++i) {
    lanes[i] += xxh3::lane_term(x[i], x[i ^ 1], xxh3::secret_word(kSecret, secret_byte + 8 * i));
  }
}

}  // namespace

void digest_blocks(const std::byte* base, const DigestInput* inputs, const DigestBlocks* pieces,
                   int64_t num_pieces, uint64_t* sums, StreamHandle stream) {
  const Launch launch("digest_blocks", stream);
  pieces = launch.at(pieces, num_pieces);
  for (int64_t p = 0; p < num_pieces; ++p) {
    const DigestBlocks& piece = pieces[p];
    const DigestInput input = host_input(launch, base, *launch.at(inputs + piece.input, 1));
    launch.needs(piece.count > 0 && piece.first + piece.count <= xxh3::num_full_blocks(input.length),
                 "full blocks of the input");
    uint64_t* out = launch.at(sums + piece.at * kLanes, piece.count * kLanes);
    for (int64_t b = 0; b < piece.count; ++b, out += kLanes) {
      for (int i = 0; i < kLanes; ++i) out[i] = 0;
      for (int s = 0; s < xxh3::kStripesPerBlock; ++s) {
        add_stripe(input, (piece.first + b) * kBlock + s * xxh3::kStripe, 8 * s, out);
      }
    }
  }
}

void digest_chain(const DigestBlocks* runs, int64_t num_runs, const uint64_t* sums, uint64_t* states,
                  StreamHandle stream) {
  const Launch launch("digest_chain", stream);
  runs = launch.at(runs, num_runs);
  for (int64_t r = 0; r < num_runs; ++r) {
    const DigestBlocks& run = runs[r];
    const uint64_t* in = launch.at(sums + run.at * kLanes, run.count * kLanes);
    uint64_t* state = launch.at(states + static_cast<int64_t>(run.input) * kLanes, kLanes);
    for (int i = 0; i < kLanes; ++i) {
      uint64_t v = run.first == 0 ? xxh3::initial_lane(i) : state[i];
      const uint64_t key = xxh3::secret_word(kSecret, xxh3::kScrambleSecret + 8 * i);
      for (int64_t b = 0; b < run.count; ++b) v = xxh3::scramble(v + in[b * kLanes + i], key);
      state[i] = v;
    }
  }
}

void digest_finish(const std::byte* base, const DigestInput* inputs, int64_t num_inputs,
                   const uint64_t* states, xxh3::Digest* digests, uint8_t* short_bytes, StreamHandle stream) {
  const Launch launch("digest_finish", stream);
  inputs = launch.at(inputs, num_inputs);
  states = launch.at(states, num_inputs * kLanes);
  digests = launch.at(digests, num_inputs);
  for (int64_t i = 0; i < num_inputs; ++i) {
    const DigestInput input = host_input(launch, base, inputs[i]);
    if (input.short_slot >= 0) {
      uint8_t* out = launch.at(short_bytes + input.short_slot * xxh3::kLongestShort, input.length);
      for (int64_t at = 0; at < input.length; ++at) out[at] = digest_byte(nullptr, input, at);
      continue;
    }
    const int64_t full = xxh3::num_full_blocks(input.length);
    uint64_t lanes[kLanes];
    for (int j = 0; j < kLanes; ++j) lanes[j] = full == 0 ? xxh3::initial_lane(j) : states[i * kLanes + j];
    const int64_t begin = full * kBlock;
    const auto stripes = static_cast<int>((input.length - begin - 1) / xxh3::kStripe);
    for (int s = 0; s < stripes; ++s) add_stripe(input, begin + s * xxh3::kStripe, 8 * s, lanes);
    add_stripe(input, input.length - xxh3::kStripe, xxh3::kLastStripeSecret, lanes);
    digests[i] = xxh3::merge_lanes(lanes, kSecret, input.length);
  }
}

}  // namespace accord::kernels::cuda
