#include "checkpoint/strict_json.hpp"

#include <string>
#include <unordered_set>
#include <utility>
#include <vector>

#include "base/files.hpp"

namespace accord::checkpoint {
namespace {

constexpr size_t kMaxDepth = 64;

// Builds the value and refuses what a plain parse would accept in silence.
class StrictSax : public nlohmann::json_sax<Json> {
 public:
  explicit StrictSax(std::string_view file) : file_(file) {}

  bool null() override { return add(nullptr); }
  bool boolean(bool value) override { return add(value); }
  bool number_integer(number_integer_t value) override { return add(value); }
  bool number_unsigned(number_unsigned_t value) override { return add(value); }
  bool number_float(number_float_t value, const string_t&) override { return add(value); }
  bool string(string_t& value) override { return add(std::move(value)); }
  bool binary(binary_t&) override { return fail("binary values are not JSON"); }

  bool start_object(size_t) override {
    keys_.emplace_back();
    return open(Json::object());
  }
  bool key(string_t& name) override {
    if (!keys_.back().insert(name).second) {
      return fail(fmt::format("key '{}' appears twice in one object; remove one of them", printable(name)));
    }
    key_ = std::move(name);
    return true;
  }
  bool end_object() override {
    keys_.pop_back();
    stack_.pop_back();
    return true;
  }
  bool start_array(size_t) override { return open(Json::array()); }
  bool end_array() override {
    stack_.pop_back();
    return true;
  }
  bool parse_error(size_t position, const std::string&, const nlohmann::json::exception& e) override {
    return fail(fmt::format("is not valid JSON at byte {}: {}", position, e.what()));
  }

  Json take() { return std::move(root_); }
  const Status& status() const { return status_; }

 private:
  bool fail(const std::string& message) {
    status_ = data_error("{}: {}", file_, message);
    return false;
  }
  Json* place(Json value) {
    if (stack_.empty()) {
      root_ = std::move(value);
      return &root_;
    }
    Json& parent = *stack_.back();
    if (parent.is_array()) {
      parent.push_back(std::move(value));
      return &parent.back();
    }
    // The key is known to be new: emplace_back on the underlying vector avoids ordered_map's linear search.
    auto& members = parent.get_ref<Json::object_t&>();
    members.Container::emplace_back(key_, std::move(value));
    return &members.back().second;
  }
  bool add(Json value) {
    place(std::move(value));
    return true;
  }
  bool open(Json value) {
    if (stack_.size() >= kMaxDepth) {
      return fail(fmt::format("is nested more than {} levels deep", kMaxDepth));
    }
    stack_.push_back(place(std::move(value)));
    return true;
  }

  std::string file_;
  Json root_;
  std::vector<Json*> stack_;  // containers that are open; a container never moves while it is on top
  std::vector<std::unordered_set<std::string>> keys_;
  std::string key_;
  Status status_;
};

}  // namespace

StatusOr<Json> parse_json(std::string_view text, std::string_view file) {
  StrictSax sax(file);
  try {
    if (!Json::sax_parse(text.begin(), text.end(), &sax, Json::input_format_t::json, /*strict=*/true)) {
      return sax.status();
    }
  } catch (const nlohmann::json::exception& e) {
    return data_error("{}: is not valid JSON: {}", file, e.what());
  }
  return sax.take();
}

StatusOr<Json> read_json_object(const std::string& path, int64_t max_bytes) {
  ACCORD_ASSIGN_OR_RETURN(const std::string text, read_file(path, max_bytes));
  ACCORD_ASSIGN_OR_RETURN(Json value, parse_json(text, path));
  if (!value.is_object()) {
    return data_error("{}: must hold one JSON object, not {}", path, value.type_name());
  }
  return value;
}

std::string printable(std::string_view name) {
  constexpr size_t kLongest = 120;
  std::string text;
  for (const char c : name.substr(0, kLongest)) {
    const auto byte = static_cast<unsigned char>(c);
    text += byte < 0x20 || byte == 0x7f ? fmt::format("\\x{:02x}", byte) : std::string(1, c);
  }
  return name.size() > kLongest ? text + "..." : text;
}

}  // namespace accord::checkpoint
