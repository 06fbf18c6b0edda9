#include "recipe/node.hpp"

#include <yaml-cpp/eventhandler.h>
#include <yaml-cpp/exceptions.h>
#include <yaml-cpp/mark.h>
#include <yaml-cpp/parser.h>

#include <algorithm>
#include <charconv>
#include <sstream>

#include "recipe/utf8.hpp"

namespace accord::recipe {
namespace {

// Leaves yaml-cpp's parser early; caught in parse_yaml.
struct Refused {
  Location location;
  std::string rule;
};

class TreeBuilder : public YAML::EventHandler {
 public:
  explicit TreeBuilder(int32_t source) : source_(source) {}

  int documents() const { return documents_; }
  Node take() { return std::move(root_); }

  void OnDocumentStart(const YAML::Mark& mark) override {
    if (++documents_ > 1) {
      refuse(mark, "a second document (keep one, without '---' lines)");
    }
  }
  void OnDocumentEnd() override {}
  void OnAnchor(const YAML::Mark& mark, const std::string& name) override {
    refuse(mark, fmt::format("anchor '&{}': anchors are not accepted (write the value out)", name));
  }
  void OnAlias(const YAML::Mark& mark, YAML::anchor_t) override {
    refuse(mark, "aliases are not accepted (write the value out)");
  }
  void OnNull(const YAML::Mark& mark, YAML::anchor_t anchor) override {
    check_anchor(mark, anchor);
    Node node;
    node.location = at(mark);
    add(mark, std::move(node));
  }
  void OnScalar(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                const std::string& value) override {
    check_anchor(mark, anchor);
    const bool quoted = tag == "!";
    if (!quoted) {
      check_tag(mark, tag);
    }
    Node node;
    node.kind = Node::Kind::kScalar;
    node.location = at(mark);
    node.text = value;
    node.quoted = quoted;
    add(mark, std::move(node));
  }
  void OnSequenceStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                       YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kSequence);
  }
  void OnSequenceEnd() override { close(); }
  void OnMapStart(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor,
                  YAML::EmitterStyle::value) override {
    open(mark, tag, anchor, Node::Kind::kMapping);
  }
  void OnMapEnd() override { close(); }

 private:
  struct Open {
    Node node;
    bool has_key = false;
    std::string key;
    Location key_location;
  };

  Location at(const YAML::Mark& mark) const { return {source_, mark.line + 1, mark.column + 1}; }

  [[noreturn]] void refuse(const YAML::Mark& mark, std::string rule) const {
    throw Refused{at(mark), std::move(rule)};
  }
  void check_anchor(const YAML::Mark& mark, YAML::anchor_t anchor) const {
    if (anchor != 0) {
      refuse(mark, "anchors are not accepted (write the value out)");
    }
  }
  void check_tag(const YAML::Mark& mark, const std::string& tag) const {
    if (!tag.empty() && tag != "?") {
      refuse(mark, fmt::format("tag '{}': tags are not accepted (remove it)", tag));
    }
  }

  void count_node(const YAML::Mark& mark) {
    if (++nodes_ > kMaxNodes) {
      refuse(mark, fmt::format("more than {} values", kMaxNodes));
    }
  }

  void open(const YAML::Mark& mark, const std::string& tag, YAML::anchor_t anchor, Node::Kind kind) {
    check_anchor(mark, anchor);
    check_tag(mark, tag);
    if (stack_.size() >= kMaxDepth) {
      refuse(mark, fmt::format("nested more than {} levels deep", kMaxDepth));
    }
    count_node(mark);
    if (!stack_.empty() && stack_.back().node.kind == Node::Kind::kMapping && !stack_.back().has_key) {
      refuse(mark, "a key must be a plain name (is a bracket not closed?)");
    }
    Open entry;
    entry.node.kind = kind;
    entry.node.location = at(mark);
    stack_.push_back(std::move(entry));
  }

  void close() {
    Node node = std::move(stack_.back().node);
    stack_.pop_back();
    attach(std::move(node));
  }

  void add(const YAML::Mark& mark, Node node) {
    count_node(mark);
    if (!stack_.empty() && stack_.back().node.kind == Node::Kind::kMapping && !stack_.back().has_key) {
      if (node.kind != Node::Kind::kScalar) {
        refuse(mark, "a key must be a plain name (is a bracket not closed?)");
      }
      stack_.back().has_key = true;
      stack_.back().key = std::move(node.text);
      stack_.back().key_location = node.location;
      return;
    }
    attach(std::move(node));
  }

  void attach(Node node) {
    if (stack_.empty()) {
      root_ = std::move(node);
      return;
    }
    Open& parent = stack_.back();
    if (parent.node.kind == Node::Kind::kSequence) {
      parent.node.items.push_back(std::move(node));
      return;
    }
    parent.node.entries.push_back({std::move(parent.key), parent.key_location, std::move(node)});
    parent.key.clear();
    parent.has_key = false;
  }

