#pragma once
// Chat messages -> the text that the model is given: a checkpoint's own Jinja template, one from a file, or
// one of a few that are built in.
#include <cstdint>
#include <memory>
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

struct ChatOptions {
  std::string name = "auto";  // auto | none | chatml | qwen3 | smollm2 | the path of a .jinja file
  std::string kwargs = "{}";  // a JSON object: variables of a Jinja template, as {"enable_thinking": false}
  std::string date;           // YYYY-MM-DD: what a template takes for today; empty: one that asks is refused
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
    kJinja,    // what a template says, as apply_chat_template renders it without tools
  };

  // none | chatml | qwen3 | smollm2. Another name is a recipe error.
  static StatusOr<ChatTemplate> named(std::string_view name);
  // `auto` is DIR/chat_template.jinja or chat_template of DIR/tokenizer_config.json, and `none` where there
  // is neither. Jinja templates see DIR's special tokens (bos_token, ...). Recipe errors: an unknown name, a
  // template that cannot be parsed (file, line and column are named), kwargs or a date for a template that
  // takes none.
  static StatusOr<ChatTemplate> resolve(const ChatOptions& options, const std::string& dir);

  explicit ChatTemplate(Kind kind) : kind_(kind) {}

  Kind kind() const { return kind_; }
  std::string_view name() const;

  // With add_generation_prompt the text ends where the assistant's turn starts. No messages, an unknown role,
  // a message that the template leaves out, or any messages under `none`, are data errors, and so is what a
  // Jinja template refuses.
  StatusOr<std::string> render(std::span<const Message> messages, bool add_generation_prompt = true) const;

  // A prompt given as plain text: under `none` itself, else one user message.
  StatusOr<std::string> render_text(std::string_view prompt, bool add_generation_prompt = true) const;

 private:
  struct Jinja;

  Kind kind_;
  std::shared_ptr<const Jinja> jinja_;  // templates are copied freely and never change
};

}  // namespace accord::text
