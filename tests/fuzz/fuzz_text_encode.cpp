// Random bytes as text and as ids, with a fixed small tokenizer whose normalizer is NFC.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>
#include <vector>

#include "text/byte_level.hpp"
#include "text/nfc.hpp"
#include "text/tokenizer.hpp"
#include "text/utf8.hpp"

namespace {

using accord::text::StreamDecoder;
using accord::text::Tokenizer;

void require(bool condition) {
  if (!condition) {
    std::abort();
  }
}

// The 256 bytes (byte 0x22 and 0x5C escaped), three merges, an added token and Qwen's pattern.
std::unique_ptr<Tokenizer> make_tokenizer() {
  std::string vocab;
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    accord::text::append_utf8(token, accord::text::char_of_byte(static_cast<uint8_t>(byte)));
    const bool escaped = token == "\"" || token == "\\";
    vocab +=
        (byte > 0 ? ",\"" : "\"") + std::string(escaped ? "\\" : "") + token + "\":" + std::to_string(byte);
  }
  const std::string json =
      R"({"version":"1.0","normalizer":{"type":"NFC"},"decoder":{"type":"ByteLevel"},
          "added_tokens":[{"id":259,"content":"<|x|>","special":true},
                          {"id":260,"content":"<s>","lstrip":true,"rstrip":true,"single_word":true}],
          "pre_tokenizer":{"type":"Sequence","pretokenizers":[{"type":"Split","behavior":"Isolated","pattern":{"Regex":
            "(?i:'s|'t|'re|'ve|'m|'ll|'d)|[^\\r\\n\\p{L}\\p{N}]?\\p{L}+|\\p{N}| ?[^\\s\\p{L}\\p{N}]+[\\r\\n]*|\\s*[\\r\\n]+|\\s+(?!\\S)|\\s+"}},
            {"type":"ByteLevel","add_prefix_space":false,"use_regex":false}]},
          "model":{"type":"BPE","merges":["a b","ab a","aba b"],"vocab":{)" +
      vocab + R"(,"ab":256,"aba":257,"abab":258}}})";
  auto tokenizer = Tokenizer::parse(json, "", "fuzz");
  require(tokenizer.ok());
  return *std::move(tokenizer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer();
  const std::string_view text(reinterpret_cast<const char*>(data), size);
  const auto ids = tokenizer->encode(text);
  const bool valid = accord::text::find_invalid_utf8(text) == std::string_view::npos;
  require(ids.ok() == valid);
  if (valid && text.find('<') == std::string_view::npos) {  // no added token takes white space away
    require(tokenizer->decode(*ids, false) == accord::text::nfc(text).value());
  }
  std::vector<int32_t> raw(data, data + size);
  StreamDecoder stream(*tokenizer, false);
  std::string streamed;
  for (const int32_t id : raw) {
    streamed += stream.push(id);
    require(accord::text::find_invalid_utf8(streamed) == std::string_view::npos);
  }
  require(streamed + stream.finish() == tokenizer->decode(raw, false));
  return 0;
}
