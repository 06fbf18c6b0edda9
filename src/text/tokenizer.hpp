#pragma once
// Byte-level BPE tokenizers as Hugging Face's `tokenizer.json` describes them (Qwen, DeepSeek, Llama 3,
// SmolLM and others). Token ids equal those of the `tokenizers` library with add_special_tokens=False: no
// begin-of-text or end-of-text token is added, but special tokens that are spelled in the text are
// recognised, in whatever a user wrote as well.
#include <cstdint>
#include <memory>
#include <optional>
#include <span>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"

namespace accord::text {

class Tokenizer {
 public:
  // Reads DIR/tokenizer.json and, if it is there, DIR/tokenizer_config.json. Whatever changes ids and is not
  // supported is an error that names the file and the component.
  static StatusOr<std::unique_ptr<Tokenizer>> load(const std::string& dir);
  // The same from memory; config_json may be empty. `origin` stands for the directory in errors.
  static StatusOr<std::unique_ptr<Tokenizer>> parse(std::string_view tokenizer_json,
                                                    std::string_view config_json, const std::string& origin);
  ~Tokenizer();

  // Every const method may run in several threads at once.
  // Text that is not valid UTF-8 is a data error.
  StatusOr<std::vector<int32_t>> encode(std::string_view text) const;
  // Ids without a token decode to nothing; bytes that are not UTF-8 decode to U+FFFD.
  std::string decode(std::span<const int32_t> ids, bool skip_special = true) const;

  int64_t vocab_size() const;  // the largest id + 1; a model's embedding may have more rows
  std::optional<int32_t> token_id(std::string_view token) const;  // as vocab spells it: "Ġthe", "<|im_end|>"
  bool has_id(int32_t id) const;
  bool is_special(int32_t id) const;
  std::string_view bytes_of(int32_t id) const;        // what the token adds to a text; empty without a token
  const std::vector<int32_t>& eos_token_ids() const;  // eos_token of tokenizer_config.json; may be empty

 private:
  struct Impl;
  explicit Tokenizer(std::unique_ptr<Impl> impl);
  std::unique_ptr<Impl> impl_;
};

// Decodes token by token. The outputs, joined, equal Tokenizer::decode of all ids; a character appears once
// its last byte is there.
class StreamDecoder {
 public:
  explicit StreamDecoder(const Tokenizer& tokenizer, bool skip_special = true);
  std::string push(int32_t id);
  std::string finish();  // what is left of an incomplete character, as U+FFFD

 private:
  const Tokenizer* tokenizer_;
  bool skip_special_;
  std::string pending_;
};

}  // namespace accord::text
