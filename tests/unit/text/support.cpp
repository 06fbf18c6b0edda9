#include "unit/text/support.hpp"

#include <cstdio>
#include <cstdlib>
#include <filesystem>

#include "base/files.hpp"
#include "support/catch.hpp"
#include "text/byte_level.hpp"
#include "text/utf8.hpp"

namespace accord::text::testing {

Json read_json(const std::string& path) {
  const auto text = read_file(path, int64_t{1} << 30);
  REQUIRE(text.ok());
  auto json = parse_json(*text);
  REQUIRE(json.ok());
  return *std::move(json);
}

std::string data_path(const std::string& name) { return std::string(ACCORD_TEST_DATA) + "/text/" + name; }

std::string large_tokenizer_dir(const std::string& name) {
  const char* folder = std::getenv("ACCORD_TEST_TOKENIZERS");
  return (folder != nullptr ? std::string(folder)
                            : std::string(ACCORD_SOURCE_DIR) + "/../shared/tokenizers") +
         "/" + name;
}

std::unique_ptr<Tokenizer> large_tokenizer(const std::string& name) {
  const std::string dir = large_tokenizer_dir(name);
  if (!std::filesystem::exists(dir + "/tokenizer.json")) {
    std::printf("SKIPPED: no tokenizer at %s; set ACCORD_TEST_TOKENIZERS to a folder that holds %s\n",
                dir.c_str(), name.c_str());
    return nullptr;
  }
  auto tokenizer = Tokenizer::load(dir);
  INFO(error_of(tokenizer.status()));
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

std::unique_ptr<Tokenizer> tiny_tokenizer() {
  auto tokenizer = Tokenizer::load(data_path("tiny_tokenizer"));
  INFO(error_of(tokenizer.status()));
  REQUIRE(tokenizer.ok());
  return *std::move(tokenizer);
}

Json byte_tokenizer_json() {
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, char_of_byte(static_cast<uint8_t>(byte)));
    vocab[token] = byte;
  }
  return Json{{"version", "1.0"},
              {"added_tokens", Json::array()},
              {"normalizer", nullptr},
              {"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}, {"use_regex", false}}},
              {"post_processor", nullptr},
              {"decoder", {{"type", "ByteLevel"}}},
              {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
}

StatusOr<std::unique_ptr<Tokenizer>> parse_tokenizer(const Json& json, const std::string& config) {
  return Tokenizer::parse(json.dump(), config, "memory");
}

std::string error_of(const Status& status) { return std::string(message_of(status)); }

}  // namespace accord::text::testing
