// JSONL from anywhere, as training prompts and as supervised records, under both policies.
#include <cstddef>
#include <cstdint>
#include <cstdlib>
#include <memory>
#include <string>
#include <string_view>

#include "base/log.hpp"
#include "base/strict_json.hpp"
#include "text/byte_level.hpp"
#include "text/dataset.hpp"
#include "text/sft_dataset.hpp"
#include "text/utf8.hpp"

namespace {

using namespace accord::text;
using accord::Json;

std::unique_ptr<Tokenizer> make_tokenizer() {
  accord::log::set_level(accord::log::Level::kError);
  Json vocab = Json::object();
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, char_of_byte(static_cast<uint8_t>(byte)));
    vocab[token] = byte;
  }
  const Json json = {{"pre_tokenizer", {{"type", "ByteLevel"}, {"add_prefix_space", false}}},
                     {"decoder", {{"type", "ByteLevel"}}},
                     {"model", {{"type", "BPE"}, {"vocab", vocab}, {"merges", Json::array()}}}};
  auto tokenizer = Tokenizer::parse(json.dump(), "", "fuzz");
  if (!tokenizer.ok()) {
    std::abort();
  }
  return *std::move(tokenizer);
}

}  // namespace

extern "C" int LLVMFuzzerTestOneInput(const uint8_t* data, size_t size) {
  static const std::unique_ptr<Tokenizer> tokenizer = make_tokenizer();
  const std::string_view content(reinterpret_cast<const char*>(data), size);
  for (const OnBad policy : {OnBad::kFail, OnBad::kSkip}) {
    for (const auto kind : {ChatTemplate::Kind::kNone, ChatTemplate::Kind::kQwen3}) {
      DatasetOptions options;
      options.path = "fuzz";
      options.max_prompt_tokens = 64;
      options.on_bad_line = options.on_long_prompt = policy;
      const auto dataset = Dataset::parse(content, options, *tokenizer, ChatTemplate(kind));
      if (dataset.ok()) {
        const DatasetReport& report = dataset->report();
        if (report.records != report.kept + report.bad_lines + report.long_prompts ||
            report.kept != dataset->size()) {
          std::abort();
        }
      }
      SftOptions sft;
      sft.path = "fuzz";
      sft.on_bad_line = policy;
      (void)SftDataset::parse(content, sft, *tokenizer, ChatTemplate(kind));
    }
  }
  return 0;
}
