#include "base/hash.hpp"

#include <fmt/format.h>
#include <xxhash.h>

#include <new>

namespace accord {
namespace {

std::string to_hex(XXH128_hash_t hash) { return fmt::format("{:016x}{:016x}", hash.high64, hash.low64); }

struct FreeState {
  void operator()(XXH3_state_t* state) const { XXH3_freeState(state); }
};

}  // namespace

struct Hasher::State {
  std::unique_ptr<XXH3_state_t, FreeState> xxh{XXH3_createState()};
};

std::string digest_hex(const void* data, size_t size) { return to_hex(XXH3_128bits(data, size)); }

Hasher::Hasher() : state_(std::make_unique<State>()) {
  if (!state_->xxh) {
    throw std::bad_alloc();
  }
  XXH3_128bits_reset(state_->xxh.get());
}
Hasher::~Hasher() = default;
Hasher::Hasher(Hasher&&) noexcept = default;
Hasher& Hasher::operator=(Hasher&&) noexcept = default;

void Hasher::update(const void* data, size_t size) { XXH3_128bits_update(state_->xxh.get(), data, size); }

std::string Hasher::hex() const { return to_hex(XXH3_128bits_digest(state_->xxh.get())); }

}  // namespace accord
