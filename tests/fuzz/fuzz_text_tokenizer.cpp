// tokenizer.json from anywhere: loads or is refused; what loads encodes and decodes.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <string>
#include <string_view>

#include "text/tokenizer.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using accord::text::Tokenizer;
  const std::string_view json(reinterpret_cast<const char*>(data), size);
  const auto tokenizer = Tokenizer::parse(json, "", "fuzz");
  if (!tokenizer.ok()) {
    return 0;
  }
  for (const std::string_view text :
       {"", "a", "Hello  world\n123 don't", " \t e\xCC\x81 \xE4\xB8\xAD\xF0\x9F\x98\x80 aaaa"}) {
    const auto ids = (*tokenizer)->encode(text);
    if (ids.ok()) {
      for (const int32_t id : *ids) {
        if (!(*tokenizer)->has_id(id)) {
          std::abort();
        }
      }
      (*tokenizer)->decode(*ids, false);
    }
  }
  return 0;
}
