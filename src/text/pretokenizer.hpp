#pragma once
// The pre_tokenizer of tokenizer.json: cuts text into pieces that merges never cross.
#include <deque>
#include <string>
#include <string_view>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"
#include "text/regex.hpp"

namespace accord::text {

// Pieces of one text. They point into the text, or into `rewritten` where a step changed it.
struct Pieces {
  std::vector<std::string_view> views;
  std::deque<std::string> rewritten;
};

class PreTokenizer {
 public:
  // Reads Sequence, Split, Digits and ByteLevel. ByteLevel must come once, and last: its mapping of bytes to
  // printable characters is done by the model (see byte_level.hpp). Errors name the component.
  static StatusOr<PreTokenizer> parse(const Json& json);

  // Cuts `text` (valid UTF-8); empty pieces are dropped. The pieces are valid as long as `text` and `pieces`.
  Status split(std::string_view text, Regex::Scratch& scratch, Pieces& pieces) const;

 private:
  enum class Behavior : uint8_t { kIsolated, kRemoved, kMergedWithPrevious, kMergedWithNext, kContiguous };
  struct Step {
    bool add_prefix_space = false;  // a space before every piece that does not start with one
    std::vector<Regex> regex;       // none or one
    Behavior behavior = Behavior::kIsolated;
    bool invert = false;
  };

  static StatusOr<Behavior> parse_behavior(const Json& json);
  Status add(const Json& json);
  Status add_split(const Json& json);
  Status add_digits(const Json& json);
  Status add_byte_level(const Json& json);
  static void cut(std::string_view text, const std::vector<Match>& matches, const Step& step,
                  std::vector<std::string_view>& out);

  std::vector<Step> steps_;
  bool has_byte_level_ = false;
};

}  // namespace accord::text