  int32_t source_;
  int documents_ = 0;
  size_t nodes_ = 0;
  Node root_;
  std::vector<Open> stack_;
};

// The position of a byte, in lines and bytes of a line.
Location position_of(std::string_view text, size_t offset, int32_t source) {
  const std::string_view before = text.substr(0, offset);
  const auto lines = std::count(before.begin(), before.end(), '\n');
  const size_t line_start = before.rfind('\n') + 1;  // npos + 1 is 0
  return {source, static_cast<int32_t>(lines + 1), static_cast<int32_t>(offset - line_start + 1)};
}

Status check_text(std::string_view text, int32_t source, Location& location) {
  if (static_cast<int64_t>(text.size()) > kMaxRecipeBytes) {
    return recipe_error("{} bytes, more than the {} that a recipe may have", text.size(), kMaxRecipeBytes);
  }
  if (const size_t bad = find_invalid_utf8(text); bad != std::string_view::npos) {
    location = position_of(text, bad, source);
    return recipe_error("not valid UTF-8 (save the file as UTF-8)");
  }
  if (const size_t nul = text.find('\0'); nul != std::string_view::npos) {
    location = position_of(text, nul, source);
    return recipe_error("a NUL character (save the file as UTF-8 text)");
  }
  return absl::OkStatus();
}

}  // namespace

Node* Node::find(std::string_view key) {
  for (Entry& entry : entries) {
    if (entry.key == key) {
      return &entry.value;
    }
  }
  return nullptr;
}

std::string_view Node::kind_name() const {
  switch (kind) {
    case Kind::kNull:
      return "null";
    case Kind::kScalar:
      return "a single value";
    case Kind::kSequence:
      return "a list";
    case Kind::kMapping:
      return "a mapping";
  }
  return "";
}

StatusOr<Node> parse_yaml(std::string_view text, int32_t source, Location& location) {
  location = {source, 1, 1};
  ACCORD_RETURN_IF_ERROR(check_text(text, source, location));
  TreeBuilder builder(source);
  try {
    std::istringstream stream{std::string(text)};
    YAML::Parser parser(stream);
    while (parser.HandleNextDocument(builder)) {
    }
  } catch (const Refused& refused) {
    location = refused.location;
    return recipe_error("{}", refused.rule);
  } catch (const YAML::Exception& error) {
    if (!error.mark.is_null()) {
      location = {source, error.mark.line + 1, error.mark.column + 1};
    }
    return recipe_error("not valid YAML: {}", error.msg);
  } catch (const std::exception& error) {
    return recipe_error("not valid YAML: {}", error.what());
  }
  return builder.take();
}

Status apply_override(Node& root, std::string_view override_text, int32_t source) {
  const size_t equals = override_text.find('=');
  if (equals == std::string_view::npos || equals == 0) {
    return recipe_error("not of the form key.path=value");
  }
  Location location;
  StatusOr<Node> value = parse_yaml(override_text.substr(equals + 1), source, location);
  if (!value.ok()) {
    return recipe_error("the value: {}{}", message_of(value.status()),
                        override_text.find_first_of("*?&!%@`{[", equals + 1) == equals + 1
                            ? "; quote a text that starts so: key='\"*.mlp.*\"'"
                            : "");
  }
  const std::string_view path = override_text.substr(0, equals);
  Node* node = &root;
  size_t begin = 0;
  size_t depth = 0;
  while (begin <= path.size()) {
    const size_t end = std::min(path.find('.', begin), path.size());
    const std::string_view key = path.substr(begin, end - begin);
    if (key.empty() || find_invalid_utf8(key) != std::string_view::npos || ++depth > kMaxDepth) {
      return recipe_error("'{}' is not a key path", key.empty() ? path : std::string_view("the left side"));
    }
    if (node->kind == Node::Kind::kSequence) {
      size_t index = 0;
      const auto [stop, error] = std::from_chars(key.data(), key.data() + key.size(), index);
      if (error != std::errc() || stop != key.data() + key.size() || index >= node->items.size()) {
        return recipe_error("{}: no item '{}' in this list of {}, counted from 0", path.substr(0, end), key,
                            node->items.size());
      }
      node = &node->items[index];
    } else if (node->kind == Node::Kind::kScalar) {
      return recipe_error("{}: is a single value and has no keys", path.substr(0, begin - 1));
    } else {
      if (node->kind == Node::Kind::kNull) {
        node->kind = Node::Kind::kMapping;
        node->location = {source, 1, 1};
      }
      Node* child = node->find(key);
      if (child == nullptr) {
        node->entries.push_back({std::string(key), {source, 1, 1}, Node{}});
        child = &node->entries.back().value;
        child->location = {source, 1, 1};
      }
      node = child;
    }
    begin = end + 1;
  }
  *node = std::move(*value);
  return absl::OkStatus();
}

}  // namespace accord::recipe
