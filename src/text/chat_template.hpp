#pragma once
// Chat messages -> the text that the model is given. The templates are built in; a model's own template
// (Jinja text) is recognised by its exact published form, never run.
#include <cstdint>
#include <span>
#include <string>
#include <string_view>

#include "base/status.hpp"

namespace accord::text {

struct Message {
  std::string role;  // system, user, assistant, tool, developer
  std::string content;
  bool operator==(const Message&) const = default;
};

// Contents are rendered as they are: a special token that is spelled in a message becomes that token when the
// text is encoded, as with Hugging Face's apply_chat_template. Data from untrusted authors should be cleaned
// of them first.
class ChatTemplate {
 public:
  enum class Kind : uint8_t {
    kNone,     // text only: prompts go to the model as they are
    kChatMl,   // <|im_start|>role\ncontent<|im_end|>\n
    kQwen3,    // the same; thinking of earlier assistant turns is dropped, tool results are wrapped
    kSmolLm2,  // the same; a default system message where the first message is not one
  };

  // none | chatml | qwen3 | smollm2. Another name is a recipe error.
  static StatusOr<ChatTemplate> named(std::string_view name);
  // The same, and `auto`: what DIR/chat_template.jinja or chat_template of DIR/tokenizer_config.json is;
  // `none` where there is neither. A template that is not known is a recipe error.
  static StatusOr<ChatTemplate> resolve(std::string_view name, const std::string& dir);
  static StatusOr<ChatTemplate> recognize(std::string_view jinja, const std::string& origin);

  explicit ChatTemplate(Kind kind) : kind_(kind) {}

  Kind kind() const { return kind_; }
  std::string_view name() const;

  // With add_generation_prompt the text ends where the assistant's turn starts. No messages, an unknown role,
  // or any messages under `none`, are data errors.
  StatusOr<std::string> render(std::span<const Message> messages, bool add_generation_prompt = true) const;

  // A prompt given as plain text: under `none` itself, else one user message.
  StatusOr<std::string> render_text(std::string_view prompt, bool add_generation_prompt = true) const;

 private:
  Kind kind_;
};

}  // namespace accord::text
