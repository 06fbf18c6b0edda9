#pragma once
// What Python's str knows of single characters.
#include <cstdint>
#include <optional>

namespace accord::text::jinja {

bool is_printable(uint32_t code_point);  // str.isprintable()

// The character's lower or upper case; none where Python writes several characters (ß), or looks at its
// neighbours (Σ).
std::optional<uint32_t> lower_case(uint32_t code_point);
std::optional<uint32_t> upper_case(uint32_t code_point);

}  // namespace accord::text::jinja
