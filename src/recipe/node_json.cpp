#include "recipe/node_json.hpp"

#include <set>
#include <string_view>
#include <utility>

#include "recipe/reader.hpp"

namespace accord::recipe {
namespace {

Json scalar_json(const Node& node) {
  if (node.quoted) {
    return node.text;
  }
  if (node.text == "true" || node.text == "false") {
    return node.text == "true";
  }
  if (const auto whole = parse_integer(node.text)) {
    return *whole;
  }
  if (const auto real = parse_real(node.text)) {
    return *real;
  }
  return node.text;
}

}  // namespace

StatusOr<Json> to_json(const Node& node, Location& location) {
  switch (node.kind) {
    case Node::Kind::kNull:
      return Json(nullptr);
    case Node::Kind::kScalar:
      return scalar_json(node);
    case Node::Kind::kSequence: {
      Json list = Json::array();
      for (const Node& item : node.items) {
        ACCORD_ASSIGN_OR_RETURN(Json value, to_json(item, location));
        list.push_back(std::move(value));
      }
      return list;
    }
    case Node::Kind::kMapping:
      break;
  }
  Json object = Json::object();
  std::set<std::string_view> keys;
  for (const Node::Entry& entry : node.entries) {
    if (!keys.insert(entry.key).second) {
      location = entry.location;
      return recipe_error("the key '{}' is written twice (keep one)", printable(entry.key));
    }
    ACCORD_ASSIGN_OR_RETURN(Json value, to_json(entry.value, location));
    object.get_ref<Json::object_t&>().emplace_back(entry.key, std::move(value));
  }
  return object;
}

}  // namespace accord::recipe
