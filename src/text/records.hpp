#pragma once
// One line of a JSONL file -> a prompt and its label. Only .cpp files include this header.
#include <functional>
#include <string>
#include <string_view>
#include <variant>
#include <vector>

#include "base/status.hpp"
#include "base/strict_json.hpp"
#include "text/chat_template.hpp"

namespace accord::text {

using PromptSource = std::variant<std::string, std::vector<Message>>;

// A string, or a list of {role, content}. Tool calls and contents that are not text are refused.
StatusOr<PromptSource> parse_prompt(const Json& value);
StatusOr<std::vector<Message>> parse_messages(const Json& list);

inline constexpr char kUpstreamLabel[] = "reward_model.ground_truth";

// The member `key` of a record; where there is none, what the dotted path `key` leads to. Null: nothing.
const Json* find_member(const Json& record, std::string_view key);

// The label of a record: `key`, or reward_model.ground_truth where the record has no `key`. A number becomes
// its shortest text: 34 and 34.0 give "34".
StatusOr<std::string> parse_label(const Json& record, const std::string& key);

StatusOr<std::string> render_prompt(const PromptSource& prompt, const ChatTemplate& chat);

// For scorers: the messages as a JSON list (a text is one user message), and an object without some members.
std::string messages_json(const PromptSource& prompt);
std::string other_members(const Json& record, const std::vector<std::string>& left_out);

struct Line {
  int64_t number = 0;   // from 1
  uint64_t record = 0;  // from 0; blank lines are not records
  std::string_view text;
};

// Calls `visit` for every line that is not blank; a byte order mark and carriage returns before line feeds
// are left out. Stops at the first error.
Status for_each_line(std::string_view content, const std::function<Status(const Line&)>& visit);

}  // namespace accord::text
