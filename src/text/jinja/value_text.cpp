// How values are written: str(), repr() and json.dumps().
#include <algorithm>
#include <cmath>

#include "text/jinja/unicode.hpp"
#include "text/jinja/value.hpp"
#include "text/utf8.hpp"

namespace accord::text::jinja {
namespace {

using Kind = Value::Kind;

std::string real_text(double value) {
  std::string text = fmt::format("{}", value);
  if (text.find_first_not_of("0123456789-") == std::string::npos) {
    text += ".0";
  }
  return text;
}

// Python quotes with ' unless the text has ' and no ".
StatusOr<std::string> quoted(const std::string& text) {
  const bool twofold = text.find('\'') != std::string::npos && text.find('"') == std::string::npos;
  const char quote = twofold ? '"' : '\'';
  std::string out(1, quote);
  for (size_t at = 0; at < text.size(); ++at) {
    const char c = text[at];
    const auto byte = static_cast<uint8_t>(c);
    if (c == quote || c == '\\') {
      out += '\\';
      out += c;
    } else if (c == '\n' || c == '\r' || c == '\t') {
      out += c == '\n' ? "\\n" : c == '\r' ? "\\r" : "\\t";
    } else if (byte < 0x20 || byte == 0x7F) {
      out += fmt::format("\\x{:02x}", byte);
    } else if (byte >= 0x80) {
      const Utf8Step step = next_utf8(text, at);
      const uint32_t point = step.code_point;
      out += is_printable(point) ? text.substr(at, step.length)
             : point <= 0xFF     ? fmt::format("\\x{:02x}", point)
             : point <= 0xFFFF   ? fmt::format("\\u{:04x}", point)
                                 : fmt::format("\\U{:08x}", point);
      at += step.length - size_t{1};
    } else {
      out += c;
    }
  }
  return out + quote;
}

StatusOr<std::string> joined(const std::vector<Value>& items) {
  std::string out;
  for (size_t i = 0; i < items.size(); ++i) {
    ACCORD_ASSIGN_OR_RETURN(const std::string item, to_repr(items[i]));
    out += (i == 0 ? "" : ", ") + item;
    if (out.size() > kMaxText) {
      return data_error("a text of more than {} bytes", kMaxText);
    }
  }
  return out;
}

void append_json_string(const std::string& text, bool ensure_ascii, std::string& out) {
  out += '"';
  for (size_t at = 0; at < text.size();) {
    const Utf8Step step = next_utf8(text, at);
    const uint32_t c = step.code_point;
    if (c == '"' || c == '\\') {
      out += '\\';
      out += static_cast<char>(c);
    } else if (c < 0x20) {
      constexpr std::string_view kShort = "btn?fr";  // from 8 on; 11 has no short form
      const bool is_short = c >= 8 && c <= 13 && c != 11;
      out += is_short ? fmt::format("\\{}", kShort[c - 8]) : fmt::format("\\u{:04x}", c);
    } else if (c >= 0x7F && ensure_ascii && c != 0x7F) {
      if (c >= 0x10000) {
        out += fmt::format("\\u{:04x}\\u{:04x}", 0xD800 + ((c - 0x10000) >> 10), 0xDC00 + (c & 0x3FF));
      } else {
        out += fmt::format("\\u{:04x}", c);
      }
    } else {
      out.append(text, at, step.length);
    }
    at += step.length;
  }
  out += '"';
}

class JsonWriter {
 public:
  explicit JsonWriter(const JsonStyle& style) : style_(style) {}

  Status write(const Value& value, int level) {
    if (out.size() > kMaxText) {
      return data_error("a text of more than {} bytes", kMaxText);
    }
    switch (value.kind()) {
      case Kind::kNone:
        out += "null";
        return absl::OkStatus();
      case Kind::kBool:
        out += value.as_bool() ? "true" : "false";
        return absl::OkStatus();
      case Kind::kInt:
        out += fmt::format("{}", value.as_integer());
        return absl::OkStatus();
      case Kind::kFloat:
        if (!std::isfinite(value.as_real())) {
          return data_error("tojson: {} has no form in JSON", value.as_real());
        }
        out += real_text(value.as_real());
        return absl::OkStatus();
      case Kind::kString:
        append_json_string(value.as_string(), style_.ensure_ascii, out);
        return absl::OkStatus();
      case Kind::kList:
        return write_list(value.as_list(), level);
      case Kind::kDict:
        return write_dict(value.as_dict(), level);
      case Kind::kUndefined:
        return undefined_error(value);
      case Kind::kObject:
        break;
    }
    return data_error("tojson: a {} has no form in JSON", type_name(value));
  }

