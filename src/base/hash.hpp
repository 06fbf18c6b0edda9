#pragma once
// XXH3-128 digests. They detect corruption and identify content; they do not authenticate.
#include <cstddef>
#include <cstdint>
#include <memory>
#include <string>
#include <string_view>

namespace accord {

std::string digest_hex(const void* data, size_t size);  // 32 hex digits
inline std::string digest_hex(std::string_view text) { return digest_hex(text.data(), text.size()); }

// Incremental form of the same digest.
class Hasher {
 public:
  Hasher();
  ~Hasher();
  Hasher(Hasher&&) noexcept;
  Hasher& operator=(Hasher&&) noexcept;
  void update(const void* data, size_t size);
  void update(std::string_view text) { update(text.data(), text.size()); }
  std::string hex() const;

 private:
  struct State;
  std::unique_ptr<State> state_;
};

}  // namespace accord
