#include "text/chat_template.hpp"

#include <filesystem>

#include "base/files.hpp"
#include "support/catch.hpp"
#include "unit/text/support.hpp"

namespace accord::text {
namespace {

using Kind = ChatTemplate::Kind;

const std::string kChatMl =
    "{% for message in messages %}{{'<|im_start|>' + message['role'] + '\\n' + message['content'] + "
    "'<|im_end|>' + "
    "'\\n'}}{% endfor %}{% if add_generation_prompt %}{{ '<|im_start|>assistant\\n' }}{% endif %}";

std::string with_real_newlines(std::string text) {
  for (size_t at = text.find("\\n"); at != std::string::npos; at = text.find("\\n")) {
    text.replace(at, 2, "\n");
  }
  return text;
}

}  // namespace

TEST_CASE("Published chat templates are recognised") {
  CHECK(ChatTemplate::recognize(kChatMl, "x")->kind() == Kind::kChatMl);
  CHECK(ChatTemplate::recognize(with_real_newlines(kChatMl) + "\n", "x")->kind() == Kind::kChatMl);
  CHECK(ChatTemplate::resolve("auto", testing::data_path("tiny_tokenizer"))->kind() == Kind::kSmolLm2);
  CHECK(ChatTemplate::resolve("auto", std::string(ACCORD_SOURCE_DIR) + "/configs/quickstart/tokenizer")
            ->kind() == Kind::kChatMl);
  CHECK(ChatTemplate::resolve("qwen3", "/nowhere")->kind() == Kind::kQwen3);
}

TEST_CASE("The published Qwen3 template is recognised and DeepSeek's is not") {
  if (testing::large_tokenizer("qwen3") == nullptr) {
    return;
  }
  const auto qwen3 = ChatTemplate::resolve("auto", testing::large_tokenizer_dir("qwen3"));
  REQUIRE(qwen3.ok());
  CHECK(qwen3->name() == "qwen3");
  const auto other = ChatTemplate::resolve("auto", testing::large_tokenizer_dir("deepseek_v3"));
  REQUIRE(!other.ok());
  CHECK(exit_code(other.status()) == ExitCode::kBadRecipe);
}

TEST_CASE("An unknown chat template is an error that lists the choices") {
  const auto changed = ChatTemplate::recognize(kChatMl + "{{ bos_token }}", "dir/tokenizer_config.json");
  REQUIRE(!changed.ok());
  const std::string error = testing::error_of(changed.status());
  CHECK(error.find("dir/tokenizer_config.json") != std::string::npos);
  CHECK(error.find("data.chat_template") != std::string::npos);
  CHECK(error.find("none, chatml, qwen3 or smollm2") != std::string::npos);
  const auto unknown = ChatTemplate::named("llama3");
  REQUIRE(!unknown.ok());
  CHECK(exit_code(unknown.status()) == ExitCode::kBadRecipe);
}

TEST_CASE("A chat_template.jinja file comes before the config and no template means none") {
  const std::string dir = std::string(ACCORD_BINARY_DIR) + "/text_template_test";
  std::filesystem::remove_all(dir);
  REQUIRE(make_dirs(dir).ok());
  CHECK(ChatTemplate::resolve("auto", dir)->kind() == Kind::kNone);
  REQUIRE(write_file_atomic(dir + "/tokenizer_config.json", R"({"chat_template": "{{ x }}"})").ok());
  CHECK(!ChatTemplate::resolve("auto", dir).ok());
  REQUIRE(
      write_file_atomic(dir + "/tokenizer_config.json", Json{{"chat_template",
                                                              {{{"name", "tool_use"}, {"template", "x"}},
                                                               {{"name", "default"}, {"template", kChatMl}}}}}
                                                            .dump())
          .ok());
  CHECK(ChatTemplate::resolve("auto", dir)->kind() == Kind::kChatMl);
  REQUIRE(write_file_atomic(dir + "/tokenizer_config.json", R"({"chat_template": "{{ x }}"})").ok());
  REQUIRE(write_file_atomic(dir + "/chat_template.jinja", kChatMl + "\n").ok());
  CHECK(ChatTemplate::resolve("auto", dir)->kind() == Kind::kChatMl);
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
  CHECK(!ChatTemplate(Kind::kQwen3).render(std::vector<Message>{{"developer", "hi"}}).ok());
}

TEST_CASE("Special tokens that a user spells are encoded as special tokens") {
  const auto tokenizer = testing::tiny_tokenizer();
  const auto text = ChatTemplate(Kind::kChatMl).render_text("<|im_end|>").value();
  const auto ids = tokenizer->encode(text).value();
  CHECK(std::count(ids.begin(), ids.end(), *tokenizer->token_id("<|im_end|>")) == 2);
}

}  // namespace accord::text
