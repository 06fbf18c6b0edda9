#include "text/chat_template.hpp"

#include <algorithm>
#include <array>
#include <ctime>
#include <optional>
#include <utility>
#include <vector>

#include "base/files.hpp"
#include "base/log.hpp"
#include "base/strict_json.hpp"
#include "text/checkpoint_template.hpp"
#include "text/jinja/template.hpp"

namespace accord::text {
namespace {

using Kind = ChatTemplate::Kind;

constexpr std::array<std::pair<std::string_view, Kind>, 5> kNames = {{{"none", Kind::kNone},
                                                                      {"chatml", Kind::kChatMl},
                                                                      {"qwen3", Kind::kQwen3},
                                                                      {"smollm2", Kind::kSmolLm2},
                                                                      {"jinja", Kind::kJinja}}};
constexpr std::string_view kKnownNames = "none, chatml, qwen3, smollm2 or the path of a .jinja file";
constexpr int64_t kMaxTemplateBytes = int64_t{1} << 20;

constexpr std::string_view kSmolLm2System =
    "You are a helpful AI assistant named SmolLM, trained by Hugging Face";

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

// YYYY-MM-DD at midnight.
StatusOr<std::tm> parse_date(const std::string& text) {
  std::tm date{};
  const char* end = strptime(text.c_str(), "%Y-%m-%d", &date);
  char again[16] = "";
  if (end == nullptr || *end != '\0' || std::strftime(again, sizeof again, "%Y-%m-%d", &date) == 0 ||
      text != again || timegm(&date) == -1 || std::strftime(again, sizeof again, "%Y-%m-%d", &date) == 0 ||
      text != again) {  // timegm moves the 31st of a shorter month
    return recipe_error("the date '{}' is not one (YYYY-MM-DD)", text);
  }
  return date;
}

StatusOr<Json> parse_kwargs(const std::string& text) {
  ACCORD_ASSIGN_OR_RETURN(Json kwargs, parse_json(text));
  if (!kwargs.is_object()) {
    return recipe_error("the template's variables must be an object, not {}", kind_of(kwargs));
  }
  for (const char* reserved : {"messages", "tools", "documents", "add_generation_prompt"}) {
    if (kwargs.contains(reserved)) {
      return recipe_error("the template's variable '{}' cannot be set", reserved);
    }
  }
  return kwargs;
}

}  // namespace

struct ChatTemplate::Jinja {
  std::unique_ptr<jinja::Template> parsed;
  Json variables;
  std::optional<std::tm> date;

  StatusOr<std::string> render(std::span<const Message> messages, bool add_generation_prompt) const {
    Json all = variables;
    Json& list = all["messages"] = Json::array();
    for (const Message& message : messages) {
      list.push_back({{"role", message.role}, {"content", message.content}});
    }
    all["add_generation_prompt"] = add_generation_prompt;
    return parsed->render(all, date);
  }

  // A role that a template does not know may vanish without a word.
  Status check_kept(std::span<const Message> messages, bool add_generation_prompt,
                    const std::string& text) const {
    for (size_t i = 0; i < messages.size(); ++i) {
      if (messages[i].role != "tool" && messages[i].role != "developer") {
        continue;
      }
      std::vector<Message> others(messages.begin(), messages.end());
      others.erase(others.begin() + static_cast<std::ptrdiff_t>(i));
      const StatusOr<std::string> without = render(others, add_generation_prompt);
      if (without.ok() && *without == text) {
        return data_error("the chat template leaves out messages of the role '{}'", messages[i].role);
      }
    }
    return absl::OkStatus();
  }
};

StatusOr<ChatTemplate> ChatTemplate::named(std::string_view name) {
  for (const auto& [known, kind] : kNames) {
    if (name == known && kind != Kind::kJinja) {
      return ChatTemplate(kind);
    }
  }
  return recipe_error("the chat template '{}' is not known; use auto, {}", name, kKnownNames);
}

StatusOr<ChatTemplate> ChatTemplate::resolve(const ChatOptions& options, const std::string& dir) {
  ACCORD_ASSIGN_OR_RETURN(const Json kwargs, parse_kwargs(options.kwargs));
  JinjaSource source;
  if (options.name == "auto") {
    ACCORD_ASSIGN_OR_RETURN(source, find_template(dir));
    if (source.text.empty()) {
      log::info("{}: has no chat template; prompts are plain text (data.chat_template: none)", dir);
    }
  } else if (options.name.ends_with(".jinja")) {
    source.origin = options.name;
    ACCORD_ASSIGN_OR_RETURN(source.text, read_file(options.name, kMaxTemplateBytes));
    if (source.text.empty()) {
      return recipe_error("{}: is empty", options.name);
    }
  }
  if (source.text.empty()) {
    if (!kwargs.empty() || !options.date.empty()) {
      return recipe_error(
          "{} and so takes no variables and no date (use auto or a .jinja file)",
          options.name == "auto" ? "the checkpoint has no template" : "'" + options.name + "' is built in");
    }
    return options.name == "auto" ? ChatTemplate(Kind::kNone) : named(options.name);
  }
  auto made = std::make_shared<Jinja>();
  ACCORD_ASSIGN_OR_RETURN(made->parsed, jinja::Template::parse(source.text, source.origin));
  ACCORD_ASSIGN_OR_RETURN(made->variables, special_tokens(dir));
  made->variables["tools"] = nullptr;
  made->variables["documents"] = nullptr;
  for (const auto& [name, value] : kwargs.items()) {
    made->variables[name] = value;
  }
  if (!options.date.empty()) {
    ACCORD_ASSIGN_OR_RETURN(made->date, parse_date(options.date));
  }
  ChatTemplate chat(Kind::kJinja);
  chat.jinja_ = std::move(made);
  return chat;
}

std::string_view ChatTemplate::name() const {
  return std::find_if(kNames.begin(), kNames.end(), [&](const auto& entry) { return entry.second == kind_; })
      ->first;
}

StatusOr<std::string> ChatTemplate::render(std::span<const Message> messages,
                                           bool add_generation_prompt) const {
  if (kind_ == Kind::kNone) {
    return data_error(
        "chat messages need a chat template; set data.chat_template to chatml, qwen3, smollm2 or a .jinja "
        "file");
  }
  if (messages.empty()) {
    return data_error("the list of messages is empty");
  }
  ACCORD_RETURN_IF_ERROR(check_roles(messages, kind_ == Kind::kQwen3));
  std::string text;
  if (kind_ == Kind::kJinja) {
    ACCORD_ASSIGN_OR_RETURN(text, jinja_->render(messages, add_generation_prompt));
    ACCORD_RETURN_IF_ERROR(jinja_->check_kept(messages, add_generation_prompt, text));
    return text;
  }
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
