#include "text/tokenizer.hpp"

#include <unordered_map>
#include <utility>

#include "base/files.hpp"
#include "base/log.hpp"
#include "text/added_tokens.hpp"
#include "text/bpe.hpp"
#include "text/byte_level.hpp"
#include "text/fields.hpp"
#include "text/nfc.hpp"
#include "text/pretokenizer.hpp"
#include "text/tokenizer_files.hpp"
#include "text/utf8.hpp"

namespace accord::text {
namespace {

constexpr size_t kMaxCachedPiece = 64;  // bytes; longer pieces seldom come twice

struct Spelling {
  std::string bytes;
  bool exists = false;
  bool special = false;
};

}  // namespace

struct Tokenizer::Impl {
  bool nfc = false;
  PreTokenizer pre_tokenizer;
  Bpe bpe;
  AddedTokens added;
  std::unordered_map<std::string, int32_t> added_ids;
  std::vector<Spelling> spellings;  // by id
  std::vector<int32_t> eos;

  Status build_spellings();
  Status encode_plain(std::string_view text, Regex::Scratch& scratch, std::vector<int32_t>& ids) const;
};

Status Tokenizer::Impl::build_spellings() {
  const auto place = [&](int32_t id) -> Spelling& {
    if (static_cast<size_t>(id) >= spellings.size()) {
      spellings.resize(static_cast<size_t>(id) + 1);
    }
    Spelling& spelling = spellings[static_cast<size_t>(id)];
    spelling.exists = true;
    return spelling;
  };
  for (const auto& [token, id] : bpe.vocabulary()) {
    place(id).bytes = spelled_bytes(token).value_or(token);
  }
  for (const AddedToken& token : added.tokens()) {
    Spelling& spelling = place(token.id);
    const bool in_vocabulary = bpe.vocabulary().contains(token.content);
    if (!in_vocabulary && spelling.bytes.size() > 0) {
      return data_error("added_tokens: '{}' has the id {}, which the vocabulary gives to another token",
                        token.content, token.id);
    }
    spelling.bytes = spelled_bytes(token.content).value_or(token.content);
    spelling.special = token.special;
    added_ids.emplace(token.content, token.id);
  }
  return absl::OkStatus();
}

// One part without added tokens: cut it and encode each piece. Words that repeat within the text are
// encoded once.
Status Tokenizer::Impl::encode_plain(std::string_view text, Regex::Scratch& scratch,
                                     std::vector<int32_t>& ids) const {
  Pieces pieces;
  ACCORD_RETURN_IF_ERROR(pre_tokenizer.split(text, scratch, pieces));
  std::unordered_map<std::string_view, std::pair<size_t, size_t>> cache;  // piece -> range of ids
  for (const std::string_view piece : pieces.views) {
    const size_t begin = ids.size();
    if (piece.size() > kMaxCachedPiece) {
      ACCORD_RETURN_IF_ERROR(bpe.encode(piece, ids));
      continue;
    }
    if (const auto found = cache.find(piece); found != cache.end()) {
      const auto [first, count] = found->second;
      for (size_t i = first; i < first + count; ++i) {
        ids.push_back(ids[i]);
      }
      continue;
    }
    ACCORD_RETURN_IF_ERROR(bpe.encode(piece, ids));
    cache.emplace(piece, std::pair{begin, ids.size() - begin});
  }
  return absl::OkStatus();
}

Tokenizer::Tokenizer(std::unique_ptr<Impl> impl) : impl_(std::move(impl)) {}
Tokenizer::~Tokenizer() = default;

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::load(const std::string& dir) {
  ACCORD_ASSIGN_OR_RETURN(const std::string tokenizer_json,
                          read_file(dir + "/" + kTokenizerFile, kMaxTokenizerBytes));
  ACCORD_ASSIGN_OR_RETURN(const std::string config_json, read_optional(dir + "/" + kTokenizerConfigFile));
  return parse(tokenizer_json, config_json, dir);
}

StatusOr<std::unique_ptr<Tokenizer>> Tokenizer::parse(std::string_view tokenizer_json,
                                                      std::string_view config_json,
                                                      const std::string& origin) {
  const std::string file = origin + "/" + kTokenizerFile;
  const auto in_file = [&](const Status& status) { return annotate(status, file); };
  const StatusOr<Json> parsed = parse_json(tokenizer_json);
  if (!parsed.ok()) {
    return in_file(parsed.status());
  }
  const Json& json = *parsed;
  if (!json.is_object()) {
    return data_error("{}: must hold an object, not {}", file, kind_of(json));
  }
  const Json null;
  const auto member = [&](const char* key) -> const Json& {
    const auto found = json.find(key);
    return found == json.end() ? null : *found;
  };
  for (const char* key : {"truncation", "padding"}) {
    if (!member(key).is_null()) {
      log::warn("{}: '{}' is set there; it is not applied", file, key);
    }
  }
  ACCORD_RETURN_IF_ERROR(annotate_if_error(check_version(member("version")), file));
  ACCORD_RETURN_IF_ERROR(annotate_if_error(check_post_processor(member("post_processor")), file));
  ACCORD_RETURN_IF_ERROR(annotate_if_error(check_decoder(member("decoder")), file));

  auto impl = std::make_unique<Impl>();
  const StatusOr<bool> nfc = parse_normalizer(member("normalizer"));
  if (!nfc.ok()) {
    return in_file(nfc.status());
  }
  impl->nfc = *nfc;
  StatusOr<PreTokenizer> pre_tokenizer = PreTokenizer::parse(member("pre_tokenizer"));
  if (!pre_tokenizer.ok()) {
    return in_file(pre_tokenizer.status());
  }
  impl->pre_tokenizer = *std::move(pre_tokenizer);
  StatusOr<Bpe> bpe = Bpe::parse(member("model"));
  if (!bpe.ok()) {
    return in_file(bpe.status());
  }
  impl->bpe = *std::move(bpe);
  StatusOr<AddedTokens> added = AddedTokens::parse(member("added_tokens"), impl->bpe.vocabulary(), impl->nfc);
  if (!added.ok()) {
    return in_file(added.status());
  }
  impl->added = *std::move(added);
  ACCORD_RETURN_IF_ERROR(annotate_if_error(impl->build_spellings(), file));

  auto tokenizer = std::unique_ptr<Tokenizer>(new Tokenizer(std::move(impl)));
  if (!config_json.empty()) {
    const std::string config_file = origin + "/" + kTokenizerConfigFile;
    StatusOr<std::vector<int32_t>> eos = eos_of_config(config_json, *tokenizer);
    if (!eos.ok()) {
      return annotate(eos.status(), config_file);
    }
    tokenizer->impl_->eos = *std::move(eos);
  }
  return tokenizer;
}

StatusOr<std::vector<int32_t>> Tokenizer::encode(std::string_view text) const {
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    return data_error("the text is not valid UTF-8 (byte 0x{:02x} at offset {})",
                      static_cast<uint8_t>(text[bad]), bad);
  }
  Regex::Scratch scratch;
  std::vector<int32_t> ids;
  std::vector<AddedTokens::Part> raw_parts;
  ACCORD_RETURN_IF_ERROR(impl_->added.split(text, /*normalized=*/false, scratch, raw_parts));
  for (const AddedTokens::Part& raw : raw_parts) {
    if (raw.id >= 0) {
      ids.push_back(raw.id);
      continue;
    }
    std::string normalized;
    std::string_view plain = raw.text;
    if (impl_->nfc) {
      ACCORD_ASSIGN_OR_RETURN(normalized, nfc(raw.text));
      plain = normalized;
    }
    std::vector<AddedTokens::Part> parts;
    ACCORD_RETURN_IF_ERROR(impl_->added.split(plain, /*normalized=*/true, scratch, parts));
    for (const AddedTokens::Part& part : parts) {
      if (part.id >= 0) {
        ids.push_back(part.id);
      } else {
        ACCORD_RETURN_IF_ERROR(impl_->encode_plain(part.text, scratch, ids));
      }
    }
  }
  return ids;
}

