#pragma once
// The regular expressions of tokenizer.json are Oniguruma's (Ruby syntax). This turns one into the PCRE2
// pattern that matches the same text. What differs, besides Unicode versions: \s (PCRE2 adds U+180E), \w, \h,
// \v, `^` and `$` (always per line in Ruby), `{n,m}+` (repeated, not possessive), nested classes and `&&`.
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord::text {

// Errors name the construct and its offset in `pattern`. Not supported: back references, \b, \B, \R, \X, \G,
// \K, \h, option groups other than (?i:...), set operations, named groups, properties that are neither a
// general category nor one of a few scripts.
StatusOr<std::string> to_pcre2(std::string_view pattern);

// A pattern that matches `text` itself.
std::string literal_pattern(std::string_view text);

// PCRE2 classes of the tokenizers' own notions of a space (Unicode White_Space) and of a word character.
std::string space_class();
std::string word_class();
std::string number_class();  // of the Digits pre-tokenizer: category N, as of Unicode 17

}  // namespace accord::text
