// accord tokenize: token ids of texts and chats, and back.
#include <memory>
#include <nlohmann/json.hpp>
#include <string>
#include <utility>

#include "base/strict_json.hpp"
#include "cli/chat_options.hpp"
#include "cli/commands.hpp"
#include "cli/text_io.hpp"
#include "text/chat_template.hpp"
#include "text/records.hpp"
#include "text/tokenizer.hpp"

namespace accord::cli {
namespace {

struct Arguments {
  std::string dir;
  std::string input;
  std::string output;
  text::ChatOptions chat;
  bool decode = false;
  bool skip_special = false;
  bool no_generation_prompt = false;
};

class Converter {
 public:
  Converter(const Arguments& arguments, const text::Tokenizer& tokenizer, text::ChatTemplate chat)
      : arguments_(arguments), tokenizer_(tokenizer), chat_(std::move(chat)) {}

  StatusOr<std::string> convert(std::string_view line) const {
    ACCORD_ASSIGN_OR_RETURN(Json record, parse_json(line));
    if (!record.is_object()) {
      return data_error("a line must hold an object, not {}", kind_of(record));
    }
    if (arguments_.decode) {
      ACCORD_ASSIGN_OR_RETURN(record["text"], decode(record));
    } else {
      ACCORD_ASSIGN_OR_RETURN(record["ids"], encode(record));
    }
    return record.dump();
  }

 private:
  StatusOr<Json> encode(const Json& record) const {
    const bool has_text = record.contains("text");
    if (has_text == record.contains("messages")) {
      return data_error("a line must have either 'text' or 'messages'");
    }
    std::string rendered;
    if (has_text) {
      if (!record.at("text").is_string()) {
        return data_error("'text' must be a string, not {}", kind_of(record.at("text")));
      }
      rendered = record.at("text").get<std::string>();
    } else {
      StatusOr<std::vector<text::Message>> messages = text::parse_messages(record.at("messages"));
      if (!messages.ok()) {
        return annotate(messages.status(), "messages");
      }
      ACCORD_ASSIGN_OR_RETURN(rendered, chat_.render(*messages, !arguments_.no_generation_prompt));
    }
    ACCORD_ASSIGN_OR_RETURN(const std::vector<int32_t> ids, tokenizer_.encode(rendered));
    return Json(ids);
  }

  StatusOr<Json> decode(const Json& record) const {
    const auto found = record.find("ids");
    if (found == record.end() || !found->is_array()) {
      return data_error("a line must have a list 'ids'");
    }
    std::vector<int32_t> ids;
    for (const Json& value : *found) {
      const int64_t id = value.is_number_integer() ? value.get<int64_t>() : -1;
      if (id < 0 || id >= tokenizer_.vocab_size() || !tokenizer_.has_id(static_cast<int32_t>(id))) {
        return data_error("{} is not a token id of this tokenizer", value.dump());
      }
      ids.push_back(static_cast<int32_t>(id));
    }
    return Json(tokenizer_.decode(ids, arguments_.skip_special));
  }

  const Arguments& arguments_;
  const text::Tokenizer& tokenizer_;
  text::ChatTemplate chat_;
};

Status tokenize(const Arguments& arguments) {
  ACCORD_RETURN_IF_ERROR(refuse_same_file(arguments.input, arguments.output));
  ACCORD_ASSIGN_OR_RETURN(const std::unique_ptr<text::Tokenizer> tokenizer,
                          text::Tokenizer::load(arguments.dir));
  ACCORD_ASSIGN_OR_RETURN(const std::string input, read_input(arguments.input));
  // A template of the checkpoint that cannot be read matters only to lines with messages.
  const StatusOr<text::ChatTemplate> chat = text::ChatTemplate::resolve(arguments.chat, arguments.dir);
  if (!chat.ok() && (arguments.chat.name != "auto" || input.find("\"messages\"") != std::string::npos)) {
    return chat.status();
  }
  const Converter converter(arguments, *tokenizer,
                            chat.ok() ? *chat : text::ChatTemplate(text::ChatTemplate::Kind::kNone));
  std::string output;
  ACCORD_RETURN_IF_ERROR(text::for_each_line(input, [&](const text::Line& line) -> Status {
    StatusOr<std::string> converted = converter.convert(line.text);
    if (!converted.ok()) {
      return annotate(
          converted.status(),
          fmt::format("{}:{}", arguments.input == "-" ? "standard input" : arguments.input, line.number));
    }
    output += *converted + "\n";
    return absl::OkStatus();
  }));
  return write_output(arguments.output, output);
}

}  // namespace

void add_tokenize(CLI::App& app, Action& action) {
  auto arguments = std::make_shared<Arguments>();
  CLI::App* command = app.add_subcommand(
      "tokenize", "Add token ids to lines of text or chat messages, or text to lines of ids");
  command->add_option("DIR", arguments->dir, "Folder with tokenizer.json")->required();
  command
      ->add_option("IN", arguments->input,
                   "JSONL with {text}, {messages} or, with --decode, {ids}; - for standard input")
      ->required();
  command->add_option("OUT", arguments->output, "The same lines with ids (or text); - for standard output")
      ->required();
  command->add_flag("--decode", arguments->decode, "Turn ids into text");
  command->add_flag("--skip-special", arguments->skip_special, "With --decode: leave special tokens out");
  add_chat_options(*command, arguments->chat);
  command->add_flag("--no-generation-prompt", arguments->no_generation_prompt,
                    "Do not open the assistant's turn after the messages");
  command->callback([arguments, &action] { action = [arguments] { return tokenize(*arguments); }; });
}

}  // namespace accord::cli
