#pragma once
// added_tokens of tokenizer.json: strings that become one token wherever they stand, before the text is cut.
#include <array>
#include <cstdint>
#include <map>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"
#include "text/bpe.hpp"
#include "text/regex.hpp"

namespace accord::text {

struct AddedToken {
  int32_t id = -1;
  std::string content;
  bool single_word = false;  // only between non-word characters
  bool lstrip = false;       // takes the white space before it
  bool rstrip = false;       // and after it
  bool normalized = false;   // looked for in the normalized text, not in the raw one
  bool special = false;      // left out by decode(skip_special)
};

// Finds the leftmost-longest occurrences of a set of strings.
class TokenFinder {
 public:
  void add(std::string_view content, size_t index);
  // The longest string that starts at `position`: its index and length; length 0 where there is none.
  std::pair<size_t, size_t> longest_at(std::string_view text, size_t position) const;
  bool empty() const { return nodes_.size() == 1; }

 private:
  struct Node {
    std::map<uint8_t, uint32_t> next;
    int64_t index = -1;
  };
  std::vector<Node> nodes_ = std::vector<Node>(1);
  std::array<bool, 256> can_start_{};
};

class AddedTokens {
 public:
  // A part of a text: an added token's id, or plain text with id -1.
  struct Part {
    int32_t id = -1;
    std::string_view text;
  };

  // Refuses a list whose ids are not those that the reference gives: the vocabulary's for tokens that it
  // holds, the next free ones, in file order, for the rest. `nfc`: contents of normalized tokens are
  // normalized.
  static StatusOr<AddedTokens> parse(const Json& list, const Bpe::Vocabulary& vocabulary, bool nfc);

  // Appends the parts of `text`, in order; plain parts are never empty. `normalized` picks the tokens.
  Status split(std::string_view text, bool normalized, Regex::Scratch& scratch,
               std::vector<Part>& parts) const;

  const std::vector<AddedToken>& tokens() const { return tokens_; }

 private:
  Status read(const Json& entry, const Bpe::Vocabulary& vocabulary, int64_t& next_id);
  StatusOr<bool> is_whole_word(std::string_view text, Match match, Regex::Scratch& scratch) const;

  std::vector<AddedToken> tokens_;
  TokenFinder raw_;
  TokenFinder normalized_;
  std::vector<Regex> word_;  // \w; one, once parsed
};

}  // namespace accord::text
