#include "text/chat_template.hpp"

#include <filesystem>

#include "base/files.hpp"
#include "support/catch.hpp"
#include "support/temp_dir.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

using Kind = ChatTemplate::Kind;

const std::string kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

// Of this process alone: cases run side by side.
const std::string& directory() {
  static const TempDir dir;
  static const std::string path = dir.path.string();
  return path;
}

void write(const std::string& name, const std::string& text) {
  REQUIRE(make_dirs(directory()).ok());
  REQUIRE(write_file_atomic(directory() + "/" + name, text).ok());
}

StatusOr<ChatTemplate> resolve(const std::string& name, const std::string& kwargs = "{}",
                               const std::string& date = "") {
  return ChatTemplate::resolve({name, kwargs, date}, directory());
}

std::string error_of(const StatusOr<ChatTemplate>& chat) {
  return chat.ok() ? "no error" : testing::error_of(chat.status());
}

}  // namespace

TEST_CASE("A checkpoint's own template is run") {
  const auto tiny = ChatTemplate::resolve({}, testing::data_path("tiny_tokenizer"));
  REQUIRE(tiny.ok());
  CHECK(tiny->kind() == Kind::kJinja);
  CHECK(tiny->render_text("hi").value() == ChatTemplate(Kind::kSmolLm2).render_text("hi").value());
  const auto quickstart =
      ChatTemplate::resolve({}, std::string(ACCORD_SOURCE_DIR) + "/configs/quickstart/tokenizer");
  REQUIRE(quickstart.ok());
  CHECK(quickstart->render_text("hi").value() == ChatTemplate(Kind::kChatMl).render_text("hi").value());
  CHECK(resolve("qwen3")->kind() == Kind::kQwen3);
}

TEST_CASE("Built-in templates render what their Jinja text renders") {
  const std::vector<Message> chat = {
      {"system", "s"}, {"user", "a"}, {"assistant", "<think>\nx\n</think>\n\ny"},
      {"user", "b"},   {"tool", "c"}, {"tool", "d"}};
  const auto jinja =
      ChatTemplate::resolve({testing::data_path("templates/qwen3.jinja"), "{}", ""}, directory());
  REQUIRE(jinja.ok());
  const ChatTemplate built_in(Kind::kQwen3);
  for (size_t size = 1; size <= chat.size(); ++size) {
    const auto part = std::span(chat).first(size);
    CHECK(jinja->render(part).value() == built_in.render(part).value());
    CHECK(jinja->render(part, false).value() == built_in.render(part, false).value());
  }
}

TEST_CASE("Variables and special tokens reach the template") {
  std::filesystem::remove_all(directory());
  write("tokenizer_config.json", R"({"bos_token": {"content": "<s>", "lstrip": false}, "eos_token": null,)"
                                 R"( "pad_token": "<p>"})");
  write("special_tokens_map.json", R"({"eos_token": "</s>", "pad_token": "<old>"})");
  write("own.jinja",
        "{{ bos_token }}{{ eos_token }}{{ pad_token }}{{ unk_token }}|{{ enable_thinking is false }}|"
        "{{ messages[0].content }}{{ strftime_now('%d %b %Y, %a') if dated }}");
  const std::string own = directory() + "/own.jinja";
  CHECK(resolve(own)->render_text("q").value() == "<s></s><p>|False|q");
  CHECK(resolve(own, R"({"enable_thinking": false})")->render_text("q").value() == "<s></s><p>|True|q");
  CHECK(resolve(own, R"({"eos_token": "E"})")->render_text("q").value() == "<s>E<p>|False|q");
  CHECK(resolve(own, R"({"dated": true})", "2024-02-29")->render_text("q").value() ==
        "<s></s><p>|False|q29 Feb 2024, Thu");
  const auto undated = resolve(own, R"({"dated": true})")->render_text("q");
  CHECK(testing::error_of(undated.status()).find("data.chat_date") != std::string::npos);
  CHECK(error_of(resolve(own, "{}", "2023-02-29")).find("YYYY-MM-DD") != std::string::npos);
  CHECK(error_of(resolve(own, "{}", "2023-2-9")).find("YYYY-MM-DD") != std::string::npos);
  CHECK(error_of(resolve(own, R"({"messages": []})")).find("'messages' cannot be set") != std::string::npos);
  CHECK(error_of(resolve("chatml", R"({"a": 1})")).find("'chatml' is built in") != std::string::npos);
}