std::string Tokenizer::decode(std::span<const int32_t> ids, bool skip_special) const {
  std::string bytes;
  for (const int32_t id : ids) {
    if (!skip_special || !is_special(id)) {
      bytes += bytes_of(id);
    }
  }
  std::string text;
  append_lossy(text, bytes);
  return text;
}

int64_t Tokenizer::vocab_size() const { return static_cast<int64_t>(impl_->spellings.size()); }

std::optional<int32_t> Tokenizer::token_id(std::string_view token) const {
  const std::string key(token);
  if (const auto found = impl_->added_ids.find(key); found != impl_->added_ids.end()) {
    return found->second;
  }
  if (const auto found = impl_->bpe.vocabulary().find(key); found != impl_->bpe.vocabulary().end()) {
    return found->second;
  }
  return std::nullopt;
}

bool Tokenizer::has_id(int32_t id) const {
  return id >= 0 && id < vocab_size() && impl_->spellings[static_cast<size_t>(id)].exists;
}

bool Tokenizer::is_special(int32_t id) const {
  return has_id(id) && impl_->spellings[static_cast<size_t>(id)].special;
}

std::string_view Tokenizer::bytes_of(int32_t id) const {
  return has_id(id) ? std::string_view(impl_->spellings[static_cast<size_t>(id)].bytes) : std::string_view();
}

const std::vector<int32_t>& Tokenizer::eos_token_ids() const { return impl_->eos; }

StreamDecoder::StreamDecoder(const Tokenizer& tokenizer, bool skip_special)
    : tokenizer_(&tokenizer), skip_special_(skip_special) {}

std::string StreamDecoder::push(int32_t id) {
  if (!skip_special_ || !tokenizer_->is_special(id)) {
    pending_ += tokenizer_->bytes_of(id);
  }
  const size_t complete = pending_.size() - truncated_suffix(pending_);
  std::string text;
  append_lossy(text, std::string_view(pending_).substr(0, complete));
  pending_.erase(0, complete);
  return text;
}

std::string StreamDecoder::finish() {
  std::string text;
  append_lossy(text, pending_);
  pending_.clear();
  return text;
}

}  // namespace accord::text
