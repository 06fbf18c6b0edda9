#include "text/tokenizer_files.hpp"

#include <charconv>
#include <filesystem>
#include <optional>
#include <system_error>

#include "base/files.hpp"
#include "text/fields.hpp"

namespace accord::text {
namespace {

// A token in tokenizer_config.json is a string or an object with `content`.
StatusOr<std::string> token_content(const Json& json) {
  return json.is_string() ? json.get<std::string>() : string_field(json, "content");
}

Status check_listed_token(const std::string& key, const Json& value, const Tokenizer& tokenizer) {
  int32_t id = -1;
  const auto [end, error] = std::from_chars(key.data(), key.data() + key.size(), id);
  if (error != std::errc() || end != key.data() + key.size()) {
    return data_error("added_tokens_decoder: '{}' is not a token id", key);
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string content, token_content(value));
  if (tokenizer.token_id(content) != std::optional<int32_t>(id)) {
    return data_error(
        "added_tokens_decoder lists '{}' with the id {}, but tokenizer.json does not have it so", content,
        id);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<std::string> read_optional(const std::string& path) {
  std::error_code error;
  if (!std::filesystem::exists(path, error) && !error) {
    return std::string();
  }
  return read_file(path, kMaxConfigBytes);
}

Status check_version(const Json& version) {
  if (!version.is_null() && version != "1.0") {
    return data_error("version: {} is not supported; only \"1.0\" is", version.dump());
  }
  return absl::OkStatus();
}

Status check_post_processor(const Json& json) {
  if (json.is_null()) {
    return absl::OkStatus();
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string type, string_field(json, "type"));
  if (type == "Sequence") {
    ACCORD_ASSIGN_OR_RETURN(const Json* steps, array_field(json, "processors"));
    for (const Json& step : *steps) {
      ACCORD_RETURN_IF_ERROR(check_post_processor(step));
    }
    return absl::OkStatus();
  }
  // ByteLevel only trims offsets; TemplateProcessing adds special tokens, which are not asked for.
  if (type != "ByteLevel" && type != "TemplateProcessing") {
    return data_error("post_processor: '{}' is not supported (ByteLevel and TemplateProcessing are)", type);
  }
  return absl::OkStatus();
}

Status check_decoder(const Json& json) {
  if (json.is_null()) {
    return data_error("decoder: is null; it must be ByteLevel");
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string type, string_field(json, "type"));
  if (type != "ByteLevel") {
    return data_error("decoder: '{}' is not supported; only ByteLevel is", type);
  }
  return absl::OkStatus();
}

StatusOr<bool> parse_normalizer(const Json& json) {
  if (json.is_null()) {
    return false;
  }
  ACCORD_ASSIGN_OR_RETURN(const std::string type, string_field(json, "type"));
  if (type == "NFC") {
    return true;
  }
  if (type != "Sequence") {
    return data_error("normalizer: '{}' is not supported (null, NFC and Sequence are)", type);
  }
  ACCORD_ASSIGN_OR_RETURN(const Json* steps, array_field(json, "normalizers"));
  bool nfc = false;
  for (const Json& step : *steps) {
    ACCORD_ASSIGN_OR_RETURN(const bool is_nfc, parse_normalizer(step));
    nfc = nfc || is_nfc;
  }
  return nfc;
}

StatusOr<std::vector<int32_t>> eos_of_config(std::string_view config_json, const Tokenizer& tokenizer) {
  ACCORD_ASSIGN_OR_RETURN(const Json config, parse_json(config_json));
  if (!config.is_object()) {
    return data_error("must hold an object, not {}", kind_of(config));
  }
  if (const auto listed = config.find("added_tokens_decoder");
      listed != config.end() && listed->is_object()) {
    for (const auto& [key, value] : listed->get_ref<const Json::object_t&>()) {
      ACCORD_RETURN_IF_ERROR(check_listed_token(key, value, tokenizer));
    }
  }
  std::vector<int32_t> ids;
  const auto eos = config.find("eos_token");
  if (eos == config.end() || eos->is_null()) {
    return ids;
  }
  const auto add = [&](const Json& token) -> Status {
    ACCORD_ASSIGN_OR_RETURN(const std::string content, token_content(token));
    const std::optional<int32_t> id = tokenizer.token_id(content);
    if (!id) {
      return data_error("eos_token is '{}', which tokenizer.json does not have", content);
    }
    ids.push_back(*id);
    return absl::OkStatus();
  };
  if (!eos->is_array()) {
    ACCORD_RETURN_IF_ERROR(add(*eos));
    return ids;
  }
  for (const Json& token : *eos) {
    ACCORD_RETURN_IF_ERROR(add(token));
  }
  return ids;
}

}  // namespace accord::text
