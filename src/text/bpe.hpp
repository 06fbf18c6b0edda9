#pragma once
// Byte-pair encoding: a piece starts as its bytes' tokens, and the adjacent pair of the lowest rank merges
// until no pair has a rank (Sennrich et al. 2016, arXiv:1508.07909).
#include <array>
#include <cstdint>
#include <string>
#include <string_view>
#include <unordered_map>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"

namespace accord::text {

class Bpe {
 public:
  using Vocabulary = std::unordered_map<std::string, int32_t>;

  // The `model` of tokenizer.json. Refuses dropout, affixes, byte_fallback, ids out of range or used twice,
  // and merges of unknown tokens.
  static StatusOr<Bpe> parse(const Json& model);

  // Appends the tokens of one piece. O(n log n) in its bytes.
  Status encode(std::string_view piece, std::vector<int32_t>& ids) const;

  const Vocabulary& vocabulary() const { return vocabulary_; }

 private:
  struct Merge {
    uint64_t pair = 0;  // left id << 32 | right id
    uint32_t rank = 0;
    int32_t id = -1;  // -1: an empty slot
  };
  struct Symbol;

  Status read_vocabulary(const Json& json);
  Status read_merges(const Json& json);
  Status read_options(const Json& json);
  Status start(std::string_view piece, std::vector<Symbol>& symbols) const;
  const Merge* find(int32_t left, int32_t right) const;  // nullptr: the pair does not merge
  bool insert(const Merge& merge);

  Vocabulary vocabulary_;
  std::unordered_map<std::string, int32_t> whole_pieces_;  // by bytes; only with ignore_merges
  std::array<int32_t, 256> byte_ids_{};                    // -1: the vocabulary lacks this byte
  std::vector<Merge> merges_;                              // open addressing, a power of two slots
  int32_t unknown_id_ = -1;
  bool fuse_unknown_ = false;
};

}  // namespace accord::text