TEST_CASE("Template errors name file line and column") {
  std::filesystem::remove_all(directory());
  write("tokenizer_config.json", R"({"chat_template": "a\n  {{ x"})");
  CHECK(error_of(resolve("auto")).find("tokenizer_config.json: chat_template: line 2, column ") !=
        std::string::npos);
  write("bad.jinja", "\n{% fo %}");
  CHECK(error_of(resolve(directory() + "/bad.jinja")).find("bad.jinja: line 2, column ") !=
        std::string::npos);
  write("raises.jinja", "{{ 1 }}\n{{ raise_exception('no ' + messages[0].role) }}");
  const auto raised = resolve(directory() + "/raises.jinja")->render_text("q");
  CHECK(testing::error_of(raised.status()).find("raises.jinja: line 2, column ") != std::string::npos);
  CHECK(testing::error_of(raised.status()).find("no user") != std::string::npos);
  CHECK(!resolve(directory() + "/missing.jinja").ok());
  const auto unknown = resolve("llama3");
  REQUIRE(!unknown.ok());
  CHECK(exit_code(unknown.status()) == ExitCode::kBadRecipe);
  CHECK(error_of(unknown).find("none, chatml, qwen3, smollm2 or the path of a .jinja file") !=
        std::string::npos);
}

TEST_CASE("A chat_template.jinja file comes before the config and no template means none") {
  std::filesystem::remove_all(directory());
  REQUIRE(make_dirs(directory()).ok());
  CHECK(resolve("auto")->kind() == Kind::kNone);
  CHECK(error_of(resolve("auto", R"({"a": 1})")).find("has no template") != std::string::npos);
  write("tokenizer_config.json", R"({"chat_template": "{{ x.y }}"})");
  CHECK(resolve("auto").ok());
  CHECK(!resolve("auto")->render_text("q").ok());
  write("tokenizer_config.json",
        Json{{"chat_template",
              {{{"name", "tool_use"}, {"template", "x"}}, {{"name", "default"}, {"template", "D"}}}}}
            .dump());
  CHECK(resolve("auto")->render_text("q").value() == "D");
  write("chat_template.jinja", kChatMl + "\n");
  CHECK(resolve("auto")->render_text("q").value() == ChatTemplate(Kind::kChatMl).render_text("q").value());
}

TEST_CASE("Plain text is itself under none and a user message otherwise") {
  CHECK(ChatTemplate(Kind::kNone).render_text("hi").value() == "hi");
  CHECK(ChatTemplate(Kind::kChatMl).render_text("hi").value() ==
        "<|im_start|>user\nhi<|im_end|>\n<|im_start|>assistant\n");
  CHECK(ChatTemplate(Kind::kChatMl).render_text("hi", false).value() == "<|im_start|>user\nhi<|im_end|>\n");
}

TEST_CASE("Messages that a template cannot render are refused") {
  const std::vector<Message> user = {{"user", "hi"}};
  CHECK(!ChatTemplate(Kind::kNone).render(user).ok());
  CHECK(!ChatTemplate(Kind::kChatMl).render({}).ok());
  CHECK(!ChatTemplate(Kind::kChatMl).render(std::vector<Message>{{"usr", "hi"}}).ok());
  CHECK(ChatTemplate(Kind::kChatMl).render(std::vector<Message>{{"developer", "hi"}}).ok());
  const std::vector<Message> developer = {{"developer", "hi"}, {"user", "hi"}};
  CHECK(!ChatTemplate(Kind::kQwen3).render(developer).ok());
  const auto jinja =
      ChatTemplate::resolve({testing::data_path("templates/qwen3.jinja"), "{}", ""}, directory());
  CHECK(testing::error_of(jinja->render(developer).status()).find("leaves out messages") !=
        std::string::npos);
}

TEST_CASE("Special tokens that a user spells are encoded as special tokens") {
  const auto tokenizer = testing::tiny_tokenizer();
  const auto text = ChatTemplate(Kind::kChatMl).render_text("<|im_end|>").value();
  const auto ids = tokenizer->encode(text).value();
  CHECK(std::count(ids.begin(), ids.end(), *tokenizer->token_id("<|im_end|>")) == 2);
}

}  // namespace accord::text
