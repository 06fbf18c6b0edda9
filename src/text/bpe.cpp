#include "text/bpe.hpp"

#include <bit>
#include <limits>
#include <queue>
#include <utility>

#include "text/byte_level.hpp"
#include "text/fields.hpp"
#include "text/utf8.hpp"

namespace accord::text {
namespace {

constexpr int32_t kMaxId = 1 << 24;
constexpr size_t kMaxPiece = size_t{1} << 30;

uint64_t pair_of(int32_t left, int32_t right) {
  return static_cast<uint64_t>(static_cast<uint32_t>(left)) << 32 | static_cast<uint32_t>(right);
}

uint64_t mix(uint64_t x) {
  x *= 0x9E3779B97F4A7C15ull;
  return x ^ (x >> 32);
}

// A merge that was possible when it was queued.
struct Candidate {
  uint32_t rank;
  int32_t position;
  int32_t id;                                     // what it makes
  bool operator<(const Candidate& other) const {  // for a max-heap: the lowest rank, then the leftmost, first
    return rank != other.rank ? rank > other.rank : position > other.position;
  }
};

}  // namespace

struct Bpe::Symbol {
  int32_t id;  // -1 once it merged into its left neighbour
  int32_t previous;
  int32_t next;
};

StatusOr<Bpe> Bpe::parse(const Json& model) {
  Bpe bpe;
  if (!model.is_object()) {
    return data_error("model: must be an object, not {}", kind_of(model));
  }
  if (const auto type = model.find("type"); type != model.end() && *type != "BPE") {
    return data_error("model: the type {} is not supported; only BPE is", type->dump());
  }
  ACCORD_RETURN_IF_ERROR(annotate_if_error(bpe.read_vocabulary(model), "model"));
  ACCORD_RETURN_IF_ERROR(annotate_if_error(bpe.read_options(model), "model"));
  ACCORD_RETURN_IF_ERROR(annotate_if_error(bpe.read_merges(model), "model"));
  return bpe;
}

Status Bpe::read_vocabulary(const Json& json) {
  const auto vocab = json.find("vocab");
  if (vocab == json.end() || !vocab->is_object()) {
    return data_error("'vocab' must be an object of token to id");
  }
  std::unordered_map<int32_t, const std::string*> owners;
  vocabulary_.reserve(vocab->size());
  for (const auto& [token, value] : vocab->get_ref<const Json::object_t&>()) {
    if (!value.is_number_unsigned() || value.get<uint64_t>() >= static_cast<uint64_t>(kMaxId)) {
      return data_error("vocab: the id of '{}' must be an integer from 0 to {}, not {}", token, kMaxId - 1,
                        value.dump());
    }
    const auto id = value.get<int32_t>();
    const auto [owner, is_new] = owners.emplace(id, &token);
    if (!is_new) {
      return data_error("vocab: '{}' and '{}' have the same id {}", *owner->second, token, id);
    }
    vocabulary_.emplace(token, id);
  }
  for (int byte = 0; byte < 256; ++byte) {
    std::string token;
    append_utf8(token, char_of_byte(static_cast<uint8_t>(byte)));
    const auto found = vocabulary_.find(token);
    byte_ids_[static_cast<size_t>(byte)] = found == vocabulary_.end() ? -1 : found->second;
  }
  return absl::OkStatus();
}

Status Bpe::read_options(const Json& json) {
  const auto is_set = [&](const char* key) {
    const auto found = json.find(key);
    return found != json.end() && !found->is_null() && *found != "" && *found != 0.0;
  };
  for (const char* key : {"dropout", "continuing_subword_prefix", "end_of_word_suffix"}) {
    if (is_set(key)) {
      return data_error("'{}' is not supported; it must be null", key);
    }
  }
  ACCORD_ASSIGN_OR_RETURN(const bool byte_fallback, bool_field(json, "byte_fallback", false));
  if (byte_fallback) {
    return data_error("'byte_fallback' is not supported; only byte-level BPE tokenizers are");
  }
  ACCORD_ASSIGN_OR_RETURN(fuse_unknown_, bool_field(json, "fuse_unk", false));
  if (is_set("unk_token")) {
    ACCORD_ASSIGN_OR_RETURN(const std::string token, string_field(json, "unk_token"));
    const auto found = vocabulary_.find(token);
    if (found == vocabulary_.end()) {
      return data_error("'unk_token' is '{}', which is not in the vocabulary", token);
    }
    unknown_id_ = found->second;
  }
  ACCORD_ASSIGN_OR_RETURN(const bool ignore_merges, bool_field(json, "ignore_merges", false));
  if (ignore_merges) {
    for (const auto& [token, id] : vocabulary_) {
      if (auto bytes = spelled_bytes(token)) {
        whole_pieces_.emplace(*std::move(bytes), id);
      }
    }
  }
  return absl::OkStatus();
}

Status Bpe::read_merges(const Json& json) {
  ACCORD_ASSIGN_OR_RETURN(const Json* merges, array_field(json, "merges"));
  if (merges->size() >= static_cast<size_t>(kMaxId)) {
    return data_error("merges: more than {} entries", kMaxId);
  }
  merges_.resize(std::bit_ceil(2 * merges->size() + 2));
  uint32_t rank = 0;
  for (const Json& entry : *merges) {
    std::string left;
    std::string right;
    if (entry.is_string()) {
      const auto& text = entry.get_ref<const std::string&>();
      const size_t space = text.find(' ');
      if (space == std::string::npos || text.find(' ', space + 1) != std::string::npos) {
        return data_error("merges: entry {} must be two tokens with one space between, not '{}'", rank, text);
      }
      left = text.substr(0, space);
      right = text.substr(space + 1);
    } else if (entry.is_array() && entry.size() == 2 && entry[0].is_string() && entry[1].is_string()) {
      left = entry[0].get<std::string>();
      right = entry[1].get<std::string>();
    } else {
      return data_error("merges: entry {} must be a string or a pair of strings", rank);
    }
    int32_t ids[3];
    const std::string* tokens[3] = {&left, &right, nullptr};
    const std::string joined = left + right;
    tokens[2] = &joined;
    for (int i = 0; i < 3; ++i) {
      const auto found = vocabulary_.find(*tokens[i]);
      if (found == vocabulary_.end()) {
        return data_error("merges: entry {} ('{}' + '{}') needs '{}', which is not in the vocabulary", rank,
                          left, right, *tokens[i]);
      }
      ids[i] = found->second;
    }
    if (!insert({pair_of(ids[0], ids[1]), rank, ids[2]})) {
      return data_error("merges: entry {} ('{}' + '{}') appears twice", rank, left, right);
    }
    ++rank;
  }
  return absl::OkStatus();
}

bool Bpe::insert(const Merge& merge) {
  const size_t mask = merges_.size() - 1;
  for (size_t slot = mix(merge.pair) & mask;; slot = (slot + 1) & mask) {
    if (merges_[slot].id < 0) {
      merges_[slot] = merge;
      return true;
    }
    if (merges_[slot].pair == merge.pair) {
      return false;
    }
  }
}

const Bpe::Merge* Bpe::find(int32_t left, int32_t right) const {
  const uint64_t pair = pair_of(left, right);
  const size_t mask = merges_.size() - 1;
  for (size_t slot = mix(pair) & mask; merges_[slot].id >= 0; slot = (slot + 1) & mask) {
    if (merges_[slot].pair == pair) {
      return &merges_[slot];
    }
  }
  return nullptr;
}

// Bytes without a token become one unknown token each, or one per run with fuse_unk.
Status Bpe::start(std::string_view piece, std::vector<Symbol>& symbols) const {
  symbols.reserve(piece.size());
  bool after_unknown = false;
  for (const char c : piece) {
    const int32_t id = byte_ids_[static_cast<uint8_t>(c)];
    if (id < 0 && unknown_id_ < 0) {
      return data_error(
          "the vocabulary has no token for the byte 0x{:02x}, and the tokenizer has no unk_token",
          static_cast<uint8_t>(c));
    }
    if (id >= 0 || !fuse_unknown_ || !after_unknown) {
      const auto position = static_cast<int32_t>(symbols.size());
      symbols.push_back({id >= 0 ? id : unknown_id_, position - 1, position + 1});
    }
    after_unknown = id < 0;
  }
  if (!symbols.empty()) {
    symbols.back().next = -1;
  }
  return absl::OkStatus();
}

Status Bpe::encode(std::string_view piece, std::vector<int32_t>& ids) const {
  if (piece.size() > kMaxPiece) {
    return data_error("one piece of the text has {} bytes; the limit is {}", piece.size(), kMaxPiece);
  }
  if (!whole_pieces_.empty()) {
    if (const auto found = whole_pieces_.find(std::string(piece)); found != whole_pieces_.end()) {
      ids.push_back(found->second);
      return absl::OkStatus();
    }
  }
  std::vector<Symbol> symbols;
  ACCORD_RETURN_IF_ERROR(start(piece, symbols));
  std::priority_queue<Candidate> queue;
  const auto consider = [&](int32_t left, int32_t right) {
    if (left >= 0 && right >= 0) {
      if (const Merge* merge =
              find(symbols[static_cast<size_t>(left)].id, symbols[static_cast<size_t>(right)].id)) {
        queue.push({merge->rank, left, merge->id});
      }
    }
  };
  for (int32_t i = 0; i + 1 < static_cast<int32_t>(symbols.size()); ++i) {
    consider(i, i + 1);
  }
  while (!queue.empty()) {
    const Candidate top = queue.top();
    queue.pop();
    Symbol& left = symbols[static_cast<size_t>(top.position)];
    if (left.id < 0 || left.next < 0) {
      continue;
    }
    Symbol& right = symbols[static_cast<size_t>(left.next)];
    // A queued merge is stale when its symbols have changed. Like the reference, this compares what the
    // pair makes now, not its rank.
    const Merge* merge = find(left.id, right.id);
    if (merge == nullptr || merge->id != top.id) {
      continue;
    }
    left.id = top.id;
    right.id = -1;
    left.next = right.next;
    if (right.next >= 0) {
      symbols[static_cast<size_t>(right.next)].previous = top.position;
    }
    consider(left.previous, top.position);
    consider(top.position, left.next);
  }
  for (const Symbol& symbol : symbols) {
    if (symbol.id >= 0) {
      ids.push_back(symbol.id);
    }
  }
  return absl::OkStatus();
}

}  // namespace accord::text
