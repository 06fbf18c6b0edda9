#include "text/chat_template.hpp"

#include <algorithm>
#include <array>
#include <filesystem>
#include <utility>

#include "base/files.hpp"
#include "base/hash.hpp"
#include "base/log.hpp"
#include "text/fields.hpp"
#include "text/tokenizer_files.hpp"

namespace accord::text {
namespace {

using Kind = ChatTemplate::Kind;

constexpr std::array<std::pair<std::string_view, Kind>, 4> kNames = {
    {{"none", Kind::kNone}, {"chatml", Kind::kChatMl}, {"qwen3", Kind::kQwen3}, {"smollm2", Kind::kSmolLm2}}};
constexpr std::string_view kKnownNames = "none, chatml, qwen3 or smollm2";

constexpr std::string_view kSmolLm2System =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

// Published templates, by the digest of their canonical text (see canonical()).
struct Published {
  std::string_view digest;
  Kind kind;
};
constexpr auto kPublished = std::to_array<Published>({
    {"86e01df4f034fd0d0ea9e9e078ef5165", Kind::kQwen3},  // Qwen3, April 2025
    {"228c7de68bb48b40c01495a568f64984", Kind::kQwen3},  // Qwen3, with checks that contents are strings
    {"98f63cc3d421d28f99ab995e9629dacd", Kind::kSmolLm2},
    {"f0a6a8278439fdb056191e205a440263", Kind::kChatMl},
    {"a344e8c84fb0282dda206a9e46a4ac01", Kind::kChatMl},  // with a default for add_generation_prompt
    {"0325be58132dca355c1ac685ff84f38a", Kind::kChatMl},  // with the generation prompt inside the loop
});

// Templates travel in JSON, where newlines and quotes inside Jinja strings are sometimes escaped twice, and
// in files, which end with a newline: none of it changes what a template renders.
std::string canonical(std::string_view jinja) {
  std::string text;
  for (size_t i = 0; i < jinja.size(); ++i) {
    const char next = i + 1 < jinja.size() ? jinja[i + 1] : '\0';
    if (jinja[i] == '\\' && next == 'n') {
      text += '\n';
      ++i;
    } else if ((jinja[i] == '\\' && next == '"') || (jinja[i] == '\r' && next == '\n')) {
      continue;
    } else {
      text += jinja[i];
    }
  }
  const size_t last = text.find_last_not_of(" \n");
  text.resize(last == std::string::npos ? 0 : last + 1);
  return text;
}

// tokenizer_config.json holds one template, or a list of named ones of which "default" is meant.
StatusOr<std::string> template_of_config(std::string_view config_json) {
  ACCORD_ASSIGN_OR_RETURN(const Json config, parse_json(config_json));
  const auto found = config.is_object() ? config.find("chat_template") : config.end();
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

std::string turn(std::string_view role, std::string_view content) {
  return fmt::format("<|im_start|>{}\n{}<|im_end|>\n", role, content);
}

std::string_view strip_left(std::string_view text) {
  text.remove_prefix(std::min(text.find_first_not_of('\n'), text.size()));
  return text;
}
std::string_view strip_right(std::string_view text) {
  return text.substr(0, text.find_last_not_of('\n') + 1);
}

// An assistant's content as Qwen3's template takes it apart.
struct Thought {
  std::string_view reasoning;
  std::string_view answer;
};

Thought take_apart(std::string_view content) {
  constexpr std::string_view kOpen = "<think>";
  constexpr std::string_view kClose = "</think>";
  const size_t first_close = content.find(kClose);
  if (first_close == std::string_view::npos) {
    return {"", content};
  }
  std::string_view reasoning = strip_right(content.substr(0, first_close));
  if (const size_t open = reasoning.rfind(kOpen); open != std::string_view::npos) {
    reasoning.remove_prefix(open + kOpen.size());
  }
  return {strip_left(reasoning), strip_left(content.substr(content.rfind(kClose) + kClose.size()))};
}

bool is_tool_result(const Message& message) {
  return message.content.starts_with("<tool_response>") && message.content.ends_with("</tool_response>");
}

std::string render_qwen3(std::span<const Message> messages) {
  size_t last_query = messages.size() - 1;
  for (size_t i = messages.size(); i-- > 0;) {
    if (messages[i].role == "user" && !is_tool_result(messages[i])) {
      last_query = i;
      break;
    }
  }
  std::string text;
  for (size_t i = 0; i < messages.size(); ++i) {
    const Message& message = messages[i];
    if (message.role == "assistant") {
      const Thought thought = take_apart(message.content);
      const bool is_last = i + 1 == messages.size();
      if (i > last_query && (is_last || !thought.reasoning.empty())) {
        text += turn("assistant",
                     fmt::format("<think>\n{}\n</think>\n\n{}", strip_left(strip_right(thought.reasoning)),
                                 strip_left(thought.answer)));
      } else {
        text += turn("assistant", thought.answer);
      }
    } else if (message.role == "tool") {
      const bool opens = i == 0 || messages[i - 1].role != "tool";
      const bool closes = i + 1 == messages.size() || messages[i + 1].role != "tool";
      text += opens ? "<|im_start|>user" : "";
      text += fmt::format("\n<tool_response>\n{}\n</tool_response>", message.content);
      text += closes ? "<|im_end|>\n" : "";
    } else {
      text += turn(message.role, message.content);
    }
  }
  return text;
}

Status check_roles(std::span<const Message> messages, bool qwen3) {
  constexpr std::array<std::string_view, 5> kRoles = {"system", "user", "assistant", "tool", "developer"};
  for (const Message& message : messages) {
    const bool known = std::find(kRoles.begin(), kRoles.end(), message.role) != kRoles.end();
    if (!known || (qwen3 && message.role == "developer")) {
      return data_error("the role '{}' is not one of system, user, assistant{}", message.role,
                        qwen3 ? " and tool" : ", tool and developer");
    }
  }
  return absl::OkStatus();
}

}  // namespace

StatusOr<ChatTemplate> ChatTemplate::named(std::string_view name) {
  for (const auto& [known, kind] : kNames) {
    if (name == known) {
      return ChatTemplate(kind);
    }
  }
  return recipe_error("the chat template '{}' is not known; use auto, {}", name, kKnownNames);
}

StatusOr<ChatTemplate> ChatTemplate::recognize(std::string_view jinja, const std::string& origin) {
  const std::string digest = digest_hex(canonical(jinja));
  for (const Published& published : kPublished) {
    if (digest == published.digest) {
      return ChatTemplate(published.kind);
    }
  }
  return recipe_error(
      "{}: this chat template is not one that `auto` recognises (digest {}); set data.chat_template (or "
      "--chat-template) to {}",
      origin, digest, kKnownNames);
}

StatusOr<ChatTemplate> ChatTemplate::resolve(std::string_view name, const std::string& dir) {
  if (name != "auto") {
    return named(name);
  }
  const std::string jinja_file = dir + "/chat_template.jinja";
  ACCORD_ASSIGN_OR_RETURN(const std::string jinja, read_optional(jinja_file));
  if (!jinja.empty()) {
    return recognize(jinja, jinja_file);
  }
  const std::string config_file = dir + "/" + kTokenizerConfigFile;
  ACCORD_ASSIGN_OR_RETURN(const std::string config, read_optional(config_file));
  std::string from_config;
  if (!config.empty()) {
    StatusOr<std::string> found = template_of_config(config);
    if (!found.ok()) {
      return annotate(found.status(), config_file);
    }
    from_config = *std::move(found);
  }
  if (from_config.empty()) {
    log::info("{}: has no chat template; prompts are plain text (data.chat_template: none)", dir);
    return ChatTemplate(Kind::kNone);
  }
  return recognize(from_config, config_file);
}

std::string_view ChatTemplate::name() const {
  return std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.second == kind_; })
      ->first;
}

StatusOr<std::string> ChatTemplate::render(std::span<const Message> messages,
                                           bool add_generation_prompt) const {
  if (kind_ == Kind::kNone) {
    return data_error(
        "chat messages need a chat template; set data.chat_template to chatml, qwen3 or smollm2");
  }
  if (messages.empty()) {
    return data_error("the list of messages is empty");
  }
  ACCORD_RETURN_IF_ERROR(check_roles(messages, kind_ == Kind::kQwen3));
  std::string text;
  if (kind_ == Kind::kQwen3) {
    text = render_qwen3(messages);
  } else {
    if (kind_ == Kind::kSmolLm2 && messages.front().role != "system") {
      text += turn("system", kSmolLm2System);
    }
    for (const Message& message : messages) {
      text += turn(message.role, message.content);
    }
  }
  if (add_generation_prompt) {
    text += "<|im_start|>assistant\n";
  }
  return text;
}

StatusOr<std::string> ChatTemplate::render_text(std::string_view prompt, bool add_generation_prompt) const {
  if (kind_ == Kind::kNone) {
    return std::string(prompt);
  }
  const std::array<Message, 1> message = {{{"user", std::string(prompt)}}};
  return render(message, add_generation_prompt);
}

}  // namespace accord::text