  std::string out;

 private:
  void line(int level) {
    if (style_.indent >= 0) {
      out += '\n';
      out.append(static_cast<size_t>(style_.indent) * static_cast<size_t>(level), ' ');
    }
  }

  Status write_list(const List& list, int level) {
    if (list.shape == Shape::kView || list.shape == Shape::kIterator) {
      return data_error("tojson: needs a list; turn the result of items() or of a filter into one first");
    }
    out += '[';
    for (size_t i = 0; i < list.items.size(); ++i) {
      out += i == 0 ? "" : style_.item_separator;
      line(level + 1);
      ACCORD_RETURN_IF_ERROR(write(list.items[i], level + 1));
    }
    if (!list.items.empty()) {
      line(level);
    }
    out += ']';
    return absl::OkStatus();
  }

  Status write_dict(const Dict& dict, int level) {
    std::vector<const std::pair<std::string, Value>*> members;
    for (const auto& member : dict.members) {
      members.push_back(&member);
    }
    if (style_.sort_keys) {
      std::sort(members.begin(), members.end(),
                [](const auto* a, const auto* b) { return a->first < b->first; });
    }
    out += '{';
    for (size_t i = 0; i < members.size(); ++i) {
      out += i == 0 ? "" : style_.item_separator;
      line(level + 1);
      append_json_string(members[i]->first, style_.ensure_ascii, out);
      out += style_.key_separator;
      ACCORD_RETURN_IF_ERROR(write(members[i]->second, level + 1));
    }
    if (!members.empty()) {
      line(level);
    }
    out += '}';
    return absl::OkStatus();
  }

  const JsonStyle& style_;
};

}  // namespace

StatusOr<std::string> to_text(const Value& value) {
  switch (value.kind()) {
    case Kind::kString:
      return value.as_string();
    case Kind::kUndefined:
      return std::string();
    default:
      return to_repr(value);
  }
}

StatusOr<std::string> to_repr(const Value& value) {
  switch (value.kind()) {
    case Kind::kUndefined:
      return std::string("Undefined");
    case Kind::kNone:
      return std::string("None");
    case Kind::kBool:
      return std::string(value.as_bool() ? "True" : "False");
    case Kind::kInt:
      return fmt::format("{}", value.as_integer());
    case Kind::kFloat:
      return real_text(value.as_real());
    case Kind::kString:
      return quoted(value.as_string());
    case Kind::kList: {
      const List& list = value.as_list();
      if (list.shape == Shape::kView || list.shape == Shape::kIterator) {
        return data_error("the result of items() or of a filter is printed; turn it into a list first");
      }
      ACCORD_ASSIGN_OR_RETURN(const std::string items, joined(list.items));
      if (list.shape == Shape::kTuple) {
        return fmt::format("({}{})", items, list.items.size() == 1 ? "," : "");
      }
      return fmt::format("[{}]", items);
    }
    case Kind::kDict: {
      std::string out;
      for (const auto& [name, member] : value.as_dict().members) {
        ACCORD_ASSIGN_OR_RETURN(const std::string key, quoted(name));
        ACCORD_ASSIGN_OR_RETURN(const std::string text, to_repr(member));
        out += fmt::format("{}{}: {}", out.empty() ? "" : ", ", key, text);
        if (out.size() > kMaxText) {
          return data_error("a text of more than {} bytes", kMaxText);
        }
      }
      return fmt::format("{{{}}}", out);
    }
    case Kind::kObject:
      break;
  }
  return data_error("a macro, namespace or function is printed; it has no text");
}

StatusOr<std::string> to_json(const Value& value, const JsonStyle& style) {
  JsonWriter writer(style);
  ACCORD_RETURN_IF_ERROR(writer.write(value, 0));
  return std::move(writer.out);
}

}  // namespace accord::text::jinja
