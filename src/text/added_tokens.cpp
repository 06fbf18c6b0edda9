#include "text/added_tokens.hpp"

#include <algorithm>
#include <unordered_set>
#include <utility>

#include "text/fields.hpp"
#include "text/nfc.hpp"
#include "text/pattern.hpp"
#include "text/utf8.hpp"

namespace accord::text {
namespace {

bool is_space(uint32_t c) {
  return (c >= 0x9 && c <= 0xD) || c == 0x20 || c == 0x85 || c == 0xA0 || c == 0x1680 ||
         (c >= 0x2000 && c <= 0x200A) || c == 0x2028 || c == 0x2029 || c == 0x202F || c == 0x205F ||
         c == 0x3000;
}

// The start of the character that ends at `end` (> 0) of valid UTF-8.
size_t char_before(std::string_view text, size_t end) {
  size_t start = end - 1;
  while (start > 0 && (static_cast<uint8_t>(text[start]) & 0xC0) == 0x80) {
    --start;
  }
  return start;
}

size_t skip_space_back(std::string_view text, size_t end, size_t floor) {
  while (end > floor) {
    const size_t start = char_before(text, end);
    if (start < floor || !is_space(next_utf8(text, start).code_point)) {
      break;
    }
    end = start;
  }
  return end;
}

size_t skip_space(std::string_view text, size_t start) {
  while (start < text.size()) {
    const Utf8Step step = next_utf8(text, start);
    if (!is_space(step.code_point)) {
      break;
    }
    start += step.length;
  }
  return start;
}

}  // namespace

void TokenFinder::add(std::string_view content, size_t index) {
  uint32_t node = 0;
  can_start_[static_cast<uint8_t>(content.front())] = true;
  for (const char c : content) {
    const auto byte = static_cast<uint8_t>(c);
    const auto found = nodes_[node].next.find(byte);
    if (found != nodes_[node].next.end()) {
      node = found->second;
      continue;
    }
    const auto created = static_cast<uint32_t>(nodes_.size());
    nodes_[node].next.emplace(byte, created);
    nodes_.emplace_back();
    node = created;
  }
  if (nodes_[node].index < 0) {  // of equal strings the first wins
    nodes_[node].index = static_cast<int64_t>(index);
  }
}

std::pair<size_t, size_t> TokenFinder::longest_at(std::string_view text, size_t position) const {
  std::pair<size_t, size_t> best{0, 0};
  if (!can_start_[static_cast<uint8_t>(text[position])]) {
    return best;
  }
  uint32_t node = 0;
  for (size_t i = position; i < text.size(); ++i) {
    const auto found = nodes_[node].next.find(static_cast<uint8_t>(text[i]));
    if (found == nodes_[node].next.end()) {
      break;
    }
    node = found->second;
    if (nodes_[node].index >= 0) {
      best = {static_cast<size_t>(nodes_[node].index), i + 1 - position};
    }
  }
  return best;
}

Status AddedTokens::read(const Json& entry, const Bpe::Vocabulary& vocabulary, int64_t& next_id) {
  AddedToken token;
  ACCORD_ASSIGN_OR_RETURN(token.content, string_field(entry, "content"));
  ACCORD_ASSIGN_OR_RETURN(const int64_t id, integer_field(entry, "id"));
  ACCORD_ASSIGN_OR_RETURN(token.single_word, bool_field(entry, "single_word", false));
  ACCORD_ASSIGN_OR_RETURN(token.lstrip, bool_field(entry, "lstrip", false));
  ACCORD_ASSIGN_OR_RETURN(token.rstrip, bool_field(entry, "rstrip", false));
  ACCORD_ASSIGN_OR_RETURN(token.special, bool_field(entry, "special", false));
  ACCORD_ASSIGN_OR_RETURN(token.normalized, bool_field(entry, "normalized", !token.special));
  if (token.content.empty()) {
    return data_error("a token's content is empty");
  }
  const auto found = vocabulary.find(token.content);
  const int64_t expected = found != vocabulary.end() ? found->second : next_id++;
  if (id != expected) {
    return data_error("'{}' has the id {}, but {} {}", token.content, id,
                      found != vocabulary.end() ? "the vocabulary gives it" : "the next free id is",
                      expected);
  }
  token.id = static_cast<int32_t>(id);
  tokens_.push_back(std::move(token));
  return absl::OkStatus();
}

StatusOr<AddedTokens> AddedTokens::parse(const Json& list, const Bpe::Vocabulary& vocabulary, bool nfc) {
  AddedTokens result;
  if (list.is_null()) {
    return result;
  }
  if (!list.is_array()) {
    return data_error("added_tokens: must be a list, not {}", kind_of(list));
  }
  auto next_id = static_cast<int64_t>(vocabulary.size());
  std::unordered_set<std::string> seen;
  for (const Json& entry : list) {
    ACCORD_RETURN_IF_ERROR(annotate_if_error(result.read(entry, vocabulary, next_id), "added_tokens"));
    const AddedToken& token = result.tokens_.back();
    if (!seen.insert(token.content).second) {
      return data_error("added_tokens: '{}' appears twice", token.content);
    }
    const size_t index = result.tokens_.size() - 1;
    if (!token.normalized) {
      result.raw_.add(token.content, index);
    } else if (nfc) {
      ACCORD_ASSIGN_OR_RETURN(const std::string content, text::nfc(token.content));
      result.normalized_.add(content, index);
    } else {
      result.normalized_.add(token.content, index);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(Regex word, Regex::compile(word_class()));
  result.word_.push_back(std::move(word));
  return result;
}

StatusOr<bool> AddedTokens::is_whole_word(std::string_view text, Match match, Regex::Scratch& scratch) const {
  std::vector<Match> words;
  if (match.begin > 0) {
    const size_t before = char_before(text, match.begin);
    ACCORD_RETURN_IF_ERROR(word_.front().find_all(text.substr(before, match.begin - before), scratch, words));
    if (!words.empty()) {
      return false;
    }
  }
  if (match.end < text.size()) {
    const size_t length = next_utf8(text, match.end).length;
    ACCORD_RETURN_IF_ERROR(word_.front().find_all(text.substr(match.end, length), scratch, words));
    if (!words.empty()) {
      return false;
    }
  }
  return true;
}

Status AddedTokens::split(std::string_view text, bool normalized, Regex::Scratch& scratch,
                          std::vector<Part>& parts) const {
  const TokenFinder& finder = normalized ? normalized_ : raw_;
  size_t plain = 0;  // where the plain text that is not yet a part starts
  for (size_t i = 0; !finder.empty() && i < text.size();) {
    const auto [index, length] = finder.longest_at(text, i);
    if (length == 0) {
      ++i;
      continue;
    }
    Match match{i, i + length};
    i = match.end;  // the reference looks on after the match, also when it turns it down or strips
    const AddedToken& token = tokens_[index];
    if (token.single_word) {
      ACCORD_ASSIGN_OR_RETURN(const bool whole, is_whole_word(text, match, scratch));
      if (!whole) {
        continue;
      }
    }
    if (token.lstrip) {
      match.begin = skip_space_back(text, match.begin, std::min(plain, match.begin));
    }
    if (token.rstrip) {
      match.end = skip_space(text, match.end);
    }
    if (plain < match.begin) {
      parts.push_back({-1, text.substr(plain, match.begin - plain)});
    }
    parts.push_back({token.id, text.substr(match.begin, match.end - match.begin)});
    plain = match.end;
  }
  if (plain < text.size()) {
    parts.push_back({-1, text.substr(plain)});
  }
  return absl::OkStatus();
}

}  // namespace accord::text
