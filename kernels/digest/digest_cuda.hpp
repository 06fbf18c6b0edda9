#pragma once
// Digests (xxh3.hpp) of many inputs in device memory, as they arrive: sums of blocks, any number at a time;
// then the chain over them, in order; at last the rest of every input. In stream order; all pointers are the
// device's.
#include <cstddef>
#include <cstdint>

#include "device/stream_handle.hpp"
#include "kernels/digest/xxh3.hpp"
#include "kernels/math/host_device.hpp"

namespace accord::kernels::cuda {

// An input: up to three parts of memory, one after the other.
struct DigestInput {
  static constexpr int kParts = 3;
  int64_t begin[kParts] = {};  // bytes from a common base
  int64_t bytes[kParts] = {};
  int64_t length = 0;       // of all parts
  int64_t short_slot = -1;  // of an input of at most xxh3::kLongestShort bytes
};

// Blocks [first, first + count) of an input, all of them full ones (xxh3::num_full_blocks). Their sums are
// sums[at ...], each of xxh3::kLanes.
struct DigestBlocks {
  int64_t first = 0;
  int64_t at = 0;
  int32_t input = 0;
  int32_t count = 0;
};

// The sums of every piece's blocks. A piece is the work of one warp: some tens of blocks.
void digest_blocks(const std::byte* base, const DigestInput* inputs, const DigestBlocks* pieces,
                   int64_t num_pieces, uint64_t* sums, StreamHandle stream);

// states[input][kLanes] moves on over the sums of every run: from the start where `first` is 0. At most one
// run per input in a call, and an input's runs follow each other.
void digest_chain(const DigestBlocks* runs, int64_t num_runs, const uint64_t* sums, uint64_t* states,
                  StreamHandle stream);

// digests[input] from the states after all full blocks. Of a short input its bytes, to
// short_bytes[short_slot * xxh3::kLongestShort], instead.
void digest_finish(const std::byte* base, const DigestInput* inputs, int64_t num_inputs,
                   const uint64_t* states, xxh3::Digest* digests, uint8_t* short_bytes, StreamHandle stream);

// Byte and word (8 bytes, little-endian) `at` of an input. `base`: where it can be read.
ACCORD_HOST_DEVICE inline uint8_t digest_byte(const std::byte* base, const DigestInput& input, int64_t at) {
  int part = 0;
  while (part + 1 < DigestInput::kParts && at >= input.bytes[part]) {
    at -= input.bytes[part++];
  }
  return static_cast<uint8_t>(base[input.begin[part] + at]);
}
ACCORD_HOST_DEVICE inline uint64_t digest_word(const std::byte* base, const DigestInput& input, int64_t at) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    word |= static_cast<uint64_t>(digest_byte(base, input, at + i)) << (8 * i);
  }
  return word;
}

}  // namespace accord::kernels::cuda
