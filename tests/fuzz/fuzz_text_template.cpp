// Chat templates from anywhere, rendered over a short chat.
#include <cstddef>
#include <cstdint>
#include <optional>
#include <string_view>

#include "text/jinja/template.hpp"

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  using accord::Json;
  static const Json variables = {
      {"messages",
       {{{"role", "system"}, {"content", "s"}}, {{"role", "user"}, {"content", "Größe <think>"}}}},
      {"add_generation_prompt", true},
      {"bos_token", "<s>"}};
  const auto parsed =
      accord::text::jinja::Template::parse({reinterpret_cast<const char*>(data), size}, "fuzz");
  if (parsed.ok()) {
    (void)(*parsed)->render(variables, std::nullopt);
  }
  return 0;
}
