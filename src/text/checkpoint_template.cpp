#include "text/checkpoint_template.hpp"

#include <array>

#include "text/fields.hpp"
#include "text/tokenizer_files.hpp"

namespace accord::text {
namespace {

constexpr std::array<const char*, 7> kSpecialTokens = {"bos_token", "eos_token", "unk_token", "sep_token",
                                                       "pad_token", "cls_token", "mask_token"};

// An empty object where there is no such file.
StatusOr<Json> read_object(const std::string& path) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_optional(path));
  if (text.empty()) {
    return Json::object();
  }
  StatusOr<Json> json = parse_json(text);
  if (!json.ok()) {
    return annotate(json.status(), path);
  }
  if (!json->is_object()) {
    return data_error("{}: must hold an object, not {}", path, kind_of(*json));
  }
  return json;
}

StatusOr<std::string> template_of(const Json& config) {
  const auto found = config.find("chat_template");
  if (found == config.end() || found->is_null()) {
    return std::string();
  }
  if (found->is_string()) {
    return found->get<std::string>();
  }
  if (found->is_array()) {
    for (const Json& entry : *found) {
      ACCORD_ASSIGN_OR_RETURN(const std::string name, string_field(entry, "name"));
      if (name == "default") {
        return string_field(entry, "template");
      }
    }
  }
  return data_error("'chat_template' must be a string, or a list with a template named default");
}

// A token is its text, or an object with the text as `content`.
Status add_tokens(const Json& from, Json& tokens) {
  for (const char* name : kSpecialTokens) {
    const auto found = from.find(name);
    if (found == from.end() || found->is_null()) {
      continue;
    }
    const bool is_object = found->is_object();
    StatusOr<std::string> content = string_field(is_object ? *found : from, is_object ? "content" : name);
    if (!content.ok()) {
      return is_object ? annotate(content.status(), name) : content.status();
    }
    tokens[name] = *std::move(content);
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<JinjaSource> find_template(const std::string& dir) {
  JinjaSource source;
  source.origin = dir + "/chat_template.jinja";
  ACCORD_ASSIGN_OR_RETURN(source.text, read_optional(source.origin));
  if (!source.text.empty()) {
    return source;
  }
  const std::string config_file = dir + "/" + kTokenizerConfigFile;
  ACCORD_ASSIGN_OR_RETURN(const Json config, read_object(config_file));
  StatusOr<std::string> found = template_of(config);
  if (!found.ok()) {
    return annotate(found.status(), config_file);
  }
  source.text = *std::move(found);
  source.origin = config_file + ": chat_template";
  return source;
}

StatusOr<Json> special_tokens(const std::string& dir) {
  Json tokens = Json::object();
  for (const std::string& file : {dir + "/special_tokens_map.json", dir + "/" + kTokenizerConfigFile}) {
    ACCORD_ASSIGN_OR_RETURN(const Json json, read_object(file));
    if (const Status added = add_tokens(json, tokens); !added.ok()) {
      return annotate(added, file);
    }
  }
  return tokens;
}

}  // namespace accord::text
