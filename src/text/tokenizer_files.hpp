#pragma once
// The parts of tokenizer.json and tokenizer_config.json that decide whether a tokenizer is supported, and
// little else. Only .cpp files include this header.
#include <cstdint>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"
#include "text/tokenizer.hpp"

namespace accord::text {

inline constexpr char kTokenizerFile[] = "tokenizer.json";
inline constexpr char kTokenizerConfigFile[] = "tokenizer_config.json";
inline constexpr int64_t kMaxTokenizerBytes = int64_t{256} << 20;
inline constexpr int64_t kMaxConfigBytes = int64_t{16} << 20;

StatusOr<std::string> read_optional(const std::string& path);  // "" when there is no such file

Status check_version(const Json& version);
Status check_post_processor(const Json& json);      // those that add no token, or only special ones
Status check_decoder(const Json& json);             // ByteLevel
StatusOr<bool> parse_normalizer(const Json& json);  // true: NFC; false: none

// The ids of `eos_token`. Tokens that added_tokens_decoder lists must be the tokenizer's.
StatusOr<std::vector<int32_t>> eos_of_config(std::string_view config_json, const Tokenizer& tokenizer);

}  // namespace accord::text
