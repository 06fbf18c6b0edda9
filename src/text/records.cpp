#include "text/records.hpp"

#include <algorithm>
#include <cmath>
#include <utility>

#include "text/fields.hpp"

namespace accord::text {
namespace {

constexpr std::string_view kByteOrderMark = "\xEF\xBB\xBF";
constexpr double kExactIntegers = 9007199254740992.0;  // 2^53: every smaller integer is a double

StatusOr<std::string> label_text(const Json& value) {
  if (value.is_string()) {
    return value.get<std::string>();
  }
  if (value.is_number_unsigned()) {
    return fmt::format("{}", value.get<uint64_t>());
  }
  if (value.is_number_integer()) {
    return fmt::format("{}", value.get<int64_t>());
  }
  if (value.is_number_float()) {
    const double number = value.get<double>();
    if (std::fabs(number) >= kExactIntegers) {
      return data_error("the label {} is too large for an exact number; write it as a string", value.dump());
    }
    return number == std::trunc(number) ? fmt::format("{}", static_cast<int64_t>(number))
                                        : fmt::format("{}", number);
  }
  return data_error("the label must be a string or a number, not {}", kind_of(value));
}

bool is_given(const Json& object, const char* key) {
  const auto found = object.find(key);
  return found != object.end() && !found->is_null() && !found->empty();
}

}  // namespace

StatusOr<std::vector<Message>> parse_messages(const Json& list) {
  if (!list.is_array() || list.empty()) {
    return data_error("must be a list of at least one message, not {}",
                      list.is_array() ? "an empty list" : kind_of(list));
  }
  std::vector<Message> messages;
  for (const Json& entry : list) {
    Message message;
    ACCORD_ASSIGN_OR_RETURN(message.role, string_field(entry, "role"));
    ACCORD_ASSIGN_OR_RETURN(message.content, string_field(entry, "content"));
    for (const char* key : {"tool_calls", "reasoning_content"}) {
      if (is_given(entry, key)) {
        return data_error("a message has '{}', which is not supported", key);
      }
    }
    messages.push_back(std::move(message));
  }
  return messages;
}

StatusOr<PromptSource> parse_prompt(const Json& value) {
  if (value.is_string()) {
    return PromptSource(value.get<std::string>());
  }
  if (!value.is_array()) {
    return data_error("must be text or a list of messages, not {}", kind_of(value));
  }
  ACCORD_ASSIGN_OR_RETURN(std::vector<Message> messages, parse_messages(value));
  return PromptSource(std::move(messages));
}

const Json* find_member(const Json& record, std::string_view key) {
  const Json* at = &record;
  if (const auto found = record.find(std::string(key)); found != record.end()) {
    return &*found;
  }
  while (true) {
    const size_t dot = key.find('.');
    const auto found = at->is_object() ? at->find(std::string(key.substr(0, dot))) : at->end();
    if (!at->is_object() || found == at->end()) {
      return nullptr;
    }
    at = &*found;
    if (dot == std::string_view::npos) {
      return at;
    }
    key.remove_prefix(dot + 1);
  }
}

StatusOr<std::string> parse_label(const Json& record, const std::string& key) {
  for (const std::string_view path : {std::string_view(key), std::string_view(kUpstreamLabel)}) {
    if (const Json* found = find_member(record, path)) {
      return label_text(*found);
    }
  }
  return data_error("the label '{}' is missing, and so is reward_model.ground_truth; the record has {}", key,
                    member_names(record));
}

StatusOr<std::string> render_prompt(const PromptSource& prompt, const ChatTemplate& chat) {
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    return chat.render_text(*text);
  }
  return chat.render(std::get<std::vector<Message>>(prompt));
}

std::string messages_json(const PromptSource& prompt) {
  Json list = Json::array();
  const auto add = [&](const std::string& role, const std::string& content) {
    list.push_back({{"role", role}, {"content", content}});
  };
  if (const auto* text = std::get_if<std::string>(&prompt)) {
    add("user", *text);
  } else {
    for (const Message& message : std::get<std::vector<Message>>(prompt)) {
      add(message.role, message.content);
    }
  }
  return list.dump();
}

std::string other_members(const Json& record, const std::vector<std::string>& left_out) {
  Json others = Json::object();
  for (const auto& [name, value] : record.items()) {
    if (std::find(left_out.begin(), left_out.end(), name) == left_out.end()) {
      others[name] = value;
    }
  }
  return others.dump();
}

Status for_each_line(std::string_view content, const std::function<Status(const Line&)>& visit) {
  if (content.starts_with(kByteOrderMark)) {
    content.remove_prefix(kByteOrderMark.size());
  }
  Line line;
  while (!content.empty()) {
    const size_t end = std::min(content.find('\n'), content.size());
    line.text = content.substr(0, end);
    content.remove_prefix(std::min(end + 1, content.size()));
    ++line.number;
    if (line.text.ends_with('\r')) {
      line.text.remove_suffix(1);
    }
    if (line.text.find_first_not_of(" \t\r") == std::string_view::npos) {
      continue;
    }
    ACCORD_RETURN_IF_ERROR(visit(line));
    ++line.record;
  }
  return absl::OkStatus();
}

}  // namespace accord::text
