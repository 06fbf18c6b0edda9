#pragma once
// XXH3-128 (seed 0, default secret) of inputs longer than 240 bytes, in the parts that a device can compute
// side by side. Source: the XXH3 specification, doc/xxhash_spec.md of xxHash.
//
// The input is cut into stripes of 64 bytes and blocks of 16 stripes. A state has 8 lanes of 64 bits. A
// stripe s of a block adds to lane i, with x the stripe's words and k = x_i ^ secret at byte 8 (s + i):
//
//   lane_i += x_(i^1) + low32(k) * high32(k)        modulo 2^64
//
// These sums have no order, so a block's sum B can be taken alone. Between blocks the state is scrambled,
// which has an order but is short (kilobytes per step):
//
//   lane_i = ((v ^ (v >> 47)) ^ secret at byte 128 + 8 i) * P32_1   with v = lane_i + B_i
//
// The last block, which may be partial, is not scrambled; then the input's last 64 bytes count as one more
// stripe with the secret from byte 121. Two merges of the lanes give the two halves of the digest.
#include <cstdint>

#include "kernels/math/host_device.hpp"

namespace accord::kernels::xxh3 {

constexpr int kLanes = 8;
constexpr int kStripe = 64;
constexpr int kStripesPerBlock = 16;
constexpr int kBlock = kStripe * kStripesPerBlock;
constexpr int kWordsPerBlock = kBlock / 8;
constexpr int kLongestShort = 240;  // inputs up to here have other formulas

constexpr uint64_t kP32_1 = 0x9E3779B1;
constexpr uint64_t kP32_2 = 0x85EBCA77;
constexpr uint64_t kP32_3 = 0xC2B2AE3D;
constexpr uint64_t kP64_1 = 0x9E3779B185EBCA87;
constexpr uint64_t kP64_2 = 0xC2B2AE3D27D4EB4F;
constexpr uint64_t kP64_3 = 0x165667B19E3779F9;
constexpr uint64_t kP64_4 = 0x85EBCA77C2B2AE63;
constexpr uint64_t kP64_5 = 0x27D4EB2F165667C5;
constexpr uint64_t kAvalanche = 0x165667919E3779F9;

struct Secret {
  uint8_t bytes[192];
};
constexpr Secret kSecret = {{
    0xb8, 0xfe, 0x6c, 0x39, 0x23, 0xa4, 0x4b, 0xbe, 0x7c, 0x01, 0x81, 0x2c, 0xf7, 0x21, 0xad, 0x1c,
    0xde, 0xd4, 0x6d, 0xe9, 0x83, 0x90, 0x97, 0xdb, 0x72, 0x40, 0xa4, 0xa4, 0xb7, 0xb3, 0x67, 0x1f,
    0xcb, 0x79, 0xe6, 0x4e, 0xcc, 0xc0, 0xe5, 0x78, 0x82, 0x5a, 0xd0, 0x7d, 0xcc, 0xff, 0x72, 0x21,
    0xb8, 0x08, 0x46, 0x74, 0xf7, 0x43, 0x24, 0x8e, 0xe0, 0x35, 0x90, 0xe6, 0x81, 0x3a, 0x26, 0x4c,
    0x3c, 0x28, 0x52, 0xbb, 0x91, 0xc3, 0x00, 0xcb, 0x88, 0xd0, 0x65, 0x8b, 0x1b, 0x53, 0x2e, 0xa3,
    0x71, 0x64, 0x48, 0x97, 0xa2, 0x0d, 0xf9, 0x4e, 0x38, 0x19, 0xef, 0x46, 0xa9, 0xde, 0xac, 0xd8,
    0xa8, 0xfa, 0x76, 0x3f, 0xe3, 0x9c, 0x34, 0x3f, 0xf9, 0xdc, 0xbb, 0xc7, 0xc7, 0x0b, 0x4f, 0x1d,
    0x8a, 0x51, 0xe0, 0x4b, 0xcd, 0xb4, 0x59, 0x31, 0xc8, 0x9f, 0x7e, 0xc9, 0xd9, 0x78, 0x73, 0x64,
    0xea, 0xc5, 0xac, 0x83, 0x34, 0xd3, 0xeb, 0xc3, 0xc5, 0x81, 0xa0, 0xff, 0xfa, 0x13, 0x63, 0xeb,
    0x17, 0x0d, 0xdd, 0x51, 0xb7, 0xf0, 0xda, 0x49, 0xd3, 0x16, 0x55, 0x26, 0x29, 0xd4, 0x68, 0x9e,
    0x2b, 0x16, 0xbe, 0x58, 0x7d, 0x47, 0xa1, 0xfc, 0x8f, 0xf8, 0xb8, 0xd1, 0x7a, 0xd0, 0x31, 0xce,
    0x45, 0xcb, 0x3a, 0x8f, 0x95, 0x16, 0x04, 0x28, 0xaf, 0xd7, 0xfb, 0xca, 0xbb, 0x4b, 0x40, 0x7e,
}};
constexpr int kScrambleSecret = 128;
constexpr int kLastStripeSecret = 121;
constexpr int kLowSecret = 11;
constexpr int kHighSecret = 117;

struct Digest {
  uint64_t low = 0;
  uint64_t high = 0;
};

ACCORD_HOST_DEVICE inline uint64_t secret_word(const Secret& secret, int byte) {
  uint64_t word = 0;
  for (int i = 0; i < 8; ++i) {
    word |= static_cast<uint64_t>(secret.bytes[byte + i]) << (8 * i);
  }
  return word;
}

// Full blocks of a long input: those that are scrambled.
ACCORD_HOST_DEVICE inline int64_t num_full_blocks(int64_t length) { return (length - 1) / kBlock; }

ACCORD_HOST_DEVICE inline uint64_t initial_lane(int lane) {
  switch (lane) {
    case 0:
      return kP32_3;
    case 1:
      return kP64_1;
    case 2:
      return kP64_2;
    case 3:
      return kP64_3;
    case 4:
      return kP64_4;
    case 5:
      return kP32_2;
    case 6:
      return kP64_5;
    default:
      return kP32_1;
  }
}

// What words x_i and x_(i^1) of a stripe add to lane i.
ACCORD_HOST_DEVICE inline uint64_t lane_term(uint64_t x, uint64_t x_neighbour, uint64_t key) {
  const uint64_t k = x ^ key;
  return x_neighbour + (k & 0xffffffffu) * (k >> 32);
}

// `key`: the secret's word at kScrambleSecret + 8 * lane.
ACCORD_HOST_DEVICE inline uint64_t scramble(uint64_t v, uint64_t key) {
  return ((v ^ (v >> 47)) ^ key) * kP32_1;
}

// High ^ low half of the product.
ACCORD_HOST_DEVICE inline uint64_t fold_product(uint64_t a, uint64_t b) {
  const uint64_t a_low = a & 0xffffffffu, a_high = a >> 32;
  const uint64_t b_low = b & 0xffffffffu, b_high = b >> 32;
  const uint64_t low_low = a_low * b_low, high_low = a_high * b_low;
  const uint64_t low_high = a_low * b_high, high_high = a_high * b_high;
  const uint64_t cross = (low_low >> 32) + (high_low & 0xffffffffu) + low_high;
  const uint64_t high = (high_low >> 32) + (cross >> 32) + high_high;
  return high ^ (a * b);
}

ACCORD_HOST_DEVICE inline uint64_t merge(const uint64_t (&lanes)[kLanes], const Secret& secret, int byte,
                                         uint64_t start) {
  uint64_t h = start;
  for (int i = 0; i < kLanes; i += 2) {
    h += fold_product(lanes[i] ^ secret_word(secret, byte + 8 * i),
                      lanes[i + 1] ^ secret_word(secret, byte + 8 * (i + 1)));
  }
  h ^= h >> 37;
  h *= kAvalanche;
  return h ^ (h >> 32);
}

// `lanes` after the input's last stripe.
ACCORD_HOST_DEVICE inline Digest merge_lanes(const uint64_t (&lanes)[kLanes], const Secret& secret,
                                             int64_t length) {
  const auto bytes = static_cast<uint64_t>(length);
  return {merge(lanes, secret, kLowSecret, bytes * kP64_1),
          merge(lanes, secret, kHighSecret, ~(bytes * kP64_2))};
}

}  // namespace accord::kernels::xxh3
