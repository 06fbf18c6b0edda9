#pragma once
// What a checkpoint's files say for its chat template. Only .cpp files include this header.
#include <string>

#include "base/status.hpp"
#include "base/strict_json.hpp"

namespace accord::text {

struct JinjaSource {
  std::string text;    // empty: there is none
  std::string origin;  // the file, for errors
};

// DIR/chat_template.jinja, or chat_template of DIR/tokenizer_config.json: one template, or a list of named
// ones of which `default` is meant.
StatusOr<JinjaSource> find_template(const std::string& dir);

// bos_token, eos_token and the other named special tokens, by DIR/special_tokens_map.json and, before it,
// DIR/tokenizer_config.json; those that are null or missing are left out.
StatusOr<Json> special_tokens(const std::string& dir);

}  // namespace accord::text
