#include "text/data_path.hpp"

#include <algorithm>
#include <charconv>

namespace accord::text {
namespace {

bool parse_bound(std::string_view text, std::optional<int64_t>& bound) {
  if (text.empty()) {
    return true;
  }
  int64_t value = 0;
  const auto result = std::from_chars(text.data(), text.data() + text.size(), value);
  bound = value;
  return result.ec == std::errc() && result.ptr == text.data() + text.size();
}

}  // namespace

StatusOr<DataPath> parse_data_path(std::string_view path) {
  DataPath parsed;
  const size_t at = path.rfind("@[");
  if (at == std::string_view::npos || !path.ends_with(']')) {
    parsed.file = path;
    return parsed;
  }
  const std::string_view part = path.substr(at + 2, path.size() - at - 3);
  const size_t colon = part.find(':');
  if (colon == std::string_view::npos || !parse_bound(part.substr(0, colon), parsed.begin) ||
      !parse_bound(part.substr(colon + 1), parsed.end)) {
    return recipe_error(
        "{}: '@[{}]' is no part of a file; write @[a:b] with whole numbers, either may be left out", path,
        part);
  }
  parsed.file = path.substr(0, at);
  return parsed;
}

StatusOr<std::pair<int64_t, int64_t>> DataPath::part_of(int64_t total) const {
  const auto place = [&](const std::optional<int64_t>& bound, int64_t missing) {
    if (!bound) {
      return missing;
    }
    return std::clamp<int64_t>(*bound < 0 ? *bound + total : *bound, 0, total);
  };
  const int64_t first = place(begin, 0);
  const int64_t last = place(end, total);
  if (is_slice() && first >= last) {
    return data_error("{}: @[{}:{}] holds none of its {} records", file,
                      begin ? fmt::format("{}", *begin) : "", end ? fmt::format("{}", *end) : "", total);
  }
  return std::pair(first, last);
}

}  // namespace accord::text
