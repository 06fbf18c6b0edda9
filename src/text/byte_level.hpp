#pragma once
// GPT-2's byte alphabet: each of the 256 byte values is written as one printable character, so that any
// bytes can be spelled in a vocabulary of text (Radford et al. 2019, "Language Models are Unsupervised
// Multitask Learners", bytes_to_unicode).
#include <cstdint>
#include <optional>
#include <string>
#include <string_view>

namespace accord::text {

uint32_t char_of_byte(uint8_t byte);  // code point

// The bytes that a token spells; nullopt when one of its characters is not in the alphabet.
std::optional<std::string> spelled_bytes(std::string_view token);

}  // namespace accord::text
