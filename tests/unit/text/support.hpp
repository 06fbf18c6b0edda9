#pragma once
// What the text room's tests share.
#include <cstdint>
#include <memory>
#include <string>
#include <vector>

#include "base/strict_json.hpp"
#include "text/tokenizer.hpp"

namespace accord::text::testing {

Json read_json(const std::string& path);
std::string data_path(const std::string& name);  // under tests/data/text

// A published tokenizer (qwen3, deepseek_v3), too large to be kept with the sources; null, with a line that
// says why, where it is not installed. ACCORD_TEST_TOKENIZERS names the folder.
std::unique_ptr<Tokenizer> large_tokenizer(const std::string& name);
std::string large_tokenizer_dir(const std::string& name);

std::unique_ptr<Tokenizer> tiny_tokenizer();

// A tokenizer of the 256 bytes (ids 0..255 by byte value) with `changes` merged over its tokenizer.json.
Json byte_tokenizer_json();
StatusOr<std::unique_ptr<Tokenizer>> parse_tokenizer(const Json& json, const std::string& config = "");

std::string error_of(const Status& status);

}  // namespace accord::text::testing
